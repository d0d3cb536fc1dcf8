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

from headtohead.audit.probe import MAX_PARAMETER_TOKENS, AuditedModel, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_inconclusive, build_not_applicable
from headtohead.audit.tolerance import (
    Difference,
    max_abs_finite,
    measure_difference,
    measure_zero_gradient,
    select_worst,
)

CHECK_NAME = "causality"
MIN_CUTS = 6
"""places at which a text is changed when trying all would take too long"""


@dataclass
class _CausalityNotes:
    """What could not be tried, and how far ahead the model was seen to look."""

    left_out: list[str] = field(default_factory=list)
    max_lookahead: int = 0


def audit_causality(audited_model: AuditedModel) -> CheckResult:
    """A decoder's logits at a place must not depend on any later place."""
    if not audited_model.is_causal:
        return build_not_applicable(CHECK_NAME, "a classifier reads the whole text")
    if audited_model.length < 2:
        return build_not_applicable(CHECK_NAME, "a context of one token has no future")
    if audited_model.noise == "hidden":
        return build_inconclusive(CHECK_NAME)
    notes = _CausalityNotes()
    scored = select_worst(_compare_in_eval_mode(audited_model, notes))
    trained = select_worst(_compare_in_training_mode(audited_model)) if audited_model.training else None
    tried = _describe_procedure(audited_model, notes, trained is not None)
    if not scored.equal:
        return CheckResult(
            CHECK_NAME,
            False,
            tried,
            f"earlier logits move with later tokens: {scored}; places up to {notes.max_lookahead} before the change move",  # noqa: E501
            "The model is shown what it is asked to predict: its perplexity measures copying, not prediction.",
            is_blocking=True,
            failure_reason="reads the future",
        )
    if trained is not None and not trained.equal:
        return CheckResult(
            CHECK_NAME,
            False,
            tried,
            f"in training mode, earlier logits move with later tokens: {trained}; not in evaluation mode",
            "Training is shown the future, so that the training loss means nothing. Held-out scores, taken in "
            "evaluation mode, are honest.",
            failure_reason="reads the future while training",
        )
    return CheckResult(
        CHECK_NAME,
        True,
        tried,
        f"no earlier logit moves: {scored}",
        "Every prediction rests on what stands before it.",
        is_blocking=True,
    )


def _describe_procedure(audited_model: AuditedModel, notes: _CausalityNotes, has_training_mode: bool) -> str:
    places = len(_select_cuts(audited_model))
    modes = "evaluation and training mode" if has_training_mode else "evaluation mode"
    left = f"; left out: {', '.join(notes.left_out)}" if notes.left_out else ""
    return (
        f"later tokens changed at {places} places of a text of {audited_model.length}, shorter texts, texts cut off, padded "  # noqa: E501
        f"texts, gradients by later tokens; {modes}, {audited_model.how}{left}"
    )


def _select_cuts(audited_model: AuditedModel) -> list[int]:
    """Every place, or a few when a pass is expensive."""
    room = 4 * MAX_PARAMETER_TOKENS // max(1, audited_model.parameters * audited_model.length)
    last = audited_model.length - 1
    if room >= last:
        return list(range(1, last + 1))
    spread = torch.linspace(1, last, max(MIN_CUTS, room)).round().long().tolist()
    return sorted(set(spread))


