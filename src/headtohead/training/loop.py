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
from headtohead.atomic_io import append_line, read_lines, sha256
from headtohead.config import training
from headtohead.data.batches import Schedule
from headtohead.data.examples import Examples
from headtohead.errors import DivergedError
from headtohead.nn.torch_rng import seed_devices
from headtohead.training import checkpoints, memory
from headtohead.training.checkpoints import State
from headtohead.training.objectives import Evaluation, Objective
from headtohead.training.optimizers import Descent
from headtohead.training.processes import ALONE, Alone

CHECK_EVERY = 10
RAN_AWAY = 3.0
EVALUATION_BATCH = 16
"""small enough for the logits of a batch to stay near the processor"""


@dataclass(frozen=True)
class Progress:
    """What the loop tells while it runs."""

    step: int
    steps: int
    loss: float
    rate: float
    """steps per second since this process began"""


@dataclass(frozen=True)
class Trained:
    """What a finished training says of itself. The model holds the weights that were chosen."""

    steps: int
    seconds: float
    seconds_per_step: float
    peak_memory: int
    last_loss: float
    """mean training loss since the last evaluation"""
    chosen_step: int
    stopped_early: bool
    processes: int = 1
    """that trained it together"""
    resharded: tuple[int, ...] = ()
    """the steps after which their number was changed"""


