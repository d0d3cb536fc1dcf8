"""Initialization: the initial loss must be that of a uniform guess, and every weight must receive a gradient."""

from __future__ import annotations

import math
import re

from torch.nn import functional as F

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.result import CheckResult, build_inapplicable_result
from headtohead.data.batches import IGNORE_INDEX, Batch
from headtohead.nn.custom_model import CustomModel

LOSS_CHECK_NAME = "initial-loss"
GRADIENT_CHECK_NAME = "gradients"
MAX_LOSS_DEVIATION = 0.5
"""how far the initial loss may be from chance, in nats, as for logits with standard deviation 1"""
MAX_LISTED_NAMES = 4
LIST_INDEX_PATTERN = re.compile(r"(?<!^layers)\.\d+(?=\.|$)")
"""index in a parameter name of a member of an nn.ModuleList or nn.ParameterList, other than the list of layers"""
MAX_FROZEN_SHARE = 0.1
"""share of a network's weights that may be frozen, for example in a table of features"""


def check_initial_loss(audited_model: AuditedModel, batch: Batch, num_choices: int) -> CheckResult:
    """Check the initialization: the loss before training must be close to ln(num_choices), that of a uniform guess."""
    logits = audited_model.compute_logits(batch.input_ids, batch.attention_mask)
    labels = batch.labels.to(logits.device)
    loss = float(F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORE_INDEX))
    chance_loss = math.log(num_choices)
    procedure = (
        f"loss of {labels.numel()} predictions before training, compared with ln({num_choices:,}) = {chance_loss:.3f}"
    )
    observation = f"{loss:.3f}, {loss - chance_loss:+.3f} from chance"
    if abs(loss - chance_loss) <= MAX_LOSS_DEVIATION:
        return CheckResult(LOSS_CHECK_NAME, True, procedure, observation, "The model starts from a uniform guess.")
    if loss < chance_loss:
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


def check_gradients(audited_model: AuditedModel) -> CheckResult:
    """Check the initialization: every trainable weight must have a finite, nonzero gradient in training mode.

    In a network from a user's file, at most `MAX_FROZEN_SHARE` of the weights may be frozen. Pretrained models are
    frozen by the experiment file.
    """
    parameters = {
        name: parameter for name, parameter in audited_model.model.named_parameters() if parameter.requires_grad
    }
    frozen_parameters = {
        name: parameter for name, parameter in audited_model.model.named_parameters() if not parameter.requires_grad
    }
    if not parameters:
        return build_inapplicable_result(GRADIENT_CHECK_NAME, "the model has no trainable weights")
    if isinstance(audited_model.model, CustomModel) and audited_model.model.has_training_loss:
        # Its loss may train weights that the logits do not depend on. The audit of trained weights finds the others.
        return build_inapplicable_result(GRADIENT_CHECK_NAME, "the network has a training loss of its own")
    without_gradient, not_finite = _find_invalid_gradients(audited_model)
    if without_gradient:
        # A gate initialized to 0 blocks gradients for one step only: ignore weights that a perturbation reaches.
        still_without_gradient, _ = _find_invalid_gradients(audited_model.copy_with_perturbed_weights())
        without_gradient = [name for name in without_gradient if name in still_without_gradient]
    num_frozen_weights = sum(parameter.numel() for parameter in frozen_parameters.values())
    frozen_note = f"; {len(frozen_parameters)} more are frozen" if frozen_parameters else ""
    procedure = f"one backward pass from all logits of {len(audited_model.input_ids)} sequences, training mode"
    procedure = f"{procedure}, {audited_model.setup_description}"
    if not_finite:
        interpretation = "The first optimizer step makes these weights infinite or NaN."
        reason, observation = "gradients are not finite", f"not finite: {_format_names(not_finite)}"
    elif without_gradient:
        num_weights = sum(parameters[name].numel() for name in without_gradient)
        extent = f"{len(without_gradient)} of {len(parameters)} tensors, "
        extent += f"{num_weights:,} of {audited_model.num_parameters:,} weights"
        interpretation = "These weights are never trained: the model is smaller than its parameter count."
        reason = "weights without gradient"
        observation = f"no gradient: {_format_names(without_gradient)} ({extent}){frozen_note}"
        if _may_be_unchosen_experts(without_gradient, list(parameters)):
            observation += "; other members of the same list have one: if these are experts, no token chose them"
    elif (
        type(audited_model.model) is CustomModel
        and num_frozen_weights > MAX_FROZEN_SHARE * audited_model.num_parameters
    ):
        extent = f"{num_frozen_weights:,} of {audited_model.num_parameters:,} weights"
        interpretation = "These weights keep their initial values: the model is smaller than its parameter count."
        reason = "frozen weights"
        observation = f"requires_grad is False: {_format_names(list(frozen_parameters))} ({extent})"
    else:
        observation = f"all {len(parameters)} tensors have a finite, nonzero gradient{frozen_note}"
        return CheckResult(GRADIENT_CHECK_NAME, True, procedure, observation, "Every weight is trained.")
    return CheckResult(GRADIENT_CHECK_NAME, False, procedure, observation, interpretation, failure_reason=reason)


def _find_invalid_gradients(audited_model: AuditedModel) -> tuple[list[str], list[str]]:
    """Return the initialized weights that have no gradient, and those whose gradient is not finite."""
    gradients = audited_model.compute_weight_gradients(
        audited_model.run_forward(audited_model.input_ids, training=True).logits
    )
    names = [name for name, parameter in audited_model.model.named_parameters() if parameter.requires_grad]
    without_gradient = [name for name in names if name not in gradients or not bool(gradients[name].any())]
    return without_gradient, [name for name, gradient in gradients.items() if not bool(gradient.isfinite().all())]


def _may_be_unchosen_experts(without_gradient: list[str], parameter_names: list[str]) -> bool:
    """Return whether weights without gradient at initialization may be those of experts that no token chose.

    They may if each belongs to a member of a list inside a layer, and a different member of that list has a gradient.
    """
    lists_with_gradient = {
        LIST_INDEX_PATTERN.sub(".*", name)
        for name in parameter_names
        if name not in without_gradient and LIST_INDEX_PATTERN.search(name)
    }
    return all(
        LIST_INDEX_PATTERN.search(name) and LIST_INDEX_PATTERN.sub(".*", name) in lists_with_gradient
        for name in without_gradient
    )


def _format_names(names: list[str]) -> str:
    """Return the first parameter names, and the number of others."""
    omitted = f" and {len(names) - MAX_LISTED_NAMES} more" if len(names) > MAX_LISTED_NAMES else ""
    return ", ".join(names[:MAX_LISTED_NAMES]) + omitted
