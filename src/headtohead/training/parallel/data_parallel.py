"""Data-parallel training: every process holds the whole model and processes some rows of each batch.

The batch of a step does not depend on the number of processes. Each process computes the gradient for its rows,
weighted by its fraction of the batch's predictions: rows are padded, so equal numbers of rows can have different
numbers of predictions. The sum over processes is the gradient of the whole batch. All processes then apply the same
update and stay in sync.

DistributedDataParallel is not used: it averages without weights, hooks into the forward pass of the model, which the
chunked loss bypasses, and needs special handling for processes without rows and for parameters without a gradient. The
drawback is that communication does not overlap with the backward pass.

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
from headtohead.training import tensor_files
from headtohead.training.checkpoints import TrainingState
from headtohead.training.optimization.gradients import GradientComputation
from headtohead.training.parallel.single_process import NamedTensors, SingleProcess
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.evaluation_pass import Evaluation, run_evaluation_pass

BUCKET_BYTES = 2**25
"""Size of the buckets in which gradients are summed."""
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Time without a response after which a process is considered lost during training."""
IDLE_TIMEOUT = timedelta(days=30)
"""Time for which the other processes wait for the main process between training runs, while it runs a teacher or writes
a report."""

STORE_POLL_SECONDS = 0.05
EMPTY_COLUMN = torch.zeros(0, dtype=torch.float64)


