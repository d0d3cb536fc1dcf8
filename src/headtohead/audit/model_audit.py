"""Every audit of a model, in the order in which they matter."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from headtohead.audit.model_checks.attention_impl import audit_attention_implementations
from headtohead.audit.model_checks.attention_weights import audit_attentions
from headtohead.audit.model_checks.batch import audit_batch_independence
from headtohead.audit.model_checks.causality import audit_causality
from headtohead.audit.model_checks.determinism import audit_determinism
from headtohead.audit.model_checks.initialization import audit_gradients
from headtohead.audit.model_checks.kv_cache import audit_kv_cache
from headtohead.audit.model_checks.padding import audit_padding
from headtohead.audit.model_checks.positions import audit_position_signals
from headtohead.audit.probe import AuditedModel, InputIds, UnsupportedInputError
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.config.tasks import Target

MODEL_AUDITS: dict[str, Callable[[AuditedModel], CheckResult]] = {
    "causality": audit_causality,
    "batch-independence": audit_batch_independence,
    "determinism": audit_determinism,
    "padding": audit_padding,
    "attention-implementations": audit_attention_implementations,
    "kv-cache": audit_kv_cache,
    "attention-weights": audit_attentions,
    "position-signals": audit_position_signals,
    "gradients": audit_gradients,
}
"""by the name of what they find"""


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
    """Audit any model: ours, a pretrained one, a user's own behind the protocol, or a bare nn.Module.

    The model is not disturbed: everything is tried on a copy. `ids` are texts to try it with, drawn at random unless
    given; `pad_id` is the padding token, for networks that know padding by it. With `training` the laws are tried in
    training mode as well, not only as the model is scored.
    """
    subject = AuditedModel(
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
    if subject.logits(subject.ids).isnan().any():
        return [_build_nan_result(subject)]
    return [_run_audit(name, subject) for name in MODEL_AUDITS]


def _run_audit(check: str, audited_model: AuditedModel) -> CheckResult:
    try:
        return MODEL_AUDITS[check](audited_model)
    except UnsupportedInputError as refusal:
        return build_not_applicable(check, f"the model does not take what had to be tried: {refusal}")


def _build_nan_result(audited_model: AuditedModel) -> CheckResult:
    return CheckResult(
        "finite-logits",
        False,
        f"a pass over {len(audited_model.ids)} texts of {audited_model.length}; {audited_model.how}",
        "some logits are no number (NaN)",
        "The model has come apart: nothing that it scores means anything, and no other audit was made.",
        is_blocking=True,
        failure_reason="gives no numbers",
    )
