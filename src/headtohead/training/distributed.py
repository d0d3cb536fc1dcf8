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
from headtohead.training.checkpoints import State
from headtohead.training.objectives import Evaluation, Objective, evaluate
from headtohead.training.processes import Alone, Tensors

BUCKET = 2**25
"""so many bytes of gradients are added up at a time"""
STEP = timedelta(minutes=30)
"""a process that is silent for so long in the middle of a training is taken for lost"""
REST = timedelta(days=30)
"""between trainings the others wait for the first, which may have a teacher at work or a report to write"""

POLL = 0.05
NOTHING = torch.zeros(0, dtype=torch.float64)


class Ranks(Alone):
    """This process among several. Every method is called by all of them, in the same order."""

    def __init__(self, rank: int, size: int, local: int = 0) -> None:
        self.rank, self.size, self.local = rank, size, local
        self.stream = ("rank", rank)
        self.stopped = threading.Event()
        """set: the next thing done together raises"""
        self._rest = dist.new_group(backend="gloo", timeout=REST)

    def place(self, device: torch.device) -> torch.device:
        if device.type != "cuda":
            return device
        torch.cuda.set_device(self.local)
        return torch.device("cuda", self.local)

    def backward(
        self,
        objective: Objective,
        model: nn.Module,
        batch: Batch,
        parameters: Sequence[nn.Parameter],
        device: torch.device,
    ) -> Tensor:
        mine = batch.rows(*_share(len(batch.labels), self.rank, self.size))
        weight = mine.predictions / max(1, batch.predictions)
        loss = torch.zeros((), device=device)
        if weight:
            loss = objective.loss(model, mine.to(device)) * weight
            loss.backward()
        self._add_up(parameters)
        return loss.detach()

    def _add_up(self, parameters: Sequence[nn.Parameter]) -> None:
        """Everybody's gradients, added. A tensor that nobody has a gradient for is left so: it does not decay."""
        has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        self._all_reduce(has, dist.ReduceOp.MAX)
        for parameter, is_used in zip(parameters, has.tolist(), strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for some in _buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
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
        mine = self._mine(batches, places)
        one = next(mine, None)
        scored = {} if one is None else evaluate(model, objective, chain((one,), mine), device).columns
        names = self.say(list(scored))  # the first has the first batch
        columns = [torch.from_numpy(scored[name]) if scored else NOTHING for name in names]
        gathered = self._gather(torch.stack([torch.cat([NOTHING, *places]).sort().values, *columns]))
        gathered = gathered[:, gathered[0].argsort()]
        return Evaluation({name: column.numpy() for name, column in zip(names, gathered[1:], strict=True)})

    def _mine(self, batches: Iterable[Batch], places: list[Tensor]) -> Iterator[Batch]:
        """Every so many of the batches, with the numbers of their examples, which are noted too."""
        seen = 0
        for number, batch in enumerate(batches):
            rows = len(batch.labels)
            if number % self.size == self.rank:
                at = torch.arange(seen, seen + rows) if batch.at is None else batch.at
                places.append(at)
                yield replace(batch, at=at)
            seen += rows

    def _gather(self, table: Tensor) -> Tensor:
        """Everybody's columns, side by side."""
        widths = torch.zeros(self.size, dtype=torch.int64)
        widths[self.rank] = table.shape[1]
        self._all_reduce(widths)
        padded = torch.zeros(len(table), int(widths.max()), dtype=table.dtype)
        padded[:, : table.shape[1]] = table
        found = [torch.empty_like(padded) for _ in range(self.size)]
        self._together(dist.all_gather, found, padded)
        return torch.cat([one[:, :width] for one, width in zip(found, widths.tolist(), strict=True)], dim=1)

    def begin_alike(self, model: nn.Module, tensors: Tensors | None, state: State) -> tuple[Tensors | None, State]:
        said = self.say({"resumed": tensors is not None, "state": asdict(state)})
        if said is None:
            raise PeerLostError(f"process {self.rank + 1} of {self.size}: the first one has given up")
        self.spread(model)
        return self._give(tensors or {}) if said["resumed"] else None, State(**said["state"])

    def spread(self, model: nn.Module) -> None:
        given = self._give(checkpoints.model_tensors(model))
        if not self.is_first:
            checkpoints.load_tensors(model, given, "the first process")

    def _give(self, tensors: Tensors) -> Tensors:
        """The first one's tensors for everybody."""
        about = self.say({name: [str(one.dtype).removeprefix("torch."), *one.shape] for name, one in tensors.items()})
        found = {}
        for name, (kind, *shape) in about.items():
            tensor = tensors[name].cpu() if self.is_first else torch.empty(shape, dtype=getattr(torch, kind))
            content = tensor.contiguous().reshape(-1).view(torch.uint8)
            if content.numel():
                self._together(dist.broadcast, content, src=0)
            found[name] = tensor
        return found

    def check_alike(self, parameters: Sequence[nn.Parameter]) -> None:
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
        self._together(dist.broadcast, length, src=0, group=self._rest)
        if not self.is_first:
            content = torch.empty(int(length), dtype=torch.uint8)
        self._together(dist.broadcast, content, src=0, group=self._rest)
        return json.loads(content.numpy().tobytes())

    def _all_reduce(self, tensor: Tensor, how: Any = dist.ReduceOp.SUM) -> None:
        self._together(dist.all_reduce, tensor, op=how)

    def _together(self, work: Callable[..., Any], *given: Any, **named: Any) -> None:
        """Do what all do. A process that is gone shows itself here."""
        if self.stopped.is_set():
            raise PeerLostError("it was told to stop")
        try:
            work(*given, **named)
        except RuntimeError as error:
            said = re.sub(r"^\[[^]]*\] *", "", str(error).strip().splitlines()[0]).split(". ")[0][:200]
            raise PeerLostError(f"process {self.rank + 1} of {self.size} has lost the others ({said})") from error


def join(rank: int, size: int, local: int) -> Ranks:
    """Meet the others, at the address that torchrun has put into the environment."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    board, _, _ = next(rendezvous("env://", rank, size, timeout=STEP))
    fresh = PrefixStore(_sign(board, rank, size), board)
    dist.init_process_group(backend, store=fresh, rank=rank, world_size=size, timeout=STEP)
    return Ranks(rank, size, local)


def _sign(board: Any, rank: int, size: int) -> str:
    """A word that those who live agree on. When torchrun starts its processes anew, the board where they meet still
    has the addresses of those who died; under a new word it is empty."""
    if rank == 0:
        word = secrets.token_hex(8)
        board.set("word", word)
        board.set(f"{word} seen by", b" ".join(board.get(f"{word} {other}") for other in range(1, size)))
        return word
    while True:
        word, name = str(board.get("word"), "ascii"), secrets.token_hex(8)
        board.set(f"{word} {rank}", name)
        while board.get("word").decode() == word:
            # The first one of an earlier start has never seen this name.
            if board.check([f"{word} seen by"]) and name in board.get(f"{word} seen by").decode():
                return word
            time.sleep(POLL)


def leave() -> None:
    """Part, when all is done."""
    dist.destroy_process_group()


def _share(rows: int, rank: int, size: int) -> tuple[int, int]:
    """From where to where the rows of this process go."""
    return rank * rows // size, (rank + 1) * rows // size


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours of one kind, up to so many bytes."""
    some: list[Tensor] = []
    room = BUCKET
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        if some and (size > room or tensor.dtype != some[0].dtype or tensor.device != some[0].device):
            yield some
            some, room = [], BUCKET
        some.append(tensor)
        room -= size
    if some:
        yield some
