"""Padding: does the answer depend on what stands under the padding, or on how much of it there is?

Padding that is seen is a flaw and not a cheat: the same text, padded otherwise, is answered otherwise. Models of our
own parts are scored on rows that are padded to the context, so that their scores are theirs and a verdict stays; in a
fine-tuned one, whose batches are padded to their longest row, a score then depends on the neighbours as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.probe import AuditedModel, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_inconclusive, build_not_applicable
from headtohead.audit.tolerance import (
    Difference,
    max_abs_finite,
    measure_difference,
    measure_zero_gradient,
    select_worst,
)

CHECK_NAME = "padding"


def audit_padding(audited_model: AuditedModel) -> CheckResult:
    """Other tokens under the padding, more padding, and none at all. On the right, as batches have it."""
    masked = "attention_mask" in audited_model.takes
    if not masked and audited_model.pad_id is None:
        return build_not_applicable(CHECK_NAME, "the model takes no attention_mask, and no padding token is named")
    if audited_model.length < 4:
        return build_not_applicable(CHECK_NAME, f"a text of {audited_model.length} leaves no room for padding")
    if audited_model.noise == "hidden":
        return build_inconclusive(CHECK_NAME)
    measured = list(_compare_padding(audited_model, masked))
    if not measured:
        return build_not_applicable(CHECK_NAME, "the model takes texts of one length only, and no attention_mask")
    found = select_worst(measured)
    under = "other tokens under the padding, gradients by padding, " if masked else ""
    tried = f"{under}more padding, and none at all, on the right; {audited_model.how}"
    if found.equal:
        return CheckResult(CHECK_NAME, True, tried, f"the same answer: {found}", "Padding is not read.")
    return CheckResult(
        CHECK_NAME,
        False,
        tried,
        f"the answer to a text moves with its padding: {found}",
        "Padding is read like text: the same words padded otherwise get another answer. Rows that are all padded to "
        "the context, as in task classify, are scored alike, and the verdict stands; padding should be masked.",
        failure_reason="sees padding",
    )


def _compare_padding(audited_model: AuditedModel, has_attention_mask: bool) -> Iterator[Difference]:
    narrow = audited_model.length - max(1, audited_model.length // 4)
    ids, mask = _build_padded_batch(audited_model, narrow)
    try:
        base = audited_model.logits(ids, mask)
    except UnsupportedInputError:  # texts of one length only
        narrow = audited_model.length
        ids, mask = _build_padded_batch(audited_model, narrow)
        base = audited_model.logits(ids, mask)
    keep = mask if audited_model.predicts_tokens else None
    scale = max_abs_finite(base)
    if has_attention_mask:
        other = torch.where(mask, ids, audited_model.others(audited_model.ids[:, :narrow]))
        moved = _select_positions(audited_model.logits(other, mask), keep)
        yield measure_difference(
            moved, _select_positions(base, keep), "other tokens under the padding", audited_model.exact, scale=scale
        )
        if (gradient := audited_model.compute_input_gradient(ids, mask, keep)) is not None:
            yield measure_zero_gradient(
                gradient[~mask], "gradient by padding", audited_model.exact, scale=max_abs_finite(gradient)
            )
    if narrow < audited_model.length and audited_model.noise == "none":
        more = audited_model.length - narrow
        wide = torch.cat((ids, ids.new_full((len(ids), more), _get_fill_token(audited_model))), dim=1)
        wide_mask = torch.cat((mask, mask.new_zeros(len(ids), more)), dim=1)
        moved = _select_positions(
            audited_model.logits(wide, wide_mask), wide_mask if audited_model.predicts_tokens else None
        )
        yield measure_difference(
            moved,
            _select_positions(base, keep),
            f"{more} more places of padding",
            audited_model.rounding_tolerance,
            scale=scale,
        )
        yield _compare_with_unpadded(audited_model, narrow)


def _compare_with_unpadded(audited_model: AuditedModel, width: int) -> Difference:
    """Texts of one length, so that neighbours stay what they are."""
    text = width - max(1, width // 4)
    ids, mask = audited_model.ids[:, :width].clone(), torch.ones(len(audited_model.ids), width, dtype=torch.bool)
    ids[:, text:], mask[:, text:] = _get_fill_token(audited_model), False
    padded = audited_model.logits(ids, mask.to(ids.device))
    bare = audited_model.logits(ids[:, :text])
    padded = padded[:, :text] if audited_model.predicts_tokens else padded
    return measure_difference(padded, bare, "padding against none", audited_model.rounding_tolerance)


def _build_padded_batch(audited_model: AuditedModel, width: int) -> tuple[Tensor, Tensor]:
    """Texts of different length, padded to one width."""
    ids = audited_model.ids[:, :width].clone()
    lengths = torch.linspace(max(1, width // 2), width - 1, len(ids)).long().to(ids.device)
    mask = torch.arange(width, device=ids.device) < lengths[:, None]
    return ids.masked_fill(~mask, _get_fill_token(audited_model)), mask


def _get_fill_token(audited_model: AuditedModel) -> int:
    return 0 if audited_model.pad_id is None else audited_model.pad_id


def _select_positions(logits: Tensor, position_mask: Tensor | None) -> Tensor:
    return logits if position_mask is None else logits[position_mask]
