"""Data-parallel training: every process holds the whole model and handles some rows of each batch.

The batch of a step does not depend on the number of processes. Each process computes the gradient for its rows,
weighted by its share of the batch's predictions (rows are padded, so equal numbers of rows can have different numbers
of predictions). The sum over processes is the gradient for the whole batch. All processes then apply the same update
and stay in sync.

DistributedDataParallel is not used: it averages without weights, it hooks into the model's forward pass, which the
chunked vocabulary loss bypasses, and it needs special handling for processes without rows and for parameters without a
gradient. The price is that communication does not overlap with the backward pass.

Only rank 0, the main process, reads and writes files.
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
"""Gradients are summed in buckets of this size."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""During training, a process that does not respond for this long is considered lost."""
IDLE_TIMEOUT = timedelta(days=30)
"""Between training runs, the other processes wait for the main one, which may run a teacher or write a report."""

POLL_SECONDS = 0.05
EMPTY_COLUMN = torch.zeros(0, dtype=torch.float64)


class DataParallelProcess(SingleProcess):
    """One of several processes. All of them must call every method, in the same order."""

    def __init__(self, rank: int, world_size: int, local_rank: int = 0) -> None:
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.rng_suffix = ("rank", rank)
        self.stop_event = threading.Event()
        """If set, the next collective operation raises PeerLostError."""
        self._idle_group = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)

    def select_device(self, device: torch.device) -> torch.device:
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
        """Compute gradients on this process's rows and sum them over all processes."""
        own_rows = batch.rows(*_compute_row_range(len(batch.labels), self.rank, self.world_size))
        weight = own_rows.num_predictions / max(1, batch.num_predictions)
        loss = torch.zeros((), device=device)
        if weight:
            loss = objective.loss(model, own_rows.to(device)) * weight
            loss.backward()
        self._sum_gradients(parameters)
        return loss.detach()

    def _sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients over processes.

        A parameter that has no gradient in any process keeps None, so weight decay does not apply to it.
        """
        has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        self._all_reduce(has_gradient, dist.ReduceOp.MAX)
        for parameter, is_used in zip(parameters, has_gradient.tolist(), strict=True):
            if is_used and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _iter_buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            flat_gradients = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self._all_reduce(flat_gradients)
            for gradient, total in zip(
                bucket, flat_gradients.split([gradient.numel() for gradient in bucket]), strict=True
            ):
                gradient.copy_(total.view_as(gradient))

    def sum_losses(self, losses: Tensor) -> Tensor:
        total = losses.clone()
        self._all_reduce(total)
        return total

    def evaluate(
        self, model: nn.Module, objective: Objective, batches: Iterable[Batch], device: torch.device
    ) -> Evaluation:
        """Evaluate different batches in each process; return the scores of all examples in every process."""
        example_indices: list[Tensor] = []
        own_batches = self._iter_own_batches(batches, example_indices)
        first = next(own_batches, None)
        scores = {} if first is None else evaluate(model, objective, chain((first,), own_batches), device).columns
        names = self.broadcast_json(list(scores))  # the main process always has the first batch
        columns = [torch.from_numpy(scores[name]) if scores else EMPTY_COLUMN for name in names]
        indices = torch.cat([EMPTY_COLUMN, *example_indices]).sort().values
        gathered = self._gather_columns(torch.stack([indices, *columns]))
        gathered = gathered[:, gathered[0].argsort()]
        return Evaluation({name: column.numpy() for name, column in zip(names, gathered[1:], strict=True)})

    def _iter_own_batches(self, batches: Iterable[Batch], example_indices: list[Tensor]) -> Iterator[Batch]:
        """Yield every `world_size`-th batch with the indices of its examples.

        The indices are also appended to `example_indices`.
        """
        num_examples = 0
        for batch_index, batch in enumerate(batches):
            num_rows = len(batch.labels)
            if batch_index % self.world_size == self.rank:
                if batch.example_indices is None:
                    batch = replace(batch, example_indices=torch.arange(num_examples, num_examples + num_rows))
                assert batch.score_indices is not None
                example_indices.append(batch.score_indices)
                yield batch
            num_examples += num_rows

    def _gather_columns(self, columns: Tensor) -> Tensor:
        """Return the columns of all processes, concatenated along dimension 1."""
        widths = torch.zeros(self.world_size, dtype=torch.int64)
        widths[self.rank] = columns.shape[1]
        self._all_reduce(widths)
        padded = torch.zeros(len(columns), int(widths.max()), dtype=columns.dtype)
        padded[:, : columns.shape[1]] = columns
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        self._run_collective(dist.all_gather, gathered, padded)
        return torch.cat(
            [process_columns[:, :width] for process_columns, width in zip(gathered, widths.tolist(), strict=True)],
            dim=1,
        )

    def synchronize_start(
        self, model: nn.Module, optimizer_tensors: NamedTensors | None, state: TrainingState
    ) -> tuple[NamedTensors | None, TrainingState]:
        """Broadcast weights, optimizer tensors and state from the main process.

        Raise PeerLostError if the main process has failed.
        """
        message = self.broadcast_json({"resumed": optimizer_tensors is not None, "state": asdict(state)})
        if message is None:
            raise PeerLostError(f"process {self.rank + 1} of {self.world_size}: the main process has failed")
        self.broadcast_weights(model)
        tensors = self._broadcast_tensors(optimizer_tensors or {}) if message["resumed"] else None
        return tensors, TrainingState(**message["state"])

    def broadcast_weights(self, model: nn.Module) -> None:
        tensors = self._broadcast_tensors(checkpoints.collect_model_tensors(model))
        if not self.is_main_process:
            checkpoints.load_tensors(model, tensors, "main process")

    def _broadcast_tensors(self, tensors: NamedTensors) -> NamedTensors:
        """Return the main process's tensors in every process."""
        specs = {
            name: [str(source_tensor.dtype).removeprefix("torch."), *source_tensor.shape]
            for name, source_tensor in tensors.items()
        }
        received = {}
        for name, (dtype, *shape) in self.broadcast_json(specs).items():
            tensor = tensors[name].cpu() if self.is_main_process else torch.empty(shape, dtype=getattr(torch, dtype))
            content = tensor.contiguous().reshape(-1).view(torch.uint8)
            if content.numel():
                self._run_collective(dist.broadcast, content, src=0)
            received[name] = tensor
        return received

    def check_weights_in_sync(self, parameters: Sequence[nn.Parameter]) -> None:
        """Raise RequestError if weights differ between processes, as can happen with different CPUs or libraries."""
        sums = torch.stack([parameter.detach().double().sum().cpu() for parameter in parameters])
        lowest, highest = sums.clone(), sums.clone()
        self._all_reduce(lowest, dist.ReduceOp.MIN)
        self._all_reduce(highest, dist.ReduceOp.MAX)
        if not torch.equal(lowest, highest) and not bool(sums.isnan().any()):
            raise RequestError(
                "the weights of the processes have diverged, because their arithmetic differs; use machines of one "
                "type with the same package versions"
            )

    def broadcast_json(self, value: Any = None) -> Any:
        """Return the main process's value in every process."""
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(content)])
        self._run_collective(dist.broadcast, length, src=0, group=self._idle_group)
        if not self.is_main_process:
            content = torch.empty(int(length), dtype=torch.uint8)
        self._run_collective(dist.broadcast, content, src=0, group=self._idle_group)
        return json.loads(content.numpy().tobytes())

    def _all_reduce(self, tensor: Tensor, reduce_op: Any = dist.ReduceOp.SUM) -> None:
        self._run_collective(dist.all_reduce, tensor, op=reduce_op)

    def _run_collective(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a collective operation; raise PeerLostError if another process has exited."""
        if self.stop_event.is_set():
            raise PeerLostError("stop requested")
        try:
            collective(*args, **kwargs)
        except RuntimeError as error:
            reason = re.sub(r"^\[[^]]*\] *", "", str(error).strip().splitlines()[0]).split(". ")[0][:200]
            raise PeerLostError(
                f"process {self.rank + 1} of {self.world_size} lost the connection to the others ({reason})"
            ) from error


def join_process_group(rank: int, world_size: int, local_rank: int) -> DataParallelProcess:
    """Join the process group at the address in the environment that torchrun sets."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=COLLECTIVE_TIMEOUT))
    prefixed_store = PrefixStore(_agree_on_store_prefix(store, rank, world_size), store)
    dist.init_process_group(backend, store=prefixed_store, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
    return DataParallelProcess(rank, world_size, local_rank)


def _agree_on_store_prefix(store: Any, rank: int, world_size: int) -> str:
    """Return a key prefix that all running processes agree on.

    When torchrun restarts processes, the store still holds the addresses of the previous ones; a new prefix hides them.
    """
    if rank == 0:
        prefix = secrets.token_hex(8)
        store.set("prefix", prefix)
        store.set(
            f"{prefix} seen by", b" ".join(store.get(f"{prefix} {other_rank}") for other_rank in range(1, world_size))
        )
        return prefix
    while True:
        prefix, name = str(store.get("prefix"), "ascii"), secrets.token_hex(8)
        store.set(f"{prefix} {rank}", name)
        while store.get("prefix").decode() == prefix:
            # The main process of an earlier launch has never seen this name.
            if store.check([f"{prefix} seen by"]) and name in store.get(f"{prefix} seen by").decode():
                return prefix
            time.sleep(POLL_SECONDS)


def leave_process_group() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


def _compute_row_range(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the batch rows that this process handles, as (start, end)."""
    return rank * num_rows // world_size, (rank + 1) * num_rows // world_size


def _iter_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group consecutive tensors of equal dtype and device into buckets of at most BUCKET_BYTES for all-reduce."""
    bucket: list[Tensor] = []
    free_bytes = BUCKET_BYTES
    for tensor in tensors:
        num_bytes = tensor.numel() * tensor.element_size()
        if bucket and (num_bytes > free_bytes or tensor.dtype != bucket[0].dtype or tensor.device != bucket[0].device):
            yield bucket
            bucket, free_bytes = [], BUCKET_BYTES
        bucket.append(tensor)
        free_bytes -= num_bytes
    if bucket:
        yield bucket
