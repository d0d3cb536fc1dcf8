"""One training on several processes (ranks): each holds the whole model and takes a share of the rows of every batch.

The batch of a step is the same for any number of processes. Each makes the gradient of its rows, weighted by how many
of the batch's predictions are among them (rows are padded, so that equal shares of rows are not equal shares of
predictions); the sum over the processes is the gradient of the whole batch, and its loss the loss. From there on all do
the same with the same numbers, so they stay alike without another word.

Why not torch's DistributedDataParallel? It divides by the number of processes, where weights are needed; it hooks into
the call of a model, where our vocabulary loss goes past it, from the stream to the output layer; and a process whose
share is empty (the last rows of an epoch) or a tensor without a gradient are special cases for it. Here all of that is
one sum after the backward pass. What is given up is that the sum could begin while gradients are still being made.

Only the first process reads and writes files.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

from headtohead.data.batches import Batch
from headtohead.errors import PeerLostError, RequestError
from headtohead.training import checkpoints
from headtohead.training.checkpoints import TrainingState
from headtohead.training.objectives import Evaluation, Objective, evaluate
from headtohead.training.processes import NamedTensors, SingleProcess

BUCKET_BYTES = 2**25
"""so many bytes of gradients are added up at a time"""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""a process that is silent for so long in the middle of a training is taken for lost"""
IDLE_TIMEOUT = timedelta(days=30)
"""between trainings the others wait for the first, which may have a teacher at work or a report to write"""

POLL_SECONDS = 0.05
EMPTY_COLUMN = torch.zeros(0, dtype=torch.float64)


class DataParallelProcess(SingleProcess):
    """This process among several. Every method is called by all of them, in the same order."""

    def __init__(self, rank: int, world_size: int, local_rank: int = 0) -> None:
        self.rank, self.size, self.local_rank = rank, world_size, local_rank
        self.stream = ("rank", rank)
        self.stopped = threading.Event()
        """set: the next thing done together raises"""
        self._rest = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)

    def place(self, device: torch.device) -> torch.device:
        if device.type != "cuda":
            return device
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def backward(
        self,
        objective: Objective,
        model: nn.Module,
        batch: Batch,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
    ) -> Tensor:
        mine = batch.rows(*_compute_row_range(len(batch.labels), self.rank, self.size))
        weight = mine.num_predictions / max(1, batch.num_predictions)
        loss = torch.zeros((), device=device)
        if weight:
            loss = objective.loss(model, mine.to(device)) * weight
            loss.backward()
        self._sum_gradients(parameters)
        return loss.detach()

    def _sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Everybody's gradients, added. A tensor that nobody has a gradient for is left so: it does not decay."""
        has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        self._all_reduce(has, dist.ReduceOp.MAX)
        for parameter, is_used in zip(parameters, has.tolist(), strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for some in _iter_buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            flat = torch.cat([gradient.reshape(-1) for gradient in some])
            self._all_reduce(flat)
            for gradient, added in zip(some, flat.split([gradient.numel() for gradient in some]), strict=True):
                gradient.copy_(added.view_as(gradient))

    def total(self, losses: Tensor) -> Tensor:
        added = losses.clone()
        self._all_reduce(added)
        return added

    def evaluate(
        self, model: nn.Module, objective: Objective, batches: Iterable[Batch], device: torch.device
    ) -> Evaluation:
        """Each scores its share of the batches, which are those of one process; then all know all scores."""
        places: list[Tensor] = []
        mine = self._iter_own_batches(batches, places)
        one = next(mine, None)
        scored = {} if one is None else evaluate(model, objective, chain((one,), mine), device).columns
        names = self.say(list(scored))  # the first has the first batch
        columns = [torch.from_numpy(scored[name]) if scored else EMPTY_COLUMN for name in names]
        gathered = self._gather(torch.stack([torch.cat([EMPTY_COLUMN, *places]).sort().values, *columns]))
        gathered = gathered[:, gathered[0].argsort()]
        return Evaluation({name: column.numpy() for name, column in zip(names, gathered[1:], strict=True)})

    def _iter_own_batches(self, batches: Iterable[Batch], example_indices: list[Tensor]) -> Iterator[Batch]:
        """Every so many of the batches, with the numbers of their examples, which are noted too."""
        seen = 0
        for number, batch in enumerate(batches):
            rows = len(batch.labels)
            if number % self.size == self.rank:
                at = torch.arange(seen, seen + rows) if batch.at is None else batch.at
                example_indices.append(at)
                yield replace(batch, at=at)
            seen += rows

    def _gather(self, columns: Tensor) -> Tensor:
        """Everybody's columns, side by side."""
        widths = torch.zeros(self.size, dtype=torch.int64)
        widths[self.rank] = columns.shape[1]
        self._all_reduce(widths)
        padded = torch.zeros(len(columns), int(widths.max()), dtype=columns.dtype)
        padded[:, : columns.shape[1]] = columns
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._run_collective(dist.all_gather, found, padded)
        return torch.cat([one[:, :width] for one, width in zip(found, widths.tolist(), strict=True)], dim=1)

    def synchronize_start(
        self, model: nn.Module, optimizer_tensors: NamedTensors | None, state: TrainingState
    ) -> tuple[NamedTensors | None, TrainingState]:
        said = self.say({"resumed": optimizer_tensors is not None, "state": asdict(state)})
        if said is None:
            raise PeerLostError(f"process {self.rank + 1} of {self.size}: the first one has given up")
        self.broadcast_weights(model)
        return self._broadcast_tensors(optimizer_tensors or {}) if said["resumed"] else None, TrainingState(
            **said["state"]
        )

    def broadcast_weights(self, model: nn.Module) -> None:
        given = self._broadcast_tensors(checkpoints.collect_model_tensors(model))
        if not self.is_main_process:
            checkpoints.load_tensors(model, given, "the first process")

    def _broadcast_tensors(self, tensors: NamedTensors) -> NamedTensors:
        """The first one's tensors for everybody."""
        about = self.say({name: [str(one.dtype).removeprefix("torch."), *one.shape] for name, one in tensors.items()})
        found = {}
        for name, (kind, *shape) in about.items():
            tensor = tensors[name].cpu() if self.is_main_process else torch.empty(shape, dtype=getattr(torch, kind))
            content = tensor.contiguous().reshape(-1).view(torch.uint8)
            if content.numel():
                self._run_collective(dist.broadcast, content, src=0)
            found[name] = tensor
        return found

    def check_weights_in_sync(self, parameters: Sequence[nn.Parameter]) -> None:
        """They are by construction, where all have the same processor and libraries; another machine may not."""
        sums = torch.stack([parameter.detach().double().sum().cpu() for parameter in parameters])
        least, most = sums.clone(), sums.clone()
        self._all_reduce(least, dist.ReduceOp.MIN)
        self._all_reduce(most, dist.ReduceOp.MAX)
        if not torch.equal(least, most) and not bool(sums.isnan().any()):
            raise RequestError(
                "the processes' weights have drifted apart: they do not compute alike; use machines of one kind, "
                "with the same versions of everything"
            )

    def say(self, value: Any = None) -> Any:
        """What the first one says, heard by all."""
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(content)])
        self._run_collective(dist.broadcast, length, src=0, group=self._rest)
        if not self.is_main_process:
            content = torch.empty(int(length), dtype=torch.uint8)
        self._run_collective(dist.broadcast, content, src=0, group=self._rest)
        return json.loads(content.numpy().tobytes())

    def _all_reduce(self, tensor: Tensor, reduce_op: Any = dist.ReduceOp.SUM) -> None:
        self._run_collective(dist.all_reduce, tensor, op=reduce_op)

    def _run_collective(self, collective: Callable[..., Any], *given: Any, **named: Any) -> None:
        """Do what all do. A process that is gone shows itself here."""
        if self.stopped.is_set():
            raise PeerLostError("it was told to stop")
        try:
            collective(*given, **named)
        except RuntimeError as error:
            said = re.sub(r"^\[[^]]*\] *", "", str(error).strip().splitlines()[0]).split(". ")[0][:200]
            raise PeerLostError(f"process {self.rank + 1} of {self.size} has lost the others ({said})") from error


