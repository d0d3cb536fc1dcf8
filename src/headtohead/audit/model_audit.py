"""Run all checks on a trained model, most important first."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from headtohead.audit.model_checks.attention_impl import AttentionImplementationCheck
from headtohead.audit.model_checks.attention_weights import check_attention_weights
from headtohead.audit.model_checks.base import ModelCheck
from headtohead.audit.model_checks.batch import BatchIndependenceCheck
from headtohead.audit.model_checks.causality import CausalityCheck
from headtohead.audit.model_checks.current_token import CURRENT_TOKEN_CHECK_NAME, check_current_token
from headtohead.audit.model_checks.determinism import DeterminismCheck
from headtohead.audit.model_checks.initialization import check_gradients
from headtohead.audit.model_checks.kv_cache import KVCacheCheck
from headtohead.audit.model_checks.padding import PaddingCheck
from headtohead.audit.model_checks.positions import check_position_signals
from headtohead.audit.probe import InputIds, ModelProbe, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.config.tasks import Target

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
MODEL_CHECKS: dict[str, Callable[[ModelProbe], CheckResult]] = {
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
        pad_id: Padding token, for networks that recognise padding by its token.
        input_ids: Token ids to run the model on, shape (batch, length); random by default.
        audit_training_mode: Check causality and batch independence in training mode as well.
        seed: Seed for all random draws.
    """
    probe = ModelProbe(
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
    if probe.compute_logits(probe.input_ids).isnan().any():
        return [
            CheckResult(
                "finite-logits",
                False,
                f"a pass over {len(probe.input_ids)} texts of {probe.length} tokens; {probe.setup_description}",
                "some logits are NaN",
                "No score of the model is meaningful, and no other check was run.",
                is_blocking=True,
                failure_reason="logits are NaN",
            )
        ]
    return [_run_check(name, probe) for name in MODEL_CHECKS]


def _run_check(name: str, probe: ModelProbe) -> CheckResult:
    try:
        return MODEL_CHECKS[name](probe)
    except UnsupportedInputError as error:
        return build_not_applicable(name, f"the model does not support the input of this check: {error}")