@dataclass
class Training:
    """One trial being trained: all that a step needs."""

    model: nn.Module
    objective: Objective
    schedule: Schedule
    settings: training.Training
    seed: int
    folder: Path
    followed: Mapping[str, Examples] = field(default_factory=dict)
    """texts scored along the way, by name: train, validation, and those of `watch`"""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    tell: Callable[[Progress], None] = lambda progress: None
    ranks: Alone = ALONE
    picked: Mapping[str, tuple[str, NDArray[np.intp]]] = field(default_factory=dict)
    """some rows of a followed text under a name of their own: which text, and which rows. Nothing is scored twice."""

    def __post_init__(self) -> None:
        epoch = self.schedule.steps_per_epoch
        self.steps = self.settings.total_steps(epoch)
        self.evaluate_every = self.settings.evaluate_every(epoch)
        self.checkpoint_every = self.settings.checkpoint_every(epoch)
        self.descent = Descent(self.model, self.settings, self.steps)
        self.state = State(processes=self.ranks.size)
        self.metrics = self.folder / "metrics.jsonl"
        self.scored: dict[str, Evaluation] = {}
        """the followed texts with the weights as they are, where those were scored"""
        self._recent: list[torch.Tensor] = []
        self._best_sum: str | None = None
        """checksum of the best weights so far, where they are kept"""

    def run(self) -> Trained:
        """Train from the newest checkpoint, or from the start, to the end."""
        is_new = not self._resume()
        self.model.train()
        memory.mark()
        began, first_step = time.perf_counter(), self.state.step
        if is_new:
            self._evaluate()
            self._save()
        stopped = self._has_stopped()
        while self.state.step < self.steps and not stopped:
            self._step(self.state.step)
            self.state.step += 1
            if self.state.step % CHECK_EVERY == 0 or self.state.step == self.steps:
                self._check_loss()
                done, gone = self.state.step - first_step, time.perf_counter() - began
                loss = self.state.recent_loss / max(1, self.state.recent_steps)
                self.tell(Progress(self.state.step, self.steps, loss, done / gone))
            at_end = self.state.step == self.steps
            if at_end or self.state.step % self.evaluate_every == 0:
                self._evaluate()
                stopped = self._has_stopped()
            if at_end or stopped or self.state.step % self.checkpoint_every == 0:
                self._save()
        return self._finish(stopped and self.state.step < self.steps)

    def _step(self, step: int) -> None:
        began = time.perf_counter()
        self.scored.clear()
        seed_devices(rng.key(self.seed, "dropout", step, *self.ranks.stream))
        batch = self.schedule.batch(step)
        loss = self.ranks.backward(self.objective, self.model, batch, self.descent.parameters, self.device)
        self.descent.step(step)
        self._recent.append(loss)
        self.state.seconds += time.perf_counter() - began

    def _check_loss(self) -> None:
        """Add up what was not yet added up; one look at the values for several steps."""
        losses = self.ranks.total(torch.stack(self._recent)).tolist() if self._recent else []
        for offset, loss in enumerate(losses):
            step = self.state.step - len(self._recent) + offset + 1
            if self.state.first_loss is None:
                self.state.first_loss = loss
            if not math.isfinite(loss):
                raise DivergedError(self._advice(f"the loss is not a number at step {step}"))
            self.state.recent_loss += loss
            self.state.recent_steps += 1
        self._recent.clear()

    def _advice(self, what: str) -> str:
        optimizer = self.settings.optimizer
        rate = optimizer.options.get("rate", "its default")
        clip = "" if self.settings.clip else ", or clip gradients (training.clip = 1.0)"
        return f"{what}: try a lower rate than {rate} for {optimizer.kind}, a longer warm-up{clip}"

    def _evaluate(self) -> None:
        """Score the followed texts; note them; keep the best by validation data only."""
        self._check_loss()
        state = self.state
        if state.recent_steps:
            loss = state.recent_loss / state.recent_steps
            self._note("batches", {"loss": loss, "rate": self.descent.inner[0].param_groups[0]["lr"]})
            if state.first_loss is not None and loss > RAN_AWAY * max(state.first_loss, 1e-3):
                message = f"the loss ran away, from {state.first_loss:.3g} to {loss:.3g} at step {state.step}"
                raise DivergedError(self._advice(message))
            state.recent_loss, state.recent_steps = 0.0, 0
        for name, examples in self.followed.items():
            found = self.ranks.evaluate(self.model, self.objective, examples.batches(EVALUATION_BATCH), self.device)
            self.scored[name] = found
            self._note(name, scores_of(found, self.objective.metric))
            if name == "validation":
                self._choose(found.loss if self.settings.best_by == "loss" else 1 - found.accuracy)
        for name, (text, rows) in self.picked.items():
            self._note(name, scores_of(self.scored[text].pick(rows), self.objective.metric))

    def _note(self, name: str, scores: dict[str, float]) -> None:
        line = {"step": self.state.step, "split": name, **scores, "seconds": round(self.state.seconds, 3)}
        if self.ranks.is_first:
            append_line(self.metrics, line)
        self.state.metrics_lines += 1

    def _choose(self, score: float) -> None:
        """Note the lowest score; of equal ones, the first."""
        state = self.state
        if state.best_score is None or score < state.best_score:
            state.best_score, state.best_step, state.waited = score, state.step, 0
            if self.settings.keep == "best" and self.ranks.is_first:
                self._best_sum = checkpoints.save_weights(self._best(state.step), self.model)
        else:
            state.waited += 1

    def _best(self, step: int) -> Path:
        return self.folder / f"best-{step:06d}.safetensors"

    def _has_stopped(self) -> bool:
        return self.settings.stop is not None and self.state.waited >= self.settings.stop.patience

    def _save(self) -> None:
        self._check_loss()
        self.ranks.check_alike(self.descent.parameters)
        if not self.ranks.is_first:
            return
        self.state.peak_memory = max(self.state.peak_memory, memory.peak())
        self.state.beside = self._beside()
        checkpoints.save(self.folder, self.model, self.descent.tensors(), self.state)
        for old in self.folder.glob("best-*.safetensors"):
            if self.state.best_step is not None and old != self._best(self.state.best_step):
                old.unlink(missing_ok=True)

    def _beside(self) -> dict[str, str]:
        found = {self.metrics.name: sha256(self.metrics)} if self.metrics.is_file() else {}
        if self._best_sum is not None and self.state.best_step is not None:
            found[self._best(self.state.best_step).name] = self._best_sum
        return found

    def _resume(self) -> bool:
        """Go back to the newest checkpoint, if there is one."""
        tensors = None
        if self.ranks.is_first:
            newest = checkpoints.newest(self.folder)
            if newest is not None:
                tensors, self.state = checkpoints.restore(newest, self.model)
                checkpoints.check_processes(newest, self.state, self.ranks.size)
            checkpoints.cut_lines(self.metrics, self.state.metrics_lines)
            if newest is not None:
                checkpoints.check_sums(self.folder, self.state.beside, f"at step {self.state.step}")
                best = self.state.best_step
                self._best_sum = None if best is None else self.state.beside.get(self._best(best).name)
        tensors, self.state = self.ranks.begin_alike(self.model, tensors, self.state)
        if tensors is not None:
            self.descent.restore(tensors)
        return tensors is not None

    def _finish(self, stopped_early: bool) -> Trained:
        state = self.state
        chosen = state.step
        if self.settings.keep == "best" and state.best_step is not None:
            if chosen != state.best_step:
                self.scored.clear()
            chosen = state.best_step
            if self.ranks.is_first:
                checkpoints.check_sums(self.folder, self._beside(), f"at step {chosen}")
                tensors = checkpoints.read_weights(self._best(chosen))
                checkpoints.load_tensors(self.model, tensors, str(self._best(chosen)))
            self.ranks.spread(self.model)
        return Trained(
            steps=state.step,
            seconds=state.seconds,
            seconds_per_step=state.seconds / max(1, state.step),
            peak_memory=state.peak_memory,
            last_loss=self._last_loss(),
            chosen_step=chosen,
            stopped_early=stopped_early,
            processes=state.processes,
            resharded=tuple(state.resharded),
        )

    def _last_loss(self) -> float:
        losses = [line["loss"] for line in read_lines(self.metrics) if line["split"] == "batches"]
        return float(losses[-1]) if losses else math.nan


def scores_of(found: Evaluation, metric: str) -> dict[str, float]:
    """An evaluation as it is written down."""
    shown = {"loss": found.loss, "count": int(found.counts.sum())}
    return (
        {**shown, "perplexity": found.perplexity} if metric == "perplexity" else {**shown, "accuracy": found.accuracy}
    )
