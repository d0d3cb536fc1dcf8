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

from headtohead.audit.audited_model import MAX_PARAMETER_TOKENS, AuditedModel, UnsupportedInputError
from headtohead.audit.model_checks.base import FailureWording, Measurement, ModelCheck, SuccessWording
from headtohead.audit.tolerance import (
    Difference,
    max_abs_finite,
    measure_tensor_difference,
    measure_zero_gradient,
)

MIN_REPLACED_POSITIONS = 6
"""minimum number of positions from which tokens are replaced, if trying all of them takes too long"""


class CausalityCheck(ModelCheck):
    """A decoder's logits at a position do not depend on any later token."""

    name = "causality"
    is_blocking = True
    has_training_mode = True
    success = SuccessWording("no earlier logit changes", "Every prediction depends on preceding tokens only.")
    failure = FailureWording(
        "earlier logits change with later tokens",
        "The model sees the tokens that it has to predict: its perplexity measures copying, not prediction.",
        "reads the future",
    )
    training_failure = FailureWording(
        "earlier logits change with later tokens in training mode only",
        "The training loss is meaningless, because training sees the future. Held-out scores are computed in "
        "evaluation mode and remain valid.",
        "reads the future while training",
    )

    def find_inapplicable_reason(self, audited_model: AuditedModel) -> str:
        if not audited_model.is_causal:
            return "the model is an encoder, which reads the whole sequence"
        return "a context of one token has no later tokens" if audited_model.input_length < 2 else ""

    def describe_procedure(self, audited_model: AuditedModel) -> str:
        """Describe which later tokens are replaced, and at which sequence lengths."""
        num_positions = len(_select_start_positions(audited_model))
        return (
            f"later tokens replaced from {num_positions} positions of a sequence of {audited_model.input_length} "
            "tokens and of shorter sequences, sequences cut off, padded sequences, gradients by later tokens"
        )

    def describe_violation(self, differences: list[Difference]) -> str:
        lookahead = max(difference.lookahead for difference in differences)
        return f"{super().describe_violation(differences)}; logits up to {lookahead} positions before the change differ"

    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        """Compare logits before and after later tokens are replaced, cut off or padded; check gradients with respect to
        later tokens.
        """
        half = audited_model.input_length // 2
        start_positions = (
            sorted({1, half, audited_model.input_length - 1}) if training else _select_start_positions(audited_model)
        )
        yield from _compare_replaced_tokens(audited_model, start_positions, training=training)
        lengths = {audited_model.input_length} if training else {3, half + 1, audited_model.input_length}
        for length in sorted(length for length in lengths if 2 <= length <= audited_model.input_length):
            try:
                yield from _compare_at_length(audited_model, length, training=training)
            except UnsupportedInputError:
                yield f"sequences of {length} tokens"
        if "attention_mask" in audited_model.supported_arguments and not training:
            try:
                yield _compare_padded(audited_model)
            except UnsupportedInputError:
                yield "padded sequences"
        gradient = audited_model.compute_input_gradient(
            audited_model.input_ids[:2], None, slice(None, half), training=training
        )
        if gradient is None:
            yield "gradients (no embedding layer receives the token ids)"
        else:
            label = f"gradient of the logits before {half} by later tokens"
            scale = max_abs_finite(gradient)
            yield measure_zero_gradient(gradient[:, half:], label, audited_model.exact_tolerance, scale=scale)


def _select_start_positions(audited_model: AuditedModel) -> list[int]:
    """Return the positions from which causality replaces tokens: all of them, or a few if passes are expensive."""
    num_affordable = 4 * MAX_PARAMETER_TOKENS // max(1, audited_model.num_parameters * audited_model.input_length)
    last_position = audited_model.input_length - 1
    if num_affordable >= last_position:
        return list(range(1, last_position + 1))
    return sorted(
        set(torch.linspace(1, last_position, max(MIN_REPLACED_POSITIONS, num_affordable)).round().long().tolist())
    )


def _compare_replaced_tokens(
    audited_model: AuditedModel, start_positions: Sequence[int], *, training: bool
) -> Iterator[Difference]:
    """Yield the causality violation per start position: changes in earlier logits if the rest is replaced."""
    ids = audited_model.input_ids[: 2 if training else 1]
    expected = audited_model.compute_logits(ids, training=training)
    scale = max_abs_finite(expected)
    for start in start_positions:
        replaced_ids = audited_model.replace_tokens_from(ids, start, draw_index=start)
        earlier_logits = audited_model.compute_logits(replaced_ids, training=training)[:, :start]
        expected_logits = expected[:, :start]
        label = f"tokens replaced from {start} on"
        tolerance = audited_model.exact_tolerance
        difference = measure_tensor_difference(earlier_logits, expected_logits, label, tolerance, scale=scale)
        if difference.is_within_tolerance:
            yield difference
        else:
            first_changed = _find_first_changed_position(earlier_logits, expected_logits, difference)
            yield replace(difference, lookahead=start - first_changed)


def _find_first_changed_position(actual: Tensor, expected: Tensor, difference: Difference) -> int:
    """Return the first position whose logits differ by more than the tolerance."""
    changes = (actual - expected).abs().amax((0, 2)).nan_to_num(torch.inf)
    return int((changes > difference.tolerance * difference.scale).nonzero()[0])


def _compare_at_length(audited_model: AuditedModel, length: int, *, training: bool) -> Iterator[Difference]:
    """Yield causality violations at a length: changes in the first half of the logits if the rest is replaced."""
    ids, start = audited_model.input_ids[:2, :length], length // 2
    expected = audited_model.compute_logits(ids, training=training)
    scale = max_abs_finite(expected)
    logits = audited_model.compute_logits(audited_model.replace_tokens_from(ids, start), training=training)[:, :start]
    label = f"length {length}, tokens replaced from {start} on"
    yield measure_tensor_difference(logits, expected[:, :start], label, audited_model.exact_tolerance, scale=scale)
    if audited_model.can_compare_shapes(training=training):
        for end in sorted({1, start, length - 1}):
            logits = audited_model.compute_logits(ids[:, :end], training=training)
            label = f"length {length}, cut off at {end}"
            yield measure_tensor_difference(
                logits, expected[:, :end], label, audited_model.rounding_tolerance, scale=scale
            )


def _compare_padded(audited_model: AuditedModel) -> Difference:
    """Return the causality violation in padded sequences: the change in earlier logits if later tokens are replaced.

    A network may drop its causal mask if it receives a padding mask.
    """
    ids, start = audited_model.input_ids[:2], audited_model.input_length // 2
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, -max(1, audited_model.input_length // 4) :] = False
    is_content = mask[:, :start]
    expected = audited_model.compute_logits(ids, mask)[:, :start][is_content]
    logits = audited_model.compute_logits(audited_model.replace_tokens_from(ids, start), mask)[:, :start][is_content]
    label = f"with padding, tokens replaced from {start} on"
    return measure_tensor_difference(logits, expected, label, audited_model.exact_tolerance)
