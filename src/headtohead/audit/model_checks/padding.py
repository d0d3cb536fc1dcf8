"""Padding: does the answer depend on what stands under the padding, or on how much of it there is?

Padding that is seen is a flaw and not a cheat: the same text, padded otherwise, is answered otherwise. Models of our
own parts are scored on rows that are padded to the context, so that their scores are theirs and a verdict stays; in a
fine-tuned one, whose batches are padded to their longest row, a score then depends on the neighbours as well.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from headtohead.audit.probe import Refused, Subject
from headtohead.audit.result import Finding, cannot_be_told, does_not_apply
from headtohead.audit.tolerance import Difference, apart, by_gradient, largest, worst

NAME = "padding"


def audit_padding(subject: Subject) -> Finding:
    """Other tokens under the padding, more padding, and none at all. On the right, as batches have it."""
    masked = "attention_mask" in subject.takes
    if not masked and subject.pad_id is None:
        return does_not_apply(NAME, "the model takes no attention_mask, and no padding token is named")
    if subject.length < 4:
        return does_not_apply(NAME, f"a text of {subject.length} leaves no room for padding")
    if subject.noise == "hidden":
        return cannot_be_told(NAME)
    measured = list(_measured(subject, masked))
    if not measured:
        return does_not_apply(NAME, "the model takes texts of one length only, and no attention_mask")
    found = worst(measured)
    under = "other tokens under the padding, gradients by padding, " if masked else ""
    tried = f"{under}more padding, and none at all, on the right; {subject.how}"
    if found.equal:
        return Finding(NAME, True, tried, f"the same answer: {found}", "Padding is not read.")
    return Finding(
        NAME,
        False,
        tried,
        f"the answer to a text moves with its padding: {found}",
        "Padding is read like text: the same words padded otherwise get another answer. Rows that are all padded to "
        "the context, as in task classify, are scored alike, and the verdict stands; padding should be masked.",
        reason="sees padding",
    )


def _measured(subject: Subject, masked: bool) -> Iterator[Difference]:
    narrow = subject.length - max(1, subject.length // 4)
    ids, mask = _texts(subject, narrow)
    try:
        base = subject.logits(ids, mask)
    except Refused:  # texts of one length only
        narrow = subject.length
        ids, mask = _texts(subject, narrow)
        base = subject.logits(ids, mask)
    keep = mask if subject.decoder else None
    scale = largest(base)
    if masked:
        other = torch.where(mask, ids, subject.others(subject.ids[:, :narrow]))
        moved = _kept(subject.logits(other, mask), keep)
        yield apart(moved, _kept(base, keep), "other tokens under the padding", subject.exact, scale=scale)
        if (gradient := subject.input_gradient(ids, mask, keep)) is not None:
            yield by_gradient(gradient[~mask], "gradient by padding", subject.exact, scale=largest(gradient))
    if narrow < subject.length and subject.noise == "none":
        more = subject.length - narrow
        wide = torch.cat((ids, ids.new_full((len(ids), more), _fill(subject))), dim=1)
        wide_mask = torch.cat((mask, mask.new_zeros(len(ids), more)), dim=1)
        moved = _kept(subject.logits(wide, wide_mask), wide_mask if subject.decoder else None)
        yield apart(moved, _kept(base, keep), f"{more} more places of padding", subject.alike, scale=scale)
        yield _against_none(subject, narrow)


def _against_none(subject: Subject, narrow: int) -> Difference:
    """Texts of one length, so that neighbours stay what they are."""
    text = narrow - max(1, narrow // 4)
    ids, mask = subject.ids[:, :narrow].clone(), torch.ones(len(subject.ids), narrow, dtype=torch.bool)
    ids[:, text:], mask[:, text:] = _fill(subject), False
    padded = subject.logits(ids, mask.to(ids.device))
    bare = subject.logits(ids[:, :text])
    padded = padded[:, :text] if subject.decoder else padded
    return apart(padded, bare, "padding against none", subject.alike)


def _texts(subject: Subject, width: int) -> tuple[Tensor, Tensor]:
    """Texts of different length, padded to one width."""
    ids = subject.ids[:, :width].clone()
    lengths = torch.linspace(max(1, width // 2), width - 1, len(ids)).long().to(ids.device)
    mask = torch.arange(width, device=ids.device) < lengths[:, None]
    return ids.masked_fill(~mask, _fill(subject)), mask


def _fill(subject: Subject) -> int:
    return 0 if subject.pad_id is None else subject.pad_id


def _kept(logits: Tensor, keep: Tensor | None) -> Tensor:
    return logits if keep is None else logits[keep]
