"""Before training: the initial loss must be that of a uniform guess, and every weight must receive a gradient."""

from __future__ import annotations

import math

from torch import nn
from torch.nn import functional as F

from headtohead.audit.probe import ModelProbe
from headtohead.audit.result import CheckResult, build_not_applicable
from headtohead.config.tasks import Target
from headtohead.data.batches import IGNORE_INDEX, Batch

LOSS_CHECK_NAME, GRADIENT_CHECK_NAME = "initial-loss", "gradients"
MAX_LOSS_DEVIATION = 0.5
"""how far the initial loss may be from chance, in nats, as for logits with standard deviation 1"""
MAX_LISTED_NAMES = 4


def audit_untrained_model(
    model: nn.Module, batch: Batch, *, target: Target, vocab_size: int, num_classes: int | None = None, seed: int = 0
) -> list[CheckResult]:
    """Run the checks for an untrained model on one labelled batch."""
    probe = ModelProbe(
        model,
        target=target,
        vocab_size=vocab_size,
        context=batch.input_ids.shape[1],
        num_classes=num_classes,
        seed=seed,
        perturb_if_insensitive=False,
    )
    return [check_initial_loss(probe, batch, vocab_size if num_classes is None else num_classes)]


def check_initial_loss(probe: ModelProbe, batch: Batch, num_choices: int) -> CheckResult:
    """Check that the initial loss is close to ln(num_choices), the loss of a uniform guess."""
    logits = probe.compute_logits(batch.input_ids, batch.attention_mask)
    labels = batch.labels.to(logits.device)
    loss = float(F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX))
    chance = math.log(num_choices)
    procedure = (
        f"loss of {labels.numel()} predictions before training, compared with ln({num_choices:,}) = {chance:.3f}"
    )
    observation = f"{loss:.3f}, {loss - chance:+.3f} from chance"
    if abs(loss - chance) <= MAX_LOSS_DEVIATION:
        return CheckResult(LOSS_CHECK_NAME, True, procedure, observation, "The model starts from a uniform guess.")
    if loss < chance:
        interpretation = (
            "The model predicts better than chance before training: its weights are not new, or labels leak."
        )
        reason = "starts below chance"
    else:
        interpretation = (
            "The model starts with overconfident predictions and spends its first steps on unlearning them: its "
            "embedding or output is scaled too large. In a short training it loses to others for that reason alone."
        )
        reason = "starts far from chance"
    return CheckResult(LOSS_CHECK_NAME, False, procedure, observation, interpretation, failure_reason=reason)


def check_gradients(probe: ModelProbe) -> CheckResult:
    """Check that every trainable weight has a finite, nonzero gradient in training mode."""
    parameters = {name: parameter for name, parameter in probe.model.named_parameters() if parameter.requires_grad}
    num_frozen = sum(1 for parameter in probe.model.parameters() if not parameter.requires_grad)
    if not parameters:
        return build_not_applicable(GRADIENT_CHECK_NAME, "the model has no trainable weights")
    missing, not_finite = _find_invalid_gradients(probe)
    if missing:
        # A gate initialised to 0 blocks gradients for one step only: ignore weights that a perturbation reaches.
        still_missing, _ = _find_invalid_gradients(probe.copy_with_perturbed_weights())
        missing = [name for name in missing if name in still_missing]
    frozen_note = f"; {num_frozen} more are frozen" if num_frozen else ""
    procedure = f"one backward pass from all logits of {len(probe.input_ids)} texts, training mode"
    procedure = f"{procedure}, {probe.setup_description}"
    if not missing and not not_finite:
        observation = f"all {len(parameters)} tensors have a finite, nonzero gradient{frozen_note}"
        return CheckResult(GRADIENT_CHECK_NAME, True, procedure, observation, "Every weight is trained.")
    if not_finite:
        interpretation = "The first optimizer step makes these weights infinite or NaN."
        reason, observation = "gradients are not finite", f"not finite: {_format_names(not_finite)}"
    else:
        num_weights = sum(parameters[name].numel() for name in missing)
        extent = f"{len(missing)} of {len(parameters)} tensors, {num_weights:,} of {probe.num_parameters:,} weights"
        interpretation = "These weights are never trained: the model is smaller than its parameter count."
        reason, observation = (
            "weights without gradient",
            f"no gradient: {_format_names(missing)} ({extent}){frozen_note}",
        )
    return CheckResult(GRADIENT_CHECK_NAME, False, procedure, observation, interpretation, failure_reason=reason)


def _find_invalid_gradients(probe: ModelProbe) -> tuple[list[str], list[str]]:
    """Return the names of weights that have no gradient, and of weights whose gradient is not finite."""
    gradients = probe.compute_weight_gradients(probe.run_forward(probe.input_ids, training=True).logits)
    names = [name for name, parameter in probe.model.named_parameters() if parameter.requires_grad]
    missing = [name for name in names if name not in gradients or not bool(gradients[name].any())]
    return missing, [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]


def _format_names(names: list[str]) -> str:
    more = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + more
