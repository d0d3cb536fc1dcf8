"""Audit the training of a model: only the optimizer may change its weights, it must do so, and runs are reproducible.

The passes run on copies of the trained model, so that code which behaves differently after a number of steps is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import nn

from headtohead.audit.forbidden_code import TrainingLoss, copy_trainable_weights, list_weights_changed_by_forward
from headtohead.audit.model_copy import copy_model
from headtohead.audit.rescoring import MAX_LOSS_CHANGE
from headtohead.audit.result import CheckResult
from headtohead.audit.user_code import format_model_error
from headtohead.data.batches import Batch
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.tensor_hashes import compute_tensor_hashes

TRAINING_PASS_CHECK_NAME = "training-pass"
REPRODUCIBILITY_CHECK_NAME = "reproducible-training"
CHANGED_WEIGHTS_CHECK_NAME = "changed-weights"
SEPARATE_LAYERS_CHECK_NAME = "separate-layers"
MAX_UNCHANGED_SHARE = 0.1
"""share of the trainable weights that may keep their initial values"""


def check_training_passes(
    model: nn.Module, batch: Batch, compute_loss: TrainingLoss, initial_weights_differ: bool
) -> list[CheckResult]:
    """Check that a forward and backward pass in training mode changes no weight, and that it can be repeated.

    Args:
        model: The trained model; passes run on copies of it.
        batch: A training batch.
        compute_loss: Returns the training loss of a model and a batch.
        initial_weights_differ: Whether a second model, built with the same seed, has different initial weights.
    """
    try:
        changed_name, loss = _run_training_pass(model, batch, compute_loss)
        _, repeated_loss = _run_training_pass(model, batch, compute_loss)
    except Exception as error:  # noqa: BLE001  (a user's network may raise anything)
        observation = format_model_error(error)
        names = (TRAINING_PASS_CHECK_NAME, REPRODUCIBILITY_CHECK_NAME)
        return [CheckResult(name, None, "", observation, "The check has no outcome.") for name in names]
    procedure = "two forward and backward passes of copies of the trained model, from the same random state"
    change = abs(loss - repeated_loss)
    return [
        CheckResult(TRAINING_PASS_CHECK_NAME, True, procedure, "no weight changes before the step of the optimizer")
        if not changed_name
        else CheckResult(
            TRAINING_PASS_CHECK_NAME,
            False,
            procedure,
            f"{changed_name} changes before the step of the optimizer",
            "The model is also trained outside the optimizer of the experiment file: remove the update from its code.",
            is_blocking=True,
            failure_reason="changes its weights outside the optimizer of the experiment file",
        ),
        CheckResult(REPRODUCIBILITY_CHECK_NAME, True, procedure, f"the loss differs by {change:.2g}")
        if change <= MAX_LOSS_CHANGE and not initial_weights_differ
        else CheckResult(
            REPRODUCIBILITY_CHECK_NAME,
            False,
            procedure,
            f"the loss differs by {change:.2g}"
            if change > MAX_LOSS_CHANGE
            else "a second model, built with the same seed, has different initial weights",
            "The code draws random numbers that no seed determines: a repeated run has a different result, and the "
            "variant is not paired with its baseline.",
            failure_reason="not reproducible",
        ),
    ]


def _run_training_pass(model: nn.Module, batch: Batch, compute_loss: TrainingLoss) -> tuple[str, float]:
    """Return the name of a weight that a training pass of a copy of the model changes, and the loss of this pass.

    The name is empty if there is none.
    """
    model_copy = copy_model(model).train()
    first_batch, second_batch = (  # user code may write to them
        replace(batch, input_ids=batch.input_ids.clone(), labels=batch.labels.clone()) for _ in range(2)
    )
    with fork_seeded_rng("training audit"), torch.enable_grad():
        # Constraints such as nn.Embedding(max_norm=1) change weights in the first pass, but not in the second.
        compute_loss(model_copy, first_batch)
        weights = copy_trainable_weights(model_copy)
        loss = compute_loss(model_copy, second_batch)
        loss.backward()
    changed_names = list_weights_changed_by_forward(model_copy, weights)
    return (changed_names or [""])[0].removeprefix("inner."), float(loss.detach())


def check_separate_layers(model: nn.Module) -> CheckResult:
    """Check that no list of layers contains the same layer several times, as `nn.ModuleList([layer] * 4)` does."""
    procedure = "layers with weights in every nn.ModuleList and nn.Sequential"
    for prefix, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        # named_children() omits repeated modules.
        layers = [layer for layer in module if any(True for _ in layer.parameters())]
        num_different = len({id(layer) for layer in layers})
        if num_different < len(layers):
            return CheckResult(
                SEPARATE_LAYERS_CHECK_NAME,
                False,
                procedure,
                f"{prefix.removeprefix('inner.')} has {len(layers)} entries, but {num_different} different layer"
                f"{'s' if num_different > 1 else ''}",
                "A layer that is listed several times has one set of weights.",
                failure_reason="layers share their weights",
            )
    return CheckResult(SEPARATE_LAYERS_CHECK_NAME, True, procedure, "every layer is listed once")


def check_changed_weights(model: nn.Module, initial_hashes: Mapping[str, str]) -> CheckResult:
    """Check that training has changed the trainable weights of a model.

    `initial_hashes` are those of `compute_tensor_hashes` at step 0.
    """
    procedure = "trained weights compared with those at step 0"
    hashes = compute_tensor_hashes(model)
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    unchanged = [name for name in trainable if name in hashes and hashes[name] == initial_hashes.get(name)]
    num_unchanged = sum(trainable[name].numel() for name in unchanged)
    num_trainable = sum(parameter.numel() for parameter in trainable.values())
    observation = f"{num_unchanged:,} of {num_trainable:,} trainable weights have kept their initial values"
    if num_unchanged <= MAX_UNCHANGED_SHARE * num_trainable:
        return CheckResult(CHANGED_WEIGHTS_CHECK_NAME, True, procedure, observation, "Training changes the weights.")
    return CheckResult(
        CHANGED_WEIGHTS_CHECK_NAME,
        False,
        procedure,
        f"{observation}: {', '.join(name.removeprefix('inner.') for name in unchanged[:4])}",
        "These weights are not trained: the optimizer does not change them, or its learning rate is 0.",
        failure_reason="weights that are not trained",
    )
