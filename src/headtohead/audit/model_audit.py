"""Run all checks on a trained model, most important first, and those on an untrained model."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from headtohead.audit.audited_model import AuditedModel, InputIds, UnsupportedInputError
from headtohead.audit.model_checks.attention_impl import AttentionImplementationCheck
from headtohead.audit.model_checks.attention_weights import check_attention_weights
from headtohead.audit.model_checks.base import ModelCheck
from headtohead.audit.model_checks.batch import BatchIndependenceCheck
from headtohead.audit.model_checks.causality import CausalityCheck
from headtohead.audit.model_checks.current_token import CURRENT_TOKEN_CHECK_NAME, check_current_token
from headtohead.audit.model_checks.determinism import DeterminismCheck
from headtohead.audit.model_checks.initialization import check_gradients, check_initial_loss
from headtohead.audit.model_checks.kv_cache import KVCacheCheck
from headtohead.audit.model_checks.padding import PaddingCheck
from headtohead.audit.model_checks.positions import check_position_signals
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.config.tasks import Target
from headtohead.data.batches import Batch

COMPARISON_CHECKS: dict[str, ModelCheck] = {
    check.name: check
    for check in (
        CausalityCheck(),
        BatchIndependenceCheck(),
        DeterminismCheck(),
        PaddingCheck(),
        AttentionImplementationCheck(),
        KVCacheCheck(),
    )
}
"""checks that the conformance suite for parts applies too"""
MODEL_CHECKS: dict[str, Callable[[AuditedModel], CheckResult]] = {
    **{name: check.run for name, check in COMPARISON_CHECKS.items()},
    "attention-weights": check_attention_weights,
    "position-signals": check_position_signals,
    "gradients": check_gradients,
    CURRENT_TOKEN_CHECK_NAME: check_current_token,
}


def audit_model(
    model: nn.Module,
    *,
    target: Target,
    vocab_size: int,
    context: int,
    num_classes: int | None = None,
    pad_id: int | None = None,
    input_ids: InputIds | None = None,
    audit_training_mode: bool = True,
    seed: int = 0,
) -> list[CheckResult]:
    """Audit a copy of any model: one composed of parts, a pretrained or custom model, or a bare nn.Module.

    Args:
        model: The model; it is not modified.
        target: What the model predicts.
        vocab_size: Size of the vocabulary.
        context: Context length in tokens.
        num_classes: Number of classes; required for classifiers.
        pad_id: Padding token, for networks that recognize padding by its token.
        input_ids: Token ids to run the model on, shape (batch, length); random by default.
        audit_training_mode: Check causality and batch independence in training mode as well.
        seed: Seed for all random draws.
    """
    audited_model = AuditedModel(
        model,
        target=target,
        vocab_size=vocab_size,
        context=context,
        num_classes=num_classes,
        pad_id=pad_id,
        input_ids=input_ids,
        audit_training_mode=audit_training_mode,
        seed=seed,
    )
    batch_size, length = audited_model.input_ids.shape
    if audited_model.compute_logits(audited_model.input_ids).isnan().any():
        return [
            CheckResult(
                "finite-logits",
                False,
                f"a pass over {batch_size} sequences of {length} tokens; {audited_model.setup_description}",
                "some logits are NaN",
                "No score of the model is meaningful, and no other check was run.",
                is_blocking=True,
                failure_reason="logits are NaN",
            )
        ]
    return [_run_model_check(name, audited_model) for name in MODEL_CHECKS]


def _run_model_check(name: str, audited_model: AuditedModel) -> CheckResult:
    """Run one of `MODEL_CHECKS` for an audit of a model. It does not apply if the model rejects its inputs."""
    try:
        return MODEL_CHECKS[name](audited_model)
    except UnsupportedInputError as error:
        return build_inapplicable_result(name, f"the model does not support the input of this check: {error}")


def audit_untrained_model(
    model: nn.Module, batch: Batch, *, target: Target, vocab_size: int, num_classes: int | None = None, seed: int = 0
) -> list[CheckResult]:
    """Audit a model before its training, on one labeled batch."""
    audited_model = AuditedModel(
        model,
        target=target,
        vocab_size=vocab_size,
        context=batch.input_ids.shape[1],
        num_classes=num_classes,
        seed=seed,
        perturb_if_insensitive=False,
    )
    return [check_initial_loss(audited_model, batch, vocab_size if num_classes is None else num_classes)]