class DataParallelProcess(SingleProcess):
    """One of several processes. All processes must call every method in the same order."""

    def __init__(self, rank: int, world_size: int, local_rank: int = 0) -> None:
        """Describe a process of data-parallel training that has joined the process group."""
        self.rank, self.world_size, self.local_rank = rank, world_size, local_rank
        self.rng_suffix = ("rank", rank)
        self.stop_event = threading.Event()
        """If set, the next collective operation raises PeerLostError."""
        self._idle_group = dist.new_group(backend="gloo", timeout=IDLE_TIMEOUT)

    def select_device(self, device: torch.device) -> torch.device:
        """Return the GPU of this process, or `device` if it is not a GPU."""
        if device.type != "cuda":
            return device
        torch.cuda.set_device(self.local_rank)
        return torch.device("cuda", self.local_rank)

    def backward(self, gradients: GradientComputation, batch: Batch, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Compute gradients on the rows of this process and sum them over all processes."""
        own_rows = batch.slice_rows(*_compute_row_range(len(batch.labels), self.rank, self.world_size))
        weight = own_rows.num_predictions / max(1, batch.num_predictions)
        loss = gradients.compute_gradients(own_rows, weight) if weight else torch.zeros((), device=gradients.device)
        self._sum_gradients(parameters)
        return loss

    def _sum_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum the gradients over processes.

        A parameter without a gradient in any process keeps None, so that weight decay does not apply to it.
        """
        has_gradient = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
        self._all_reduce(has_gradient, dist.ReduceOp.MAX)
        for parameter, needs_gradient in zip(parameters, has_gradient.tolist(), strict=True):
            if needs_gradient and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _iter_buckets([parameter.grad for parameter in parameters if parameter.grad is not None]):
            flat_gradients = torch.cat([gradient.reshape(-1) for gradient in bucket])
            self._all_reduce(flat_gradients)
            flat_sums = flat_gradients.split([gradient.numel() for gradient in bucket])
            for gradient, flat_sum in zip(bucket, flat_sums, strict=True):
                gradient.copy_(flat_sum.view_as(gradient))

    def sum_losses(self, losses: Tensor) -> Tensor:
        """Return the losses summed over all processes."""
        summed_losses = losses.clone()
        self._all_reduce(summed_losses)
        return summed_losses

    def run_evaluation_pass(
        self, model: nn.Module, objective: TaskObjective, batches: Iterable[Batch], device: torch.device
    ) -> Evaluation:
        """Evaluate different batches in each process; return the scores of all examples in every process."""
        example_indices: list[Tensor] = []
        own_batches = self._iter_own_batches(batches, example_indices)
        first_batch = next(own_batches, None)
        own_scores = {}
        if first_batch is not None:
            own_scores = run_evaluation_pass(model, objective, chain((first_batch,), own_batches), device).columns
        column_names = self.broadcast_json(list(own_scores))  # the main process always has the first batch
        own_columns = [torch.from_numpy(own_scores[name]) if own_scores else EMPTY_COLUMN for name in column_names]
        own_indices = torch.cat([EMPTY_COLUMN, *example_indices]).sort().values
        columns = self._gather_columns(torch.stack([own_indices, *own_columns]))
        columns = columns[:, columns[0].argsort()]  # by example index
        return Evaluation({name: column.numpy() for name, column in zip(column_names, columns[1:], strict=True)})

    def _iter_own_batches(self, batches: Iterable[Batch], example_indices: list[Tensor]) -> Iterator[Batch]:
        """Yield the batches that this process evaluates, with the indices of their examples.

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
        padded_columns = torch.zeros(len(columns), int(widths.max()), dtype=columns.dtype)
        padded_columns[:, : columns.shape[1]] = columns
        gathered_columns = [torch.empty_like(padded_columns) for _ in range(self.world_size)]
        self._run_collective(dist.all_gather, gathered_columns, padded_columns)
        return torch.cat(
            [
                process_columns[:, :width]
                for process_columns, width in zip(gathered_columns, widths.tolist(), strict=True)
            ],
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
        """Copy the weights of the main process to all others."""
        tensors = self._broadcast_tensors(tensor_files.collect_model_tensors(model))
        if not self.is_main_process:
            tensor_files.load_model_tensors(model, tensors, "main process")

    def _broadcast_tensors(self, tensors: NamedTensors) -> NamedTensors:
        """Return the tensors of the main process in every process."""
        specs = {name: [str(tensor.dtype).removeprefix("torch."), *tensor.shape] for name, tensor in tensors.items()}
        received_tensors = {}
        for name, (dtype, *shape) in self.broadcast_json(specs).items():
            tensor = tensors[name].cpu() if self.is_main_process else torch.empty(shape, dtype=getattr(torch, dtype))
            content = tensor.contiguous().reshape(-1).view(torch.uint8)
            if content.numel():
                self._run_collective(dist.broadcast, content, src=0)
            received_tensors[name] = tensor
        return received_tensors

    def check_weights_in_sync(self, parameters: Sequence[nn.Parameter]) -> None:
        """Raise RequestError if weights differ between processes, which can happen with different CPUs or libraries."""
        weight_sums = torch.stack([parameter.detach().double().sum().cpu() for parameter in parameters])
        lowest_sums, highest_sums = weight_sums.clone(), weight_sums.clone()
        self._all_reduce(lowest_sums, dist.ReduceOp.MIN)
        self._all_reduce(highest_sums, dist.ReduceOp.MAX)
        if not torch.equal(lowest_sums, highest_sums) and not bool(weight_sums.isnan().any()):
            raise RequestError(
                "the weights of the processes have diverged, because their arithmetic differs; use machines of one "
                "type with the same package versions"
            )

    def broadcast_json(self, value: Any = None) -> Any:
        """Return the JSON value of the main process in every process."""
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        length = torch.tensor([len(content)])
        self._run_collective(dist.broadcast, length, src=0, group=self._idle_group)
        if not self.is_main_process:
            content = torch.empty(int(length), dtype=torch.uint8)
        self._run_collective(dist.broadcast, content, src=0, group=self._idle_group)
        return json.loads(content.numpy().tobytes())

    def _all_reduce(self, tensor: Tensor, reduce_op: Any = dist.ReduceOp.SUM) -> None:
        """Replace a tensor by its sum, minimum or maximum over all processes."""
        self._run_collective(dist.all_reduce, tensor, op=reduce_op)

    def _run_collective(self, collective: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Run a collective operation; raise PeerLostError if a different process has exited."""
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
    """Join the process group at the address that torchrun sets in the environment."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    store, _, _ = next(rendezvous("env://", rank, world_size, timeout=COLLECTIVE_TIMEOUT))
    prefixed_store = PrefixStore(_agree_on_store_prefix(store, rank, world_size), store)
    dist.init_process_group(backend, store=prefixed_store, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT)
    return DataParallelProcess(rank, world_size, local_rank)


def _agree_on_store_prefix(store: Any, rank: int, world_size: int) -> str:
    """Return a key prefix of the process group's store on which all running processes agree.

    When torchrun restarts processes, the store still contains the addresses of the previous ones; a new prefix hides
    them.
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
            time.sleep(STORE_POLL_SECONDS)


def leave_process_group() -> None:
    """Leave the process group."""
    dist.destroy_process_group()


def _compute_row_range(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return the rows of a batch that a process computes, as (start, end)."""
    return rank * num_rows // world_size, (rank + 1) * num_rows // world_size


def _iter_buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Group tensors of equal dtype and device into buckets of at most BUCKET_BYTES, to sum them over processes."""
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
