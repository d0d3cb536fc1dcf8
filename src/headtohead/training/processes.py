"""The collective operations used in training, for a single process; `distributed` implements them for several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from headtohead.data.batches import Batch
from headtohead.errors import RequestError
from headtohead.nn.transformer import Transformer
from headtohead.training.checkpoints import TrainingState
from headtohead.training.objectives import Evaluation, Objective, evaluate

NamedTensors = dict[str, Tensor]


class SingleProcess:
    """A single process: every collective operation is a no-op."""

    rank, world_size = 0, 1
    rng_suffix: tuple[str | int, ...] = ()
    """Appended to the labels of random streams, so that each process has its own."""

    @property
    def is_main_process(self) -> bool:
        """Whether this process reads and writes files."""
        return self.rank == 0

    def select_device(self, device: torch.device) -> torch.device:
        """Return this process's device."""
        return device

    def backward(
        self,
        objective: Objective,
        model: nn.Module,
        batch: Batch,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
    ) -> Tensor:
        """Compute the gradients for the whole batch; return this process's contribution to the loss."""
        loss = objective.loss(model, batch.to(device))
        loss.backward()
        return loss.detach()

    def sum_losses(self, losses: Tensor) -> Tensor:
        """Return the losses summed over all processes."""
        return losses

    def evaluate(
        self, model: nn.Module, objective: Objective, batches: Iterable[Batch], device: torch.device
    ) -> Evaluation:
        """Return the scores of all examples, in every process."""
        return evaluate(model, objective, batches, device)

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


def check_batch_can_be_split(model: nn.Module) -> None:
    """Raise RequestError if a batch's rows depend on each other, so that processes cannot share a batch."""
    mixes_rows = isinstance(model, Transformer) and "batch-independence" in model.violates
    if mixes_rows or any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise RequestError(
            "rows of a batch depend on each other in this model, so it cannot be trained on several processes; train "
            "it on one: h2h run"
        )
