"""Causality: a decoder's logits at a position must not depend on later tokens.

Later tokens are replaced and cut off, and logits are differentiated by their embeddings: scores are computed from
values, and a gradient shows a dependence that the values at one input hide. A leak in training mode only makes the
training loss meaningless, but not the held-out score.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from headtohead.audit.model_checks.base import Failure, Measurement, ModelCheck
from headtohead.audit.probe import MAX_PARAMETER_TOKENS, ModelProbe, UnsupportedInputError
from headtohead.audit.tolerance import (
    Difference,
    max_abs_finite,
    measure_difference,
    measure_zero_gradient,
)

MIN_CUTS = 6
"""positions from which tokens are replaced if trying every position takes too long"""


class CausalityCheck(ModelCheck):
    """A decoder's logits at a position do not depend on any later token."""

    name = "causality"
    is_blocking = True
    has_training_mode = True
    success = ("no earlier logit changes", "Every prediction depends on preceding tokens only.")
    failure = Failure(
        "earlier logits change with later tokens",
        "The model sees the tokens that it has to predict: its perplexity measures copying, not prediction.",
        "reads the future",
    )
    training_failure = Failure(
        "earlier logits change with later tokens in training mode only",
        "The training loss is meaningless, because training sees the future. Held-out scores are computed in "
        "evaluation mode and remain valid.",
        "reads the future while training",
    )

    def find_inapplicable_reason(self, probe: ModelProbe) -> str:
        if not probe.is_causal:
            return "the model is an encoder, which reads the whole text"
        return "a context of one token has no later tokens" if probe.length < 2 else ""

    def describe_procedure(self, probe: ModelProbe) -> str:
        return (
            f"later tokens replaced from {len(_select_cuts(probe))} positions of a text of {probe.length} tokens and "
            "of shorter texts, texts cut off, padded texts, gradients by later tokens"
        )

    def describe_violation(self, differences: list[Difference]) -> str:
        lookahead = max(difference.lookahead for difference in differences)
        return f"{super().describe_violation(differences)}; logits up to {lookahead} positions before the change differ"

    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        half = probe.length // 2
        cuts = sorted({1, half, probe.length - 1}) if training else _select_cuts(probe)
        yield from _compare_cuts(probe, cuts, training=training)
        lengths = {probe.length} if training else {3, half + 1, probe.length}
        for length in sorted(length for length in lengths if 2 <= length <= probe.length):
            try:
                yield from _compare_at_length(probe, length, training=training)
            except UnsupportedInputError:
                yield f"texts of {length} tokens"
        if "attention_mask" in probe.supported_arguments and not training:
            try:
                yield _compare_padded(probe)
            except UnsupportedInputError:
                yield "padded texts"
        gradient = probe.compute_input_gradient(probe.input_ids[:2], None, slice(None, half), training=training)
        if gradient is None:
            yield "gradients (no embedding layer receives the token ids)"
        else:
            label = f"gradient of the logits before {half} by later tokens"
            scale = max_abs_finite(gradient)
            yield measure_zero_gradient(gradient[:, half:], label, probe.exact_tolerance, scale=scale)


def _select_cuts(probe: ModelProbe) -> list[int]:
    """Return every position, or a few if passes are expensive."""
    affordable = 4 * MAX_PARAMETER_TOKENS // max(1, probe.num_parameters * probe.length)
    last = probe.length - 1
    if affordable >= last:
        return list(range(1, last + 1))
    return sorted(set(torch.linspace(1, last, max(MIN_CUTS, affordable)).round().long().tolist()))


def _compare_cuts(probe: ModelProbe, cuts: Sequence[int], *, training: bool) -> Iterator[Difference]:
    """Replace the tokens from each of these positions on."""
    ids = probe.input_ids[: 2 if training else 1]
    expected = probe.compute_logits(ids, training=training)
    scale = max_abs_finite(expected)
    for cut in cuts:
        replaced = probe.replace_tokens_from(ids, cut, draw_index=cut)
        logits, before = probe.compute_logits(replaced, training=training)[:, :cut], expected[:, :cut]
        label = f"tokens replaced from {cut} on"
        difference = measure_difference(logits, before, label, probe.exact_tolerance, scale=scale)
        if difference.is_within_tolerance:
            yield difference
        else:
            yield replace(difference, lookahead=cut - _find_first_changed_position(logits, before, difference))


def _find_first_changed_position(actual: Tensor, expected: Tensor, difference: Difference) -> int:
    changes = (actual - expected).abs().amax((0, 2)).nan_to_num(torch.inf)
    return int((changes > difference.tolerance * difference.scale).nonzero()[0])


def _compare_at_length(probe: ModelProbe, length: int, *, training: bool) -> Iterator[Difference]:
    """Replace the second half of texts of this length, and cut it off."""
    ids, cut = probe.input_ids[:2, :length], length // 2
    expected = probe.compute_logits(ids, training=training)
    scale = max_abs_finite(expected)
    logits = probe.compute_logits(probe.replace_tokens_from(ids, cut), training=training)[:, :cut]
    label = f"length {length}, tokens replaced from {cut} on"
    yield measure_difference(logits, expected[:, :cut], label, probe.exact_tolerance, scale=scale)
    if probe.can_compare_shapes(training=training):
        for end in sorted({1, cut, length - 1}):
            logits = probe.compute_logits(ids[:, :end], training=training)
            label = f"length {length}, cut off at {end}"
            yield measure_difference(logits, expected[:, :end], label, probe.rounding_tolerance, scale=scale)


def _compare_padded(probe: ModelProbe) -> Difference:
    """Replace later tokens of padded texts: a network may drop its causal mask if it receives a padding mask."""
    ids, cut = probe.input_ids[:2], probe.length // 2
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -max(1, probe.length // 4) :] = False
    kept = mask[:, :cut]
    expected = probe.compute_logits(ids, mask)[:, :cut][kept]
    logits = probe.compute_logits(probe.replace_tokens_from(ids, cut), mask)[:, :cut][kept]
    return measure_difference(logits, expected, f"with padding, tokens replaced from {cut} on", probe.exact_tolerance)
