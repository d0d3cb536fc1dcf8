"""What the loop asks of the processes that train one model together. Here the answers of one that is alone, which cost
nothing; those of several are in `distributed`."""

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
    """One process: nothing to share, nobody to ask."""

    rank, size = 0, 1
    stream: tuple[str | int, ...] = ()
    """what the names of random streams have at their end, for each process to have its own"""

    @property
    def is_main_process(self) -> bool:
        return self.rank == 0

    def place(self, device: torch.device) -> torch.device:
        """The device of this process."""
        return device

    def backward(
        self,
        objective: Objective,
        model: nn.Module,
        batch: Batch,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
    ) -> Tensor:
        """Gradients of the whole batch; gives this process's part of the loss."""
        loss = objective.loss(model, batch.to(device))
        loss.backward()
        return loss.detach()

    def total(self, losses: Tensor) -> Tensor:
        """The losses, from everybody's parts of them."""
        return losses

    def evaluate(
        self, model: nn.Module, objective: Objective, batches: Iterable[Batch], device: torch.device
    ) -> Evaluation:
        """Every example's scores, on all processes."""
        return evaluate(model, objective, batches, device)

    def synchronize_start(
        self, model: nn.Module, optimizer_tensors: NamedTensors | None, state: TrainingState
    ) -> tuple[NamedTensors | None, TrainingState]:
        """Everybody as the first: weights, the optimizer's tensors (None at the start), state."""
        return optimizer_tensors, state

    def broadcast_weights(self, model: nn.Module) -> None:
        """The first one's weights for everybody."""

    def check_weights_in_sync(self, parameters: Sequence[nn.Parameter]) -> None:
        """Is everybody's model the same?"""


SINGLE_PROCESS = SingleProcess()


def check_rows_independent(model: nn.Module) -> None:
    """Rows that see each other cannot be spread over processes."""
    sees = isinstance(model, Transformer) and "batch-independence" in model.violates
    if sees or any(isinstance(one, nn.modules.batchnorm._BatchNorm) for one in model.modules()):
        raise RequestError(
            "this model lets the rows of a batch see each other, so they cannot be spread over processes; train it "
            "with one: h2h run"
        )
