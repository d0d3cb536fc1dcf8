"""Cached against full: does decoding with a cache say what one pass over the whole text says?

Scores are taken in full passes, so that a wrong cache spoils samples and not scores: no verdict is taken away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headtohead.audit.probe import AuditedModel, PaddingMask, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_inconclusive, build_not_applicable
from headtohead.audit.tolerance import Difference, max_abs_finite, measure_difference, select_worst
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.transformer import Transformer

CHECK_NAME = "kv-cache"
DECODE_STEPS = 8
"""so many tokens are decoded one by one"""


def audit_kv_cache(audited_model: AuditedModel) -> CheckResult:
    """Token by token, in pieces, and with prompts of different length padded on the left."""
    model = audited_model.model
    if not audited_model.is_causal or not isinstance(model, Transformer):
        return build_not_applicable(
            CHECK_NAME, "the model has no cache" if audited_model.is_causal else "an encoder does not decode"
        )
    if audited_model.length < 3:
        return build_not_applicable(CHECK_NAME, f"a text of {audited_model.length} leaves nothing to decode")
    if audited_model.noise == "hidden":
        return build_inconclusive(CHECK_NAME)
    tried = f"a prompt and {DECODE_STEPS} tokens one by one, a text in two pieces, prompts padded on the left; {audited_model.how}"  # noqa: E501
    try:
        found = select_worst(_compare_cached_with_full(audited_model, len(model.layers)))
    except UnsupportedInputError as refusal:
        return CheckResult(
            CHECK_NAME,
            False,
            tried,
            f"a pass with a cache fails: {refusal}",
            _FAILURE_INTERPRETATION,
            failure_reason="its cache fails",
        )
    if found.equal:
        meaning = "Samples are written by the model that is scored."
        return CheckResult(CHECK_NAME, True, tried, f"as in a full pass: {found}", meaning)
    if audited_model.noise == "drawn":
        return build_inconclusive(CHECK_NAME)
    said = f"decoding with a cache differs from a full pass: {found}"
    return CheckResult(CHECK_NAME, False, tried, said, _FAILURE_INTERPRETATION, failure_reason="its cache differs")


_FAILURE_INTERPRETATION = (
    "Samples written with the cache are not what the model says. Scores, taken in full passes, are not affected."
)


def _compare_cached_with_full(audited_model: AuditedModel, num_layers: int) -> Iterator[Difference]:
    ids = audited_model.ids[:2]
    length = ids.shape[1]
    whole = audited_model.logits(ids)
    steps = min(DECODE_STEPS, length - 1)
    for pieces in ([length - steps] + [1] * steps, [length // 2, length - length // 2]):
        said = f"a prompt of {pieces[0]}, then {len(pieces) - 1} {'pieces' if len(pieces) > 2 else 'piece'}"
        yield measure_difference(
            compute_logits_in_chunks(audited_model, ids, pieces, num_layers),
            whole,
            said,
            audited_model.rounding_tolerance,
        )
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, : length // 3] = False
    padded = audited_model.logits(ids, mask)
    pieces = [length - 2, 1, 1]
    scale = max_abs_finite(padded[mask])
    cached = compute_logits_in_chunks(audited_model, ids, pieces, num_layers, mask)
    yield measure_difference(
        cached[mask], padded[mask], "prompts padded on the left", audited_model.rounding_tolerance, scale=scale
    )


def compute_logits_in_chunks(
    audited_model: AuditedModel,
    input_ids: Tensor,
    chunk_sizes: Sequence[int],
    num_layers: int,
    attention_mask: PaddingMask | None = None,
) -> Tensor:
    """The logits, computed piece by piece with a cache."""
    assert sum(chunk_sizes) == input_ids.shape[1]
    store, start, said = KVCache(num_layers), 0, []
    for size in chunk_sizes:
        part = slice(start, start + size)
        said.append(
            audited_model.logits(
                input_ids[:, part], None if attention_mask is None else attention_mask[:, part], cache=store
            )
        )
        start += size
    return torch.cat(said, dim=1)
