"""Causality: a decoder's logits at a position must not depend on later tokens.

Later tokens are replaced and removed, and logits are differentiated with respect to their embeddings. Replacement tests
the logits that scores are computed from; gradients reveal dependences that a single input may hide. A leak that exists
only in training mode invalidates the training loss, but not held-out scores.
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

MIN_START_POSITIONS = 6
"""minimum number of start positions if trying all of them takes too long"""


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
        """Describe which later tokens are replaced, and at which text lengths."""
        num_positions = len(_select_start_positions(probe))
        return (
            f"later tokens replaced from {num_positions} positions of a text of {probe.length} tokens and "
            "of shorter texts, texts cut off, padded texts, gradients by later tokens"
        )

    def describe_violation(self, differences: list[Difference]) -> str:
        lookahead = max(difference.lookahead for difference in differences)
        return f"{super().describe_violation(differences)}; logits up to {lookahead} positions before the change differ"

    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        """Compare logits before and after later tokens are replaced, cut off or padded; check gradients with respect to
        later tokens.
        """
        half = probe.length // 2
        start_positions = sorted({1, half, probe.length - 1}) if training else _select_start_positions(probe)
        yield from _compare_replaced_tokens(probe, start_positions, training=training)
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


def _select_start_positions(probe: ModelProbe) -> list[int]:
    """Return the positions from which tokens are replaced: all of them, or a few if passes are expensive."""
    num_affordable = 4 * MAX_PARAMETER_TOKENS // max(1, probe.num_parameters * probe.length)
    last_position = probe.length - 1
    if num_affordable >= last_position:
        return list(range(1, last_position + 1))
    return sorted(
        set(torch.linspace(1, last_position, max(MIN_START_POSITIONS, num_affordable)).round().long().tolist())
    )


def _compare_replaced_tokens(
    probe: ModelProbe, start_positions: Sequence[int], *, training: bool
) -> Iterator[Difference]:
    """Yield the change in earlier logits when the tokens from each of these positions on are replaced."""
    ids = probe.input_ids[: 2 if training else 1]
    expected = probe.compute_logits(ids, training=training)
    scale = max_abs_finite(expected)
    for start in start_positions:
        replaced = probe.replace_tokens_from(ids, start, draw_index=start)
        logits, expected_before = probe.compute_logits(replaced, training=training)[:, :start], expected[:, :start]
        label = f"tokens replaced from {start} on"
        difference = measure_difference(logits, expected_before, label, probe.exact_tolerance, scale=scale)
        if difference.is_within_tolerance:
            yield difference
        else:
            yield replace(
                difference, lookahead=start - _find_first_changed_position(logits, expected_before, difference)
            )


def _find_first_changed_position(actual: Tensor, expected: Tensor, difference: Difference) -> int:
    """Return the first position whose logits differ by more than the tolerance."""
    changes = (actual - expected).abs().amax((0, 2)).nan_to_num(torch.inf)
    return int((changes > difference.tolerance * difference.scale).nonzero()[0])


def _compare_at_length(probe: ModelProbe, length: int, *, training: bool) -> Iterator[Difference]:
    """Yield the change in the first half of the logits when the second half of a text is replaced or removed."""
    ids, start = probe.input_ids[:2, :length], length // 2
    expected = probe.compute_logits(ids, training=training)
    scale = max_abs_finite(expected)
    logits = probe.compute_logits(probe.replace_tokens_from(ids, start), training=training)[:, :start]
    label = f"length {length}, tokens replaced from {start} on"
    yield measure_difference(logits, expected[:, :start], label, probe.exact_tolerance, scale=scale)
    if probe.can_compare_shapes(training=training):
        for end in sorted({1, start, length - 1}):
            logits = probe.compute_logits(ids[:, :end], training=training)
            label = f"length {length}, cut off at {end}"
            yield measure_difference(logits, expected[:, :end], label, probe.rounding_tolerance, scale=scale)


def _compare_padded(probe: ModelProbe) -> Difference:
    """Return the change in earlier logits when later tokens in padded texts are replaced.

    A network may drop its causal mask if it receives a padding mask.
    """
    ids, start = probe.input_ids[:2], probe.length // 2
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -max(1, probe.length // 4) :] = False
    is_content = mask[:, :start]
    expected = probe.compute_logits(ids, mask)[:, :start][is_content]
    logits = probe.compute_logits(probe.replace_tokens_from(ids, start), mask)[:, :start][is_content]
    return measure_difference(logits, expected, f"with padding, tokens replaced from {start} on", probe.exact_tolerance)
