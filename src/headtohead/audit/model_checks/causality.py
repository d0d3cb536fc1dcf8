"""Causality: does a decoder see what it is asked to predict? Later tokens are changed, cut off and differentiated by.

By value, because that is what a score is made of; by gradient, because a gradient shows what a lucky value hides. As
the model is scored and as it is trained: a leak that is there in training only makes the training loss worthless, but
not the held-out score.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from headtohead.audit.probe import BUDGET, Refused, Subject
from headtohead.audit.result import Finding, cannot_be_told, does_not_apply
from headtohead.audit.tolerance import Difference, apart, by_gradient, largest, worst

NAME = "causality"
FEW = 6
"""places at which a text is changed when trying all would take too long"""


@dataclass
class _Notes:
    """What could not be tried, and how far ahead the model was seen to look."""

    left_out: list[str] = field(default_factory=list)
    ahead: int = 0


def audit_causality(subject: Subject) -> Finding:
    """A decoder's logits at a place must not depend on any later place."""
    if not subject.decoder:
        return does_not_apply(NAME, "a classifier reads the whole text")
    if subject.length < 2:
        return does_not_apply(NAME, "a context of one token has no future")
    if subject.noise == "hidden":
        return cannot_be_told(NAME)
    notes = _Notes()
    scored = worst(_scored(subject, notes))
    trained = worst(_trained(subject)) if subject.training else None
    tried = _tried(subject, notes, trained is not None)
    if not scored.equal:
        return Finding(
            NAME,
            False,
            tried,
            f"earlier logits move with later tokens: {scored}; places up to {notes.ahead} before the change move",
            "The model is shown what it is asked to predict: its perplexity measures copying, not prediction.",
            serious=True,
            reason="reads the future",
        )
    if trained is not None and not trained.equal:
        return Finding(
            NAME,
            False,
            tried,
            f"in training mode, earlier logits move with later tokens: {trained}; not in evaluation mode",
            "Training is shown the future, so that the training loss means nothing. Held-out scores, taken in "
            "evaluation mode, are honest.",
            reason="reads the future while training",
        )
    return Finding(
        NAME,
        True,
        tried,
        f"no earlier logit moves: {scored}",
        "Every prediction rests on what stands before it.",
        serious=True,
    )


def _tried(subject: Subject, notes: _Notes, trained: bool) -> str:
    places = len(_cuts(subject))
    modes = "evaluation and training mode" if trained else "evaluation mode"
    left = f"; left out: {', '.join(notes.left_out)}" if notes.left_out else ""
    return (
        f"later tokens changed at {places} places of a text of {subject.length}, shorter texts, texts cut off, padded "
        f"texts, gradients by later tokens; {modes}, {subject.how}{left}"
    )


def _cuts(subject: Subject) -> list[int]:
    """Every place, or a few when a pass is expensive."""
    room = 4 * BUDGET // max(1, subject.parameters * subject.length)
    last = subject.length - 1
    if room >= last:
        return list(range(1, last + 1))
    spread = torch.linspace(1, last, max(FEW, room)).round().long().tolist()
    return sorted(set(spread))


def _scored(subject: Subject, notes: _Notes) -> Iterator[Difference]:
    """In evaluation mode."""
    yield from _every_place(subject, notes)
    for length in sorted({subject.length, subject.length // 2 + 1, 3} & set(range(2, subject.length + 1))):
        try:
            yield from _at_length(subject, length)
        except Refused:
            notes.left_out.append(f"texts of {length} tokens (the model refuses them)")
    if "attention_mask" in subject.takes:
        try:
            yield from _padded(subject)
        except Refused:
            notes.left_out.append("padded texts (the model refuses them)")
    half = subject.length // 2
    if half and (gradient := _by_gradient(subject, half, training=False)) is not None:
        yield gradient
    else:
        notes.left_out.append("gradients (no embedding layer sees the tokens)")


def _every_place(subject: Subject, notes: _Notes) -> Iterator[Difference]:
    """One text, changed from every place on."""
    ids = subject.ids[:1]
    whole = subject.logits(ids)
    scale = largest(whole)
    for cut in _cuts(subject):
        before = subject.logits(subject.changed(ids, cut, draw=cut))[:, :cut]
        difference = apart(before, whole[:, :cut], f"tokens from {cut} on changed", subject.exact, scale=scale)
        if not difference.equal:
            notes.ahead = max(notes.ahead, cut - _first_moved(before, whole[:, :cut], difference))
        yield difference


def _first_moved(one: Tensor, other: Tensor, difference: Difference) -> int:
    gap = (one - other).abs().amax((0, 2)).nan_to_num(torch.inf)
    return int((gap > difference.limit * difference.scale).nonzero()[0])


def _at_length(subject: Subject, length: int) -> Iterator[Difference]:
    """Two texts of this length, changed and cut off in the middle."""
    ids, cut = subject.ids[:2, :length], max(1, length // 2)
    whole = subject.logits(ids)
    scale = largest(whole)
    changed = subject.logits(subject.changed(ids, cut))[:, :cut]
    yield apart(changed, whole[:, :cut], f"length {length}, from {cut} on changed", subject.exact, scale=scale)
    if subject.noise == "none":  # what is drawn may depend on the shape
        for end in sorted({1, cut, length - 1}):
            off = subject.logits(ids[:, :end])
            yield apart(off, whole[:, :end], f"length {length}, cut off at {end}", subject.alike, scale=scale)


def _padded(subject: Subject) -> Iterator[Difference]:
    """With a mask of padding: a network may forget its causal mask when it is handed another."""
    ids = subject.ids[:2]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -max(1, subject.length // 4) :] = False
    cut = max(1, subject.length // 2)
    whole = subject.logits(ids, mask)[:, :cut]
    seen = subject.logits(subject.changed(ids, cut), mask)[:, :cut]
    kept = mask[:, :cut]
    yield apart(seen[kept], whole[kept], f"with padding, from {cut} on changed", subject.exact)


def _by_gradient(subject: Subject, cut: int, *, training: bool) -> Difference | None:
    """How logits before the cut move with the embeddings after it."""
    ids = subject.ids[:2]
    gradient = subject.input_gradient(ids, None, slice(None, cut), training=training)
    if gradient is None:
        return None
    later = gradient[:, cut:]
    where = f"gradient of the logits before {cut} by the tokens from there on"
    return by_gradient(later, where, subject.exact, scale=largest(gradient))


def _trained(subject: Subject) -> Iterator[Difference]:
    """In training mode, with the same random draws in every pass: the shapes stay the same."""
    ids = subject.ids[:2]
    whole = subject.logits(ids, training=True)
    scale = largest(whole)
    for cut in sorted({1, max(1, subject.length // 2), subject.length - 1}):
        before = subject.logits(subject.changed(ids, cut), training=True)[:, :cut]
        yield apart(before, whole[:, :cut], f"tokens from {cut} on changed", subject.exact, scale=scale)
    half = max(1, subject.length // 2)
    if (gradient := _by_gradient(subject, half, training=True)) is not None:
        yield gradient
