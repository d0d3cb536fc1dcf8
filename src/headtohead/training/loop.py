"""The training loop, shared by all tasks.

A step's batch, dropout and learning rate are functions of (seed, step). All other state (weights, optimizer state, a
few numbers) is in the checkpoint. A run that is killed at any point and resumed therefore ends with bit-identical
weights.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headtohead import rng
from headtohead.atomic_io import append_jsonl, compute_sha256, read_jsonl
from headtohead.config import training
from headtohead.config.base import convert_to_steps
from headtohead.data.batches import Batch, BatchSchedule
from headtohead.data.examples import EvaluationExamples
from headtohead.errors import DivergedError
from headtohead.nn.init import hash_tensors
from headtohead.nn.torch_rng import seed_devices
from headtohead.training import checkpoints, memory
from headtohead.training.checkpoints import TrainingState
from headtohead.training.objectives import Evaluation, Objective
from headtohead.training.optimizers import ScheduledOptimizer
from headtohead.training.processes import SINGLE_PROCESS, SingleProcess

LOSS_CHECK_INTERVAL = 10
MAX_REPORT_INTERVAL = 1.0
"""Seconds after which progress is reported between two loss checks and during evaluations."""
DIVERGENCE_FACTOR, DIVERGENCE_NATS = 3.0, 5.0
EVALUATION_BATCH_SIZE = 16
"""Small enough for a batch's logits to fit into the CPU cache."""


@dataclass(frozen=True)
class TrainingProgress:
    """Progress of a training run, passed to `on_progress`."""

    step: int
    total_steps: int
    loss: float | None
    """Mean since the last evaluation; None before the first loss is known."""
    steps_per_second: float
    """Measured since this process started, excluding evaluations."""
    seconds_left: float
    """Estimate for the rest of the trial: steps, evaluations and the scoring after training."""


@dataclass(frozen=True)
class TrainingResult:
    """Summary of a finished training run. The model holds the selected weights."""

    steps: int
    seconds: float
    seconds_per_step: float
    peak_memory: int
    last_loss: float
    """Mean training loss since the last evaluation."""
    chosen_step: int
    first_step_digest: str
    """Hash of the first step's loss and gradients."""
    is_stopped_early: bool
    processes: int = 1
    """Number of processes."""
    resharded: tuple[int, ...] = ()
    """Steps after which the number of processes changed."""


