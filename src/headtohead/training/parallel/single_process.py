"""The collective operations of training for a single process; `data_parallel` implements them for several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headtohead.data.batches import Batch
from headtohead.training.checkpoints import TrainingState
from headtohead.training.optimization.gradients import GradientComputation
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.evaluation_pass import Evaluation, run_evaluation_pass

NamedTensors = dict[str, Tensor]


class SingleProcess:
    """A single process: every collective operation is a no-op."""

    rank = 0
    world_size = 1
    rng_suffix: tuple[str | int, ...] = ()
    """Appended to the labels of random streams, so that each process has its own."""

    @property
    def is_main_process(self) -> bool:
        """Whether this process reads and writes files."""
        return self.rank == 0

    def select_device(self, device: torch.device) -> torch.device:
        """Return this process's device."""
        return device

    def backward(self, gradients: GradientComputation, batch: Batch, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Compute the gradients for the whole batch; return this process's contribution to the loss."""
        return gradients.compute_gradients(batch)

    def sum_losses(self, losses: Tensor) -> Tensor:
        """Return the losses summed over all processes."""
        return losses

    def run_evaluation_pass(
        self, model: nn.Module, objective: TaskObjective, batches: Iterable[Batch], device: torch.device
    ) -> Evaluation:
        """Return the scores of all examples, in every process."""
        return run_evaluation_pass(model, objective, batches, device)

    def synchronize_start(
        self, model: nn.Module, optimizer_tensors: NamedTensors | None, state: TrainingState
    ) -> tuple[NamedTensors | None, TrainingState]:
        """Copy weights, optimizer tensors (None in a new run) and state from the main process to all others."""
        return optimizer_tensors, state

    def broadcast_weights(self, model: nn.Module) -> None:
        """Copy the main process's weights to all others."""

    def check_weights_in_sync(self, parameters: Sequence[nn.Parameter]) -> None:
        """Raise RequestError if the weights differ between processes."""


SINGLE_PROCESS = SingleProcess()
