"""Batch independence: a row's output must not depend on the other rows in its batch.

Otherwise scores depend on the evaluation batch size. A dependence that exists only in training mode, as with batch
normalisation, is reported but does not withhold the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headtohead.audit.model_checks.base import Failure, Measurement, ModelCheck
from headtohead.audit.probe import ModelProbe, UnsupportedInputError
from headtohead.audit.tolerance import measure_difference


class BatchIndependenceCheck(ModelCheck):
    """A row's output does not depend on the other rows."""

    name = "batch-independence"
    is_blocking = True
    has_training_mode = True
    success = ("no output changes", "Each row is scored independently.")
    failure = Failure(
        "the output for a row changes with the other rows",
        "Scores depend on which rows are evaluated together, so they are not a property of the model alone.",
        "depends on other rows of the batch",
    )
    training_failure = Failure(
        "the output for a row changes with the other rows in training mode only",
        "As with batch normalisation, training depends on the batch size. Scores do not.",
        "depends on other rows of the batch while training",
    )

    def describe_procedure(self, probe: ModelProbe) -> str:
        return "a row with other rows replaced, reordered and padded, and alone"

    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        """Compare a row's logits after its neighbours are replaced, padded, reordered or removed."""
        ids = probe.input_ids
        expected = probe.compute_logits(ids, training=training)
        replaced = torch.cat((ids[:1], probe.replace_tokens(ids[1:])))
        logits = probe.compute_logits(replaced, training=training)
        yield measure_difference(logits[:1], expected[:1], "other rows replaced", probe.exact_tolerance)
        if training:
            return
        if "attention_mask" in probe.supported_arguments:
            mask = torch.ones_like(ids, dtype=torch.bool)
            unpadded = probe.compute_logits(ids, mask)
            mask[1:, probe.length // 2 + 1 :] = False
            logits = probe.compute_logits(replaced, mask)
            yield measure_difference(logits[:1], unpadded[:1], "other rows padded", probe.exact_tolerance)
        if probe.can_compare_shapes():
            reordered = probe.compute_logits(ids.flip(0)).flip(0)
            yield measure_difference(reordered, expected, "rows reordered", probe.rounding_tolerance)
            try:
                alone = probe.compute_logits(ids[1:2])
            except UnsupportedInputError:
                yield "batches of one row"
            else:
                yield measure_difference(alone, expected[1:2], "row alone", probe.rounding_tolerance)