@dataclass
class Trainer:
    """Train one model: steps, evaluations, checkpoints and early stopping."""

    model: nn.Module
    objective: Objective
    schedule: BatchSchedule
    settings: training.TrainingConfig
    seed: int
    folder: Path
    tracked_examples: Mapping[str, EvaluationExamples] = field(default_factory=dict)
    """Examples evaluated during training, by name: train, validation and the splits of `monitor`."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None
    process: SingleProcess = SINGLE_PROCESS
    tracked_subsets: Mapping[str, tuple[str, NDArray[np.intp]]] = field(default_factory=dict)
    """Subsets of the tracked examples that have their own metrics, by name: (tracked name, row indices)."""
    num_rows_after_training: int = 0
    """Rows that are scored after training, for the estimate of the remaining time."""

    def __post_init__(self) -> None:
        steps_per_epoch = self.schedule.steps_per_epoch
        self.total_steps = self.settings.compute_total_steps(steps_per_epoch)
        self.evaluate_every = convert_to_steps(self.settings.eval_every, steps_per_epoch)
        self.checkpoint_every = convert_to_steps(self.settings.checkpoint_every, steps_per_epoch)
        self.optimizer = ScheduledOptimizer(self.model, self.settings, self.total_steps)
        self.state = TrainingState(processes=self.process.world_size)
        self.metrics_path = self.folder / "metrics.jsonl"
        self.evaluations: dict[str, Evaluation] = {}
        """Evaluations of the tracked examples under the current weights."""
        self._pending_losses: list[torch.Tensor] = []
        self._best_weights_checksum: str | None = None
        """Checksum of the best weights so far, if they are kept."""
        self.num_tracked_rows = sum(examples.count // examples.stride for examples in self.tracked_examples.values())
        self._num_timed_steps = self._num_timed_rows = 0
        self._step_seconds = self._row_seconds = self._report_time = 0.0
        """Total time that this process spent on steps and on evaluated rows."""

    def run(self) -> TrainingResult:
        """Train to the end, resuming from the newest checkpoint if there is one."""
        is_new = not self._resume_from_checkpoint()
        self.model.train()
        memory.reset_peak()
        if is_new:
            self._evaluate_tracked_examples()
            self._save_checkpoint()
        is_stopped = self._is_patience_exhausted()
        while self.state.step < self.total_steps and not is_stopped:
            self._train_step(self.state.step)
            self.state.step += 1
            if self.state.step % LOSS_CHECK_INTERVAL == 0 or self.state.step == self.total_steps:
                self._accumulate_losses()
                self._report_progress()
            elif time.perf_counter() - self._report_time > MAX_REPORT_INTERVAL:
                self._report_progress()
            is_last = self.state.step == self.total_steps
            if is_last or self.state.step % self.evaluate_every == 0:
                self._evaluate_tracked_examples()
                is_stopped = self._is_patience_exhausted()
            if is_last or is_stopped or self.state.step % self.checkpoint_every == 0:
                self._save_checkpoint()
        return self._load_chosen_weights(is_stopped and self.state.step < self.total_steps)

    def _train_step(self, step: int) -> None:
        """Apply one optimizer step to this step's batch."""
        start_time = time.perf_counter()
        self.evaluations.clear()
        seed_devices(rng.derive_seed(self.seed, "dropout", step, *self.process.rng_suffix))
        batch = self.schedule.batch(step)
        loss = self.process.backward(self.objective, self.model, batch, self.optimizer.parameters, self.device)
        if step == 0:
            tensors = [loss, *(parameter.grad for parameter in self.optimizer.parameters)]
            self.state.first_step_digest = hash_tensors(tensor for tensor in tensors if tensor is not None)
        self.optimizer.step(step)
        self._pending_losses.append(loss)
        seconds = time.perf_counter() - start_time
        self.state.seconds += seconds
        self._step_seconds += seconds
        self._num_timed_steps += 1

    def _report_progress(self) -> None:
        """Report progress with an estimate of the remaining time."""
        self._report_time, state = time.perf_counter(), self.state
        row_seconds = self._row_seconds / max(1, self._num_timed_rows)
        # A backward pass takes about twice as long as a forward pass.
        step_seconds = 3 * self.settings.batch_size * row_seconds
        if self._num_timed_steps:
            step_seconds = self._step_seconds / self._num_timed_steps
        num_evaluations = math.ceil(self.total_steps / self.evaluate_every) - state.step // self.evaluate_every
        num_rows = num_evaluations * self.num_tracked_rows + self.num_rows_after_training
        loss = state.loss_sum / state.num_summed_steps if state.num_summed_steps else None
        rate = self._num_timed_steps / self._step_seconds if self._num_timed_steps else 0.0
        seconds_left = (self.total_steps - state.step) * step_seconds + num_rows * row_seconds
        self.on_progress(TrainingProgress(state.step, self.total_steps, loss, rate, seconds_left))

    def _time_batches(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield batches, measure how long the caller spends on each, and report progress periodically."""
        for batch in batches:
            start_time = time.perf_counter()
            yield batch
            self._row_seconds += time.perf_counter() - start_time
            self._num_timed_rows += len(batch.input_ids)
            if time.perf_counter() - self._report_time > MAX_REPORT_INTERVAL:
                self._report_progress()

    def _accumulate_losses(self) -> None:
        """Add pending losses to the running sum; raise DivergedError if one is not finite. Several steps share one
        device synchronization.
        """
        losses = self.process.sum_losses(torch.stack(self._pending_losses)).tolist() if self._pending_losses else []
        for offset, loss in enumerate(losses):
            step = self.state.step - len(self._pending_losses) + offset + 1
            if self.state.first_loss is None:
                self.state.first_loss = loss
            if not math.isfinite(loss):
                raise DivergedError(self._format_divergence_message(f"loss is not finite at step {step}"))
            self.state.loss_sum += loss
            self.state.num_summed_steps += 1
        self._pending_losses.clear()

    def _format_divergence_message(self, problem: str) -> str:
        """Append advice to a description of the problem."""
        optimizer = self.settings.optimizer
        lr = optimizer.options.get("lr", "the default")
        clipping_advice = "" if self.settings.max_grad_norm else ", or clip gradients (training.max_grad_norm = 1.0)"
        return f"{problem}: try a learning rate below {lr} for {optimizer.kind}, a longer warmup{clipping_advice}"

    def _evaluate_tracked_examples(self) -> None:
        """Evaluate the tracked examples and write metrics. The best step is selected on validation data only."""
        self._accumulate_losses()
        state = self.state
        if state.num_summed_steps:
            loss = state.loss_sum / state.num_summed_steps
            self._append_metrics("batches", {"loss": loss, "lr": self.optimizer.optimizers[0].param_groups[0]["lr"]})
            if state.first_loss is not None and is_diverged(state.first_loss, loss):
                message = f"training diverged: loss rose from {state.first_loss:.3g} to {loss:.3g} by step {state.step}"
                raise DivergedError(self._format_divergence_message(message))
            state.loss_sum, state.num_summed_steps = 0.0, 0
        for name, examples in self.tracked_examples.items():
            batches = self._time_batches(examples.batches(EVALUATION_BATCH_SIZE))
            evaluation = self.process.evaluate(self.model, self.objective, batches, self.device)
            self.evaluations[name] = evaluation
            self._append_metrics(name, summarize_evaluation(evaluation, self.objective.metric))
            if name == "validation":
                use_loss = self.settings.metric_for_best_model == "loss"
                self._update_best(evaluation.loss if use_loss else 1 - evaluation.accuracy)
        for name, (tracked_name, row_indices) in self.tracked_subsets.items():
            evaluation = self.evaluations[tracked_name].pick(row_indices)
            self._append_metrics(name, summarize_evaluation(evaluation, self.objective.metric))

    def _append_metrics(self, name: str, scores: dict[str, float]) -> None:
        """Append a line to metrics.jsonl."""
        line = {"step": self.state.step, "split": name, **scores, "seconds": round(self.state.seconds, 3)}
        if self.process.is_main_process:
            append_jsonl(self.metrics_path, line)
        self.state.num_metrics_lines += 1

    def _update_best(self, score: float) -> None:
        """Record the lowest finite score and, if requested, keep its weights. Ties go to the earliest step."""
        state = self.state
        if math.isfinite(score) and (state.best_score is None or score < state.best_score):
            state.best_score, state.best_step, state.evaluations_since_best = score, state.step, 0
            if self.settings.load_best_model_at_end and self.process.is_main_process:
                path = self._build_best_weights_path(state.step)
                self._best_weights_checksum = checkpoints.save_weights(path, self.model)
        else:
            state.evaluations_since_best += 1

    def _build_best_weights_path(self, step: int) -> Path:
        return self.folder / f"best-{step:06d}.safetensors"

    def _is_patience_exhausted(self) -> bool:
        """Return whether training should stop early."""
        rule = self.settings.early_stopping
        return rule is not None and self.state.evaluations_since_best >= rule.patience

    def _save_checkpoint(self) -> None:
        """Write a checkpoint and remove weights that are no longer the best."""
        self._accumulate_losses()
        self.process.check_weights_in_sync(self.optimizer.parameters)
        if not self.process.is_main_process:
            return
        self.state.peak_memory = max(self.state.peak_memory, memory.read_peak_bytes())
        self.state.file_checksums = self._collect_file_checksums()
        checkpoints.save(self.folder, self.model, self.optimizer.collect_state_tensors(), self.state)
        for weights_path in self.folder.glob("best-*.safetensors"):
            if self.state.best_step is not None and weights_path != self._build_best_weights_path(self.state.best_step):
                weights_path.unlink(missing_ok=True)

    def _collect_file_checksums(self) -> dict[str, str]:
        """Return the checksums of metrics.jsonl and of the best weights."""
        path = self.metrics_path
        checksums = {path.name: compute_sha256(path)} if path.is_file() else {}
        if self._best_weights_checksum is not None and self.state.best_step is not None:
            checksums[self._build_best_weights_path(self.state.best_step).name] = self._best_weights_checksum
        return checksums

    def _resume_from_checkpoint(self) -> bool:
        """Restore the newest checkpoint; return whether there is one."""
        optimizer_tensors = None
        if self.process.is_main_process:
            checkpoint = checkpoints.find_latest(self.folder)
            if checkpoint is not None:
                optimizer_tensors, self.state = checkpoints.restore(checkpoint, self.model)
                checkpoints.check_world_size(checkpoint, self.state, self.process.world_size)
            checkpoints.truncate_lines(self.metrics_path, self.state.num_metrics_lines)
            if checkpoint is not None:
                checkpoints.verify_checksums(self.folder, self.state.file_checksums, f"at step {self.state.step}")
                if (best_step := self.state.best_step) is not None:
                    name = self._build_best_weights_path(best_step).name
                    self._best_weights_checksum = self.state.file_checksums.get(name)
        optimizer_tensors, self.state = self.process.synchronize_start(self.model, optimizer_tensors, self.state)
        if optimizer_tensors is not None:
            self.optimizer.load_state_tensors(optimizer_tensors)
        return optimizer_tensors is not None

    def _load_chosen_weights(self, is_stopped_early: bool) -> TrainingResult:
        """Load the best weights if requested, and return the result."""
        state = self.state
        chosen_step = state.step
        if self.settings.load_best_model_at_end and state.best_step is not None:
            if chosen_step != state.best_step:
                self.evaluations.clear()
            chosen_step = state.best_step
            if self.process.is_main_process:
                checkpoints.verify_checksums(self.folder, self._collect_file_checksums(), f"at step {chosen_step}")
                tensors = checkpoints.read_weights(self._build_best_weights_path(chosen_step))
                checkpoints.load_tensors(self.model, tensors, str(self._build_best_weights_path(chosen_step)))
            self.process.broadcast_weights(self.model)
        return TrainingResult(
            steps=state.step,
            seconds=state.seconds,
            seconds_per_step=state.seconds / max(1, state.step),
            peak_memory=state.peak_memory,
            last_loss=self._read_last_loss(),
            chosen_step=chosen_step,
            first_step_digest=state.first_step_digest,
            is_stopped_early=is_stopped_early,
            processes=state.processes,
            resharded=tuple(state.resharded),
        )

    def _read_last_loss(self) -> float:
        """Return the last training loss in metrics.jsonl, or nan."""
        losses = [line["loss"] for line in read_jsonl(self.metrics_path) if line["split"] == "batches"]
        return float(losses[-1]) if losses else math.nan


def is_diverged(first_loss: float, loss: float) -> bool:
    """Return whether training diverged: the loss is several times the first one and several nats above it.

    The factor alone would flag a model whose loss starts near 0, such as a fine-tuned one: 0.01 may rise to 0.1.
    """
    return loss > max(DIVERGENCE_FACTOR * first_loss, DIVERGENCE_NATS + first_loss)


def summarize_evaluation(evaluation: Evaluation, metric: str) -> dict[str, float]:
    """Return the metrics of an evaluation as written to metrics.jsonl."""
    metrics = {"loss": evaluation.loss, "count": int(evaluation.counts.sum())}
    return {**metrics, metric: evaluation.perplexity if metric == "perplexity" else evaluation.accuracy}