def _compare_in_eval_mode(audited_model: AuditedModel, notes: _CausalityNotes) -> Iterator[Difference]:
    """In evaluation mode."""
    yield from _compare_all_cuts(audited_model, notes)
    for length in sorted(
        {audited_model.length, audited_model.length // 2 + 1, 3} & set(range(2, audited_model.length + 1))
    ):
        try:
            yield from _compare_at_length(audited_model, length)
        except UnsupportedInputError:
            notes.left_out.append(f"texts of {length} tokens (the model refuses them)")
    if "attention_mask" in audited_model.takes:
        try:
            yield from _compare_padded(audited_model)
        except UnsupportedInputError:
            notes.left_out.append("padded texts (the model refuses them)")
    half = audited_model.length // 2
    if half and (gradient := _measure_future_gradient(audited_model, half, training=False)) is not None:
        yield gradient
    else:
        notes.left_out.append("gradients (no embedding layer sees the tokens)")


def _compare_all_cuts(audited_model: AuditedModel, notes: _CausalityNotes) -> Iterator[Difference]:
    """One text, changed from every place on."""
    ids = audited_model.ids[:1]
    whole = audited_model.logits(ids)
    scale = max_abs_finite(whole)
    for cut in _select_cuts(audited_model):
        before = audited_model.logits(audited_model.replace_tokens_from(ids, cut, draw_index=cut))[:, :cut]
        difference = measure_difference(
            before, whole[:, :cut], f"tokens from {cut} on changed", audited_model.exact, scale=scale
        )
        if not difference.equal:
            notes.max_lookahead = max(
                notes.max_lookahead, cut - _find_first_changed_position(before, whole[:, :cut], difference)
            )
        yield difference


def _find_first_changed_position(actual: Tensor, expected: Tensor, difference: Difference) -> int:
    gap = (actual - expected).abs().amax((0, 2)).nan_to_num(torch.inf)
    return int((gap > difference.limit * difference.scale).nonzero()[0])


def _compare_at_length(audited_model: AuditedModel, length: int) -> Iterator[Difference]:
    """Two texts of this length, changed and cut off in the middle."""
    ids, cut = audited_model.ids[:2, :length], max(1, length // 2)
    whole = audited_model.logits(ids)
    scale = max_abs_finite(whole)
    changed = audited_model.logits(audited_model.replace_tokens_from(ids, cut))[:, :cut]
    yield measure_difference(
        changed, whole[:, :cut], f"length {length}, from {cut} on changed", audited_model.exact, scale=scale
    )
    if audited_model.noise == "none":  # what is drawn may depend on the shape
        for end in sorted({1, cut, length - 1}):
            off = audited_model.logits(ids[:, :end])
            yield measure_difference(
                off, whole[:, :end], f"length {length}, cut off at {end}", audited_model.rounding_tolerance, scale=scale
            )


def _compare_padded(audited_model: AuditedModel) -> Iterator[Difference]:
    """With a mask of padding: a network may forget its causal mask when it is handed another."""
    ids = audited_model.ids[:2]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -max(1, audited_model.length // 4) :] = False
    cut = max(1, audited_model.length // 2)
    whole = audited_model.logits(ids, mask)[:, :cut]
    seen = audited_model.logits(audited_model.replace_tokens_from(ids, cut), mask)[:, :cut]
    kept = mask[:, :cut]
    yield measure_difference(seen[kept], whole[kept], f"with padding, from {cut} on changed", audited_model.exact)


def _measure_future_gradient(audited_model: AuditedModel, cut: int, *, training: bool) -> Difference | None:
    """How logits before the cut move with the embeddings after it."""
    ids = audited_model.ids[:2]
    gradient = audited_model.compute_input_gradient(ids, None, slice(None, cut), training=training)
    if gradient is None:
        return None
    later = gradient[:, cut:]
    where = f"gradient of the logits before {cut} by the tokens from there on"
    return measure_zero_gradient(later, where, audited_model.exact, scale=max_abs_finite(gradient))


def _compare_in_training_mode(audited_model: AuditedModel) -> Iterator[Difference]:
    """In training mode, with the same random draws in every pass: the shapes stay the same."""
    ids = audited_model.ids[:2]
    whole = audited_model.logits(ids, training=True)
    scale = max_abs_finite(whole)
    for cut in sorted({1, max(1, audited_model.length // 2), audited_model.length - 1}):
        before = audited_model.logits(audited_model.replace_tokens_from(ids, cut), training=True)[:, :cut]
        yield measure_difference(
            before, whole[:, :cut], f"tokens from {cut} on changed", audited_model.exact, scale=scale
        )
    half = max(1, audited_model.length // 2)
    if (gradient := _measure_future_gradient(audited_model, half, training=True)) is not None:
        yield gradient
