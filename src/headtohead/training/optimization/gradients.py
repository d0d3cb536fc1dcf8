"""Computation of a batch's gradients: precision, accumulation, gradient checkpointing and compilation.

The model is not modified: layers are wrapped only during a training step, so evaluations, audits, parameter names and
checkpoints see the plain module. Weights, gradients and optimizer state are float32 in every precision.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.errors import RequestError
from headtohead.nn.transformer import Transformer
from headtohead.training.hardware import precision
from headtohead.training.optimization.loss_scaling import LossScaler
from headtohead.training.task_objectives.base import TaskObjective


class GradientComputation:
    """Computes the gradients of batches according to the `[training]` table.

    Args:
        model: The model to train.
        objective: The objective to minimize.
        settings: Precision, number of micro-batches, gradient checkpointing and compilation.
        device: The device of the model.
        compile_backend: The backend of torch.compile.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: TaskObjective,
        settings: TrainingConfig,
        device: torch.device,
        *,
        compile_backend: str = "inductor",
    ) -> None:
        self.model, self.objective, self.device = model, objective, device
        self.num_micro_batches = settings.gradient_accumulation_steps
        if self.num_micro_batches > 1:
            check_batch_can_be_split(model, "training.gradient_accumulation_steps must be 1")
        self.precision = settings.precision
        self.loss_scaler = LossScaler() if settings.precision == "fp16" else None
        self._wrappers: list[tuple[nn.Module, str, Callable[..., Any]]] = []
        if settings.gradient_checkpointing:
            for layer in find_checkpointed_layers(model):
                self._wrappers.append((layer, "forward", partial(checkpoint, layer.forward, use_reentrant=False)))
        if settings.compile:
            # A language model computes its loss from hidden states, without calling the model.
            name = "compute_hidden_states" if isinstance(model, Transformer) else "forward"
            self._wrappers.append((model, name, torch.compile(getattr(model, name), backend=compile_backend)))

    def compute_gradients(self, batch: Batch, weight: float = 1.0) -> Tensor:
        """Add the gradients of `weight` times the mean loss of the batch; return `weight` times the mean loss.

        Micro-batches are weighted by their fraction of the predictions, so their gradients add up to that of the batch.
        """
        if self.num_micro_batches == 1:
            return self._compute_micro_batch_gradients(batch, weight)
        num_predictions = max(1, batch.num_predictions)
        losses = [
            self._compute_micro_batch_gradients(micro_batch, weight * micro_batch.num_predictions / num_predictions)
            for micro_batch in split_into_micro_batches(batch, self.num_micro_batches)
        ]
        return torch.stack(losses).sum() if losses else torch.zeros((), device=self.device)

    def _compute_micro_batch_gradients(self, batch: Batch, weight: float) -> Tensor:
        """Run the forward and backward pass of one micro-batch; return its weighted loss."""
        with self._wrap_model():
            with self._use_autocast():
                loss = self.objective.compute_loss(self.model, batch.to(self.device))
            loss = loss if weight == 1 else loss * weight
            scaled_loss = loss if self.loss_scaler is None else self.loss_scaler.scale_loss(loss)
            scaled_loss.backward()
        return loss.detach()

    def unscale_gradients(self, parameters: Sequence[nn.Parameter]) -> bool:
        """Undo the loss scaling. Return False and clear the gradients if one of them is not finite."""
        return self.loss_scaler is None or self.loss_scaler.unscale_gradients(parameters)

    @cached_property
    def _autocast_dtype(self) -> torch.dtype | None:
        """The dtype of matrix products, determined at the first step because workers set environment variables before
        it.
        """
        return precision.get_autocast_dtype(self.precision, self.device)

    def _use_autocast(self) -> AbstractContextManager[Any]:
        """Return the autocast context of the configured precision, which does nothing for fp32."""
        if self._autocast_dtype is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._autocast_dtype)

    @contextmanager
    def _wrap_model(self) -> Iterator[None]:
        """Wrap methods of the model or of its layers for checkpointing and compilation inside the context."""
        with ExitStack() as stack:
            for module, name, function in self._wrappers:
                vars(module)[name] = function
                stack.callback(vars(module).pop, name)
            yield

    def collect_state_tensors(self) -> dict[str, Tensor]:
        """Return the state of loss scaling that a resumed run needs, for a checkpoint."""
        return {} if self.loss_scaler is None else self.loss_scaler.collect_state_tensors()

    def pop_state_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `collect_state_tensors` returned and remove it from `tensors`."""
        if self.loss_scaler is not None:
            self.loss_scaler.pop_state_tensors(tensors)


def split_into_micro_batches(batch: Batch, num_micro_batches: int) -> Iterator[Batch]:
    """Split a batch for gradient accumulation, into nearly equal numbers of rows. Omit parts without predictions."""
    num_rows = len(batch.labels)
    for index in range(num_micro_batches):
        start, end = index * num_rows // num_micro_batches, (index + 1) * num_rows // num_micro_batches
        micro_batch = batch.slice_rows(start, end)
        if micro_batch.num_predictions:
            yield micro_batch


def find_checkpointed_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers whose activations gradient checkpointing recomputes: the modules of the nn.ModuleList with the
    most parameters.
    """
    module_lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    if not module_lists:
        raise RequestError(
            "training.gradient_checkpointing: the network has no nn.ModuleList of layers, whose activations could be "
            "recomputed"
        )
    largest_list = max(module_lists, key=_count_parameters)
    return list(largest_list)


def _count_parameters(module: nn.Module) -> int:
    """Return the number of parameter values in a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def check_batch_can_be_split(model: nn.Module, advice: str) -> None:
    """Raise RequestError if the rows of a batch depend on each other, so that a batch cannot be split for gradient
    accumulation or between processes. `advice` says which setting to change.
    """
    violates_independence = isinstance(model, Transformer) and "batch-independence" in model.violates
    if violates_independence or any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise RequestError(f"rows of a batch depend on each other in this model, so a batch cannot be split: {advice}")
