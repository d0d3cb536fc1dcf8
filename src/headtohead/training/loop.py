"""The one training loop, for every task.

A step is a function of (seed, step): its batch, its dropout, its rate. The state between steps is the weights, the
optimizer's moments and a handful of numbers, all of which a checkpoint holds; so a run that is killed at any moment and
started again ends with the same bits as one that was not.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headtohead import rng
from headtohead.atomic_io import append_jsonl, compute_sha256, read_jsonl
from headtohead.config import training
from headtohead.data.batches import BatchSchedule
from headtohead.data.examples import EvaluationExamples
from headtohead.errors import DivergedError
from headtohead.nn.torch_rng import seed_devices
from headtohead.training import checkpoints, memory
from headtohead.training.checkpoints import TrainingState
from headtohead.training.objectives import Evaluation, Objective
from headtohead.training.optimizers import ScheduledOptimizer
from headtohead.training.processes import SINGLE_PROCESS, SingleProcess

LOSS_CHECK_INTERVAL = 10
DIVERGENCE_FACTOR = 3.0
EVALUATION_BATCH_SIZE = 16
"""small enough for the logits of a batch to stay near the processor"""


@dataclass(frozen=True)
class TrainingProgress:
    """What the loop tells while it runs."""

    step: int
    steps: int
    loss: float
    rate: float
    """steps per second since this process began"""


@dataclass(frozen=True)
class TrainingResult:
    """What a finished training says of itself. The model holds the weights that were chosen."""

    steps: int
    seconds: float
    seconds_per_step: float
    peak_memory: int
    last_loss: float
    """mean training loss since the last evaluation"""
    chosen_step: int
    is_stopped_early: bool
    processes: int = 1
    """that trained it together"""
    resharded: tuple[int, ...] = ()
    """the steps after which their number was changed"""


@dataclass
class Trainer:
    """One trial being trained: all that a step needs."""

    model: nn.Module
    objective: Objective
    schedule: BatchSchedule
    settings: training.TrainingConfig
    seed: int
    folder: Path
    tracked_examples: Mapping[str, EvaluationExamples] = field(default_factory=dict)
    """texts scored along the way, by name: train, validation, and those of `watch`"""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tell: Callable[[TrainingProgress], None] = lambda progress: None
    ranks: SingleProcess = SINGLE_PROCESS
    tracked_subsets: Mapping[str, tuple[str, NDArray[np.intp]]] = field(default_factory=dict)
    """some rows of a followed text under a name of their own: which text, and which rows. Nothing is scored twice."""

    def __post_init__(self) -> None:
        epoch = self.schedule.steps_per_epoch
        self.steps = self.settings.compute_total_steps(epoch)
        self.evaluate_every = self.settings.compute_eval_interval(epoch)
        self.checkpoint_every = self.settings.compute_checkpoint_interval(epoch)
        self.optimizer = ScheduledOptimizer(self.model, self.settings, self.steps)
        self.state = TrainingState(processes=self.ranks.size)
        self.metrics = self.folder / "metrics.jsonl"
        self.evaluations: dict[str, Evaluation] = {}
        """the followed texts with the weights as they are, where those were scored"""
        self._pending_losses: list[torch.Tensor] = []
        self._best_weights_checksum: str | None = None
        """checksum of the best weights so far, where they are kept"""

    def run(self) -> TrainingResult:
        """Train from the newest checkpoint, or from the start, to the end."""
        is_new = not self._resume_from_checkpoint()
        self.model.train()
        memory.reset_peak()
        began, first_step = time.perf_counter(), self.state.step
        if is_new:
            self._evaluate_tracked_examples()
            self._save_checkpoint()
        stopped = self._is_patience_exhausted()
        while self.state.step < self.steps and not stopped:
            self._step(self.state.step)
            self.state.step += 1
            if self.state.step % LOSS_CHECK_INTERVAL == 0 or self.state.step == self.steps:
                self._accumulate_losses()
                done, gone = self.state.step - first_step, time.perf_counter() - began
                loss = self.state.recent_loss / max(1, self.state.recent_steps)
                self.tell(TrainingProgress(self.state.step, self.steps, loss, done / gone))
            at_end = self.state.step == self.steps
            if at_end or self.state.step % self.evaluate_every == 0:
                self._evaluate_tracked_examples()
                stopped = self._is_patience_exhausted()
            if at_end or stopped or self.state.step % self.checkpoint_every == 0:
                self._save_checkpoint()
        return self._load_chosen_weights(stopped and self.state.step < self.steps)

    def _step(self, step: int) -> None:
        began = time.perf_counter()
        self.evaluations.clear()
        seed_devices(rng.derive_seed(self.seed, "dropout", step, *self.ranks.stream))
        batch = self.schedule.batch(step)
        loss = self.ranks.backward(self.objective, self.model, batch, self.optimizer.parameters, self.device)
        self.optimizer.step(step)
        self._pending_losses.append(loss)
        self.state.seconds += time.perf_counter() - began

    def _accumulate_losses(self) -> None:
        """Add up what was not yet added up; one look at the values for several steps."""
        losses = self.ranks.total(torch.stack(self._pending_losses)).tolist() if self._pending_losses else []
        for offset, loss in enumerate(losses):
            step = self.state.step - len(self._pending_losses) + offset + 1
            if self.state.first_loss is None:
                self.state.first_loss = loss
            if not math.isfinite(loss):
                raise DivergedError(self._format_divergence_message(f"the loss is not a number at step {step}"))
            self.state.recent_loss += loss
            self.state.recent_steps += 1
        self._pending_losses.clear()

    def _format_divergence_message(self, problem: str) -> str:
        optimizer = self.settings.optimizer
        rate = optimizer.options.get("lr", "its default")
        clip = "" if self.settings.max_grad_norm else ", or clip gradients (training.max_grad_norm = 1.0)"
        return f"{problem}: try a lower rate than {rate} for {optimizer.kind}, a longer warm-up{clip}"

    def _evaluate_tracked_examples(self) -> None:
        """Score the followed texts; note them; keep the best by validation data only."""
        self._accumulate_losses()
        state = self.state
        if state.recent_steps:
            loss = state.recent_loss / state.recent_steps
            self._append_metrics("batches", {"loss": loss, "rate": self.optimizer.inner[0].param_groups[0]["lr"]})
            if state.first_loss is not None and loss > DIVERGENCE_FACTOR * max(state.first_loss, 1e-3):
                message = f"the loss ran away, from {state.first_loss:.3g} to {loss:.3g} at step {state.step}"
                raise DivergedError(self._format_divergence_message(message))
            state.recent_loss, state.recent_steps = 0.0, 0
        for name, examples in self.tracked_examples.items():
            found = self.ranks.evaluate(
                self.model, self.objective, examples.batches(EVALUATION_BATCH_SIZE), self.device
            )
            self.evaluations[name] = found
            self._append_metrics(name, summarize_evaluation(found, self.objective.metric))
            if name == "validation":
                self._update_best(found.loss if self.settings.metric_for_best_model == "loss" else 1 - found.accuracy)
        for name, (text, rows) in self.tracked_subsets.items():
            self._append_metrics(name, summarize_evaluation(self.evaluations[text].pick(rows), self.objective.metric))

    def _append_metrics(self, name: str, scores: dict[str, float]) -> None:
        line = {"step": self.state.step, "split": name, **scores, "seconds": round(self.state.seconds, 3)}
        if self.ranks.is_main_process:
            append_jsonl(self.metrics, line)
        self.state.metrics_lines += 1

    def _update_best(self, score: float) -> None:
        """Note the lowest score; of equal ones, the first."""
        state = self.state
        if state.best_score is None or score < state.best_score:
            state.best_score, state.best_step, state.waited = score, state.step, 0
            if self.settings.load_best_model_at_end and self.ranks.is_main_process:
                self._best_weights_checksum = checkpoints.save_weights(self._best(state.step), self.model)
        else:
            state.waited += 1

    def _best(self, step: int) -> Path:
        return self.folder / f"best-{step:06d}.safetensors"

    def _is_patience_exhausted(self) -> bool:
        return self.settings.early_stopping is not None and self.state.waited >= self.settings.early_stopping.patience

    def _save_checkpoint(self) -> None:
        self._accumulate_losses()
        self.ranks.check_weights_in_sync(self.optimizer.parameters)
        if not self.ranks.is_main_process:
            return
        self.state.peak_memory = max(self.state.peak_memory, memory.read_peak_bytes())
        self.state.beside = self._collect_file_checksums()
        checkpoints.save(self.folder, self.model, self.optimizer.tensors(), self.state)
        for old in self.folder.glob("best-*.safetensors"):
            if self.state.best_step is not None and old != self._best(self.state.best_step):
                old.unlink(missing_ok=True)

    def _collect_file_checksums(self) -> dict[str, str]:
        found = {self.metrics.name: compute_sha256(self.metrics)} if self.metrics.is_file() else {}
        if self._best_weights_checksum is not None and self.state.best_step is not None:
            found[self._best(self.state.best_step).name] = self._best_weights_checksum
        return found

    def _resume_from_checkpoint(self) -> bool:
        """Go back to the newest checkpoint, if there is one."""
        tensors = None
        if self.ranks.is_main_process:
            newest = checkpoints.find_latest(self.folder)
            if newest is not None:
                tensors, self.state = checkpoints.restore(newest, self.model)
                checkpoints.check_world_size(newest, self.state, self.ranks.size)
            checkpoints.truncate_lines(self.metrics, self.state.metrics_lines)
            if newest is not None:
                checkpoints.verify_checksums(self.folder, self.state.beside, f"at step {self.state.step}")
                best = self.state.best_step
                self._best_weights_checksum = None if best is None else self.state.beside.get(self._best(best).name)
        tensors, self.state = self.ranks.synchronize_start(self.model, tensors, self.state)
        if tensors is not None:
            self.optimizer.load_state_tensors(tensors)
        return tensors is not None

    def _load_chosen_weights(self, is_stopped_early: bool) -> TrainingResult:
        state = self.state
        chosen = state.step
        if self.settings.load_best_model_at_end and state.best_step is not None:
            if chosen != state.best_step:
                self.evaluations.clear()
            chosen = state.best_step
            if self.ranks.is_main_process:
                checkpoints.verify_checksums(self.folder, self._collect_file_checksums(), f"at step {chosen}")
                tensors = checkpoints.read_weights(self._best(chosen))
                checkpoints.load_tensors(self.model, tensors, str(self._best(chosen)))
            self.ranks.broadcast_weights(self.model)
        return TrainingResult(
            steps=state.step,
            seconds=state.seconds,
            seconds_per_step=state.seconds / max(1, state.step),
            peak_memory=state.peak_memory,
            last_loss=self._read_last_loss(),
            chosen_step=chosen,
            is_stopped_early=is_stopped_early,
            processes=state.processes,
            resharded=tuple(state.resharded),
        )

    def _read_last_loss(self) -> float:
        losses = [line["loss"] for line in read_jsonl(self.metrics) if line["split"] == "batches"]
        return float(losses[-1]) if losses else math.nan


def summarize_evaluation(evaluation: Evaluation, metric: str) -> dict[str, float]:
    """An evaluation as it is written down."""
    shown = {"loss": evaluation.loss, "count": int(evaluation.counts.sum())}
    return (
        {**shown, "perplexity": evaluation.perplexity}
        if metric == "perplexity"
        else {**shown, "accuracy": evaluation.accuracy}
    )
