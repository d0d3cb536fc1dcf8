"""Batch independence: a sequence's output must not depend on the other sequences in its batch.

Otherwise scores depend on the evaluation batch size. A dependence that exists only in training mode, as with batch
normalization, is reported but does not withhold the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headtohead.audit.audited_model import AuditedModel, UnsupportedInputError
from headtohead.audit.model_checks.base import FailureWording, Measurement, ModelCheck, SuccessWording
from headtohead.audit.tolerance import measure_tensor_difference


class BatchIndependenceCheck(ModelCheck):
    """A sequence's output does not depend on the other sequences in its batch."""

    name = "batch-independence"
    is_blocking = True
    has_training_mode = True
    success = SuccessWording("no output changes", "Each row is scored independently.")
    failure = FailureWording(
        "the output for a row changes with the other rows",
        "Scores depend on which rows are evaluated together, so they are not a property of the model alone.",
        "depends on other rows of the batch",
    )
    training_failure = FailureWording(
        "the output for a row changes with the other rows in training mode only",
        "As with batch normalization, training depends on the batch size. Scores do not.",
        "depends on other rows of the batch while training",
    )

    def describe_procedure(self, audited_model: AuditedModel) -> str:
        return "a row with other rows replaced, reordered and padded, and alone"

    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        """Compare a sequence's logits after the others in its batch are replaced, padded, reordered or removed."""
        ids = audited_model.input_ids
        expected = audited_model.compute_logits(ids, training=training)
        replaced_ids = torch.cat((ids[:1], audited_model.replace_tokens(ids[1:])))
        logits = audited_model.compute_logits(replaced_ids, training=training)
        yield measure_tensor_difference(logits[:1], expected[:1], "other rows replaced", audited_model.exact_tolerance)
        if training:
            return
        if "attention_mask" in audited_model.supported_arguments:
            mask = torch.ones_like(ids, dtype=torch.bool)
            unpadded_logits = audited_model.compute_logits(ids, mask)
            mask[1:, audited_model.input_length // 2 + 1 :] = False
            logits = audited_model.compute_logits(replaced_ids, mask)
            yield measure_tensor_difference(
                logits[:1], unpadded_logits[:1], "other rows padded", audited_model.exact_tolerance
            )
        if audited_model.can_compare_shapes():
            reordered_logits = audited_model.compute_logits(ids.flip(0)).flip(0)
            yield measure_tensor_difference(
                reordered_logits, expected, "rows reordered", audited_model.rounding_tolerance
            )
            try:
                single_logits = audited_model.compute_logits(ids[1:2])
            except UnsupportedInputError:
                yield "batches of one row"
            else:
                yield measure_tensor_difference(
                    single_logits, expected[1:2], "row alone", audited_model.rounding_tolerance
                )
