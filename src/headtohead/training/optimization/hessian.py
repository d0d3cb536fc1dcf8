"""Estimate the diagonal of the Hessian of the training loss. After Liu et al. 2023, arXiv:2305.14342, algorithm 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from headtohead.data.batches import IGNORE_INDEX, Batch


def estimate_hessian_diagonal(
    model: nn.Module, batch: Batch, backward: Callable[[Batch], object], parameters: Sequence[nn.Parameter]
) -> dict[nn.Parameter, Tensor]:
    """Return the Gauss-Newton-Bartlett estimate of the Hessian's diagonal for each parameter: the number of predictions
    times the squared gradient of the mean loss with labels sampled from the model's predictions. Existing gradients are
    restored.

    Args:
        model: The model that is trained.
        batch: The batch of the step.
        backward: Adds the gradients of a batch's mean loss to `Parameter.grad`.
        parameters: The parameters to return an estimate for, if they have a gradient.
    """
    device = next(model.parameters()).device
    with torch.no_grad():
        device_batch = batch.to(device)
        logits = model(device_batch.input_ids, device_batch.attention_mask).logits
        sampled_ids = logits.flatten(0, -2).softmax(-1).multinomial(1)
        sampled_labels = sampled_ids.view_as(device_batch.labels).to(batch.labels.device)
    labels = torch.where(batch.labels == IGNORE_INDEX, batch.labels, sampled_labels)
    saved_gradients = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    backward(replace(batch, labels=labels))
    estimate = {
        parameter: batch.num_predictions * parameter.grad.square()
        for parameter in parameters
        if parameter.grad is not None
    }
    for parameter, gradient in zip(parameters, saved_gradients, strict=True):
        parameter.grad = gradient
    return estimate