def join_process_group(rank: int, world_size: int, local_rank: int) -> DataParallelProcess:
    """Meet the others, at the address that torchrun has put into the environment."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    board, _, _ = next(rendezvous("env://", rank, world_size, timeout=COLLECTIVE_TIMEOUT))
    fresh = PrefixStore(_agree_on_store_prefix(board, rank, world_size), board)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
    return DataParallelProcess(rank, world_size, local_rank)


def _agree_on_store_prefix(store: Any, rank: int, world_size: int) -> str:
    """A word that those who live agree on. When torchrun starts its processes anew, the board where they meet still
    has the addresses of those who died; under a new word it is empty."""
    if rank == 0:
        word = secrets.token_hex(8)
        store.set("word", word)
        store.set(f"{word} seen by", b" ".join(store.get(f"{word} {other}") for other in range(1, world_size)))
        return word
    while True:
        word, name = str(store.get("word"), "ascii"), secrets.token_hex(8)
        store.set(f"{word} {rank}", name)
        while store.get("word").decode() == word:
            # The first one of an earlier start has never seen this name.
            if store.check([f"{word} seen by"]) and name in store.get(f"{word} seen by").decode():
                return word
            time.sleep(POLL_SECONDS)


def leave_process_group() -> None:
    """Part, when all is done."""
    dist.destroy_process_group()


def _compute_row_range(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """From where to where the rows of this process go."""
    return rank * num_rows // world_size, (rank + 1) * num_rows // world_size


def _iter_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one kind, up to so many bytes."""
    some: list[Tensor] = []
    room = BUCKET_BYTES
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if some and (size > room or tensor.dtype != some[0].dtype or tensor.device != some[0].device):
            yield some
            some, room = [], BUCKET_BYTES
        some.append(tensor)
        room -= size
    if some:
        yield some
