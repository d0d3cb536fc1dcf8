"""Batch composition: does the answer to a row depend on which other rows stand beside it?

It must not when a model is scored: the score would then depend on the size of the batches. In training it may (batch
normalisation does so on purpose); that is said, and takes no verdict away.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from headtohead.audit.probe import AuditedModel, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_inconclusive
from headtohead.audit.tolerance import Difference, measure_difference, select_worst

CHECK_NAME = "batch-independence"


def audit_batch_independence(audited_model: AuditedModel) -> CheckResult:
    """A row among other neighbours, in another order, beside padded ones, and alone."""
    if audited_model.noise == "hidden":
        return build_inconclusive(CHECK_NAME)
    scored = select_worst(_compare_in_eval_mode(audited_model))
    trained = _compare_in_training_mode(audited_model) if audited_model.training else None
    modes = "evaluation and training mode" if trained is not None else "evaluation mode"
    tried = f"a row beside other rows, in another order, beside padded rows, and alone; {modes}, {audited_model.how}"
    if not scored.equal:
        return CheckResult(
            CHECK_NAME,
            False,
            tried,
            f"the answer to a row moves with its neighbours: {scored}",
            "The score depends on which rows are scored together, so that it is not a property of the model alone.",
            is_blocking=True,
            failure_reason="depends on its neighbours",
        )
    if trained is not None and not trained.equal:
        return CheckResult(
            CHECK_NAME,
            False,
            tried,
            f"in training mode, the answer to a row moves with its neighbours: {trained}; not in evaluation mode",
            "As with batch normalisation, training depends on the size of the batch. Scores do not.",
            failure_reason="depends on its neighbours while training",
        )
    return CheckResult(
        CHECK_NAME,
        True,
        tried,
        f"the same answer: {scored}",
        "Each row is answered by itself.",
        is_blocking=True,
    )


def _compare_in_eval_mode(audited_model: AuditedModel) -> Iterator[Difference]:
    ids = audited_model.ids
    whole = audited_model.logits(ids)
    beside = torch.cat((ids[:1], audited_model.others(ids[1:])))
    yield measure_difference(audited_model.logits(beside)[:1], whole[:1], "other neighbours", audited_model.exact)
    if "attention_mask" in audited_model.takes:
        mask = torch.ones_like(ids, dtype=torch.bool)
        base = audited_model.logits(ids, mask)[:1]
        mask[1:, audited_model.length // 2 + 1 :] = False
        yield measure_difference(audited_model.logits(beside, mask)[:1], base, "padded neighbours", audited_model.exact)
    if audited_model.noise == "none":  # what is drawn may depend on the place in the batch
        turned = audited_model.logits(ids.flip(0)).flip(0)
        yield measure_difference(turned, whole, "another order", audited_model.rounding_tolerance)
        try:
            yield measure_difference(
                audited_model.logits(ids[1:2]), whole[1:2], "alone", audited_model.rounding_tolerance
            )
        except UnsupportedInputError:
            return  # batches of one size only: nothing else to try


def _compare_in_training_mode(audited_model: AuditedModel) -> Difference:
    ids = audited_model.ids
    whole = audited_model.logits(ids, training=True)
    beside = torch.cat((ids[:1], audited_model.others(ids[1:])))
    return measure_difference(
        audited_model.logits(beside, training=True)[:1], whole[:1], "other neighbours", audited_model.exact
    )
