"""The training loop, shared by all tasks.

A step's batch, dropout and learning rate are functions of (seed, step). All other state (weights, optimizer state, a
few counters) is in the checkpoint. A run that is killed at any point and resumed therefore ends with bit-identical
weights.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from headtohead import rng
from headtohead.atomic_io import compute_sha256
from headtohead.config.budget import convert_to_steps
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch, BatchSchedule
from headtohead.data.evaluation_examples import EvaluationExamples, sample_within_pass_limit
from headtohead.errors import DivergedError
from headtohead.json_files import append_jsonl, read_jsonl
from headtohead.nn.random_state import seed_all_generators
from headtohead.nn.tensor_hashes import hash_tensor_values
from headtohead.training import checkpoints, tensor_files
from headtohead.training.checkpoints import TrainingState
from headtohead.training.hardware import process_memory
from headtohead.training.optimization.gradients import GradientComputation
from headtohead.training.optimization.hessian import estimate_hessian_diagonal
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer
from headtohead.training.parallel.single_process import SINGLE_PROCESS, SingleProcess
from headtohead.training.parts.objective import attach_objective_parts, remove_objective_parts
from headtohead.training.task_objectives.base import TaskObjective
from headtohead.training.task_objectives.evaluation_pass import Evaluation
from headtohead.training.training_progress import PASSES_PER_STEP, StepTimer, TrainingProgress

LOSS_CHECK_INTERVAL = 10
"""Steps after which losses are read from the device."""
DIVERGENCE_FACTOR = 3.0
DIVERGENCE_NATS = 5.0
EVALUATION_BATCH_SIZE = 16
"""Small enough for a batch's logits to fit into the CPU cache."""


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
    objective: TaskObjective
    batch_schedule: BatchSchedule
    settings: TrainingConfig
    seed: int
    folder: Path
    tracked_examples: Mapping[str, EvaluationExamples] = field(default_factory=dict)
    """Examples evaluated during training, by split: train, validation and the splits of `monitor`."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    on_progress: Callable[[TrainingProgress], None] = lambda progress: None
    process: SingleProcess = SINGLE_PROCESS
    tracked_subsets: Mapping[str, tuple[str, NDArray[np.intp]]] = field(default_factory=dict)
    """Subsets of the tracked examples that have their own metrics, by name: (split, row indices)."""
    passes_after_training: float = 0.0
    """Number of forward passes over a row after training, for the estimate of the remaining time."""

    def __post_init__(self) -> None:
        """Build the optimizer and the gradient computation of the training loop, before its first step."""
        steps_per_epoch = self.batch_schedule.steps_per_epoch
        self.total_steps = self.settings.compute_total_steps(steps_per_epoch)
        self.evaluate_every = convert_to_steps(self.settings.eval_every, steps_per_epoch)
        self.checkpoint_every = convert_to_steps(self.settings.checkpoint_every, steps_per_epoch)
        self.objective.loss_parts = attach_objective_parts(self.model, self.settings.objective, self.seed)
        self.optimizer = ScheduledOptimizer(self.model, self.settings, self.total_steps)
        self.gradients = GradientComputation(self.model, self.objective, self.settings, self.device)
        self.state = TrainingState(processes=self.process.world_size)
        self.num_evaluations = 1 + math.ceil(self.total_steps / self.evaluate_every)
        self._limit_tracked_examples()
        self.metrics_path = self.folder / "metrics.jsonl"
        self.evaluations: dict[str, Evaluation] = {}
        """Evaluations of the tracked examples under the current weights."""
        self._pending_losses: list[torch.Tensor] = []
        self._best_weights_checksum: str | None = None
        """Checksum of the best weights so far, if they are kept."""
        self.step_timer = StepTimer(self.settings.batch_size)

    def _limit_tracked_examples(self) -> None:
        """Sample the tracked examples so that all evaluations take at most `max_eval_fraction` of the computation of
        training.
        """
        limited_examples = dict(self.tracked_examples)
        if self.settings.max_eval_fraction < 1:
            training_passes = PASSES_PER_STEP * self.settings.batch_size * self.total_steps
            max_passes = self.settings.max_eval_fraction * training_passes / self.num_evaluations
            limited_examples = sample_within_pass_limit(self.tracked_examples, max_passes)
        self.completely_tracked_splits = {
            name for name in limited_examples if limited_examples[name] is self.tracked_examples[name]
        }
        self.tracked_examples = limited_examples
        self._subset_positions: dict[str, tuple[str, NDArray[np.intp]]] = {}
        for name, (split, row_indices) in self.tracked_subsets.items():
            positions = limited_examples[split].find_score_positions(
                torch.from_numpy(row_indices), EVALUATION_BATCH_SIZE
            )
            if len(positions):
                self._subset_positions[name] = split, positions.numpy()

    @property
    def passes_per_evaluation(self) -> float:
        """The number of forward passes, counted per row, in one evaluation of the tracked examples."""
        return sum(examples.num_passes for examples in self.tracked_examples.values())

    @property
    def complete_evaluations(self) -> dict[str, Evaluation]:
        """Evaluations of the tracked splits that are not sampled, under the current weights."""
        return {name: scores for name, scores in self.evaluations.items() if name in self.completely_tracked_splits}

    def run(self) -> TrainingResult:
        """Train to the end, resuming from the newest checkpoint if one exists. Return a summary of the training run."""
        is_new_run = not self._resume_from_checkpoint()
        self.model.train()
        process_memory.reset_peak_memory()
        if is_new_run:
            self._evaluate_tracked_examples()
            self.save_checkpoint()
        should_stop = self._is_patience_exhausted()
        while self.state.step < self.total_steps and not should_stop:
            self.train_step(self.state.step)
            self.state.step += 1
            if self.state.step % LOSS_CHECK_INTERVAL == 0 or self.state.step == self.total_steps:
                self._accumulate_losses()
                self._report_progress()
            elif self.step_timer.is_report_due():
                self._report_progress()
            is_last_step = self.state.step == self.total_steps
            if is_last_step or self.state.step % self.evaluate_every == 0:
                self._evaluate_tracked_examples()
                should_stop = self._is_patience_exhausted()
            if is_last_step or should_stop or self.state.step % self.checkpoint_every == 0:
                self.save_checkpoint()
        return self._load_chosen_weights(should_stop and self.state.step < self.total_steps)

    def train_step(self, step: int) -> None:
        """Apply one optimizer step on the batch of this step."""
        previous_seconds = self.step_timer.step_seconds
        with self.step_timer.time_step():
            self.evaluations.clear()
            seed_all_generators(rng.derive_seed(self.seed, "dropout", step, *self.process.rng_suffix))
            batch = self.batch_schedule.get_batch(step)
            loss = self.process.backward(self.gradients, batch, self.optimizer.parameters)
            has_finite_gradients = self.gradients.unscale_gradients(self.optimizer.parameters)
            if step == 0:
                tensors = [loss, *(parameter.grad for parameter in self.optimizer.parameters)]
                self.state.first_step_digest = hash_tensor_values(tensor for tensor in tensors if tensor is not None)
            if has_finite_gradients:
                self.optimizer.step(step, self._estimate_hessian(batch) if self.optimizer.needs_hessian(step) else {})
            self._pending_losses.append(loss)
        self.state.seconds += self.step_timer.step_seconds - previous_seconds

    def _estimate_hessian(self, batch: Batch) -> Mapping[nn.Parameter, torch.Tensor]:
        """Return the estimated diagonal of the Hessian, for optimizers that need it."""
        parameters = self.optimizer.parameters

        def backward(sampled_batch: Batch) -> None:
            self.process.backward(self.gradients, sampled_batch, parameters)
            self.gradients.unscale_gradients(parameters)

        return estimate_hessian_diagonal(self.model, batch, backward, parameters)

    def _report_progress(self) -> None:
        """Report progress with an estimate of the remaining time."""
        self.step_timer.last_report_time, state = time.perf_counter(), self.state
        num_evaluations_left = self.num_evaluations - 1 - state.step // self.evaluate_every
        num_passes = num_evaluations_left * self.passes_per_evaluation + self.passes_after_training
        self.on_progress(
            TrainingProgress(
                step=state.step,
                total_steps=self.total_steps,
                loss=state.loss_sum / state.num_summed_steps if state.num_summed_steps else None,
                steps_per_second=self.step_timer.steps_per_second,
                seconds_left=self.step_timer.estimate_seconds(self.total_steps - state.step, num_passes),
            )
        )

    def time_batches(self, examples: EvaluationExamples) -> Iterator[Batch]:
        """Yield batches, measure how long their evaluation by the caller takes, and report progress periodically."""
        for batch in examples.iter_batches(EVALUATION_BATCH_SIZE):
            start_time = time.perf_counter()
            yield batch
            num_passes = len(batch.input_ids) * examples.passes_per_example
            self.step_timer.add_passes(num_passes, time.perf_counter() - start_time)
            if self.step_timer.is_report_due():
                self._report_progress()

    def _accumulate_losses(self) -> None:
        """Add pending losses to the running sum; raise DivergedError if one is not finite.

        Losses of several steps are read together, with one device synchronization.
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
        """Return the error message of a diverged run: the problem, and which settings to change."""
        optimizer = self.settings.optimizer
        lr = optimizer.options.get("lr", "the default")
        clipping_advice = "" if self.settings.max_grad_norm else ", or clip gradients (training.max_grad_norm = 1.0)"
        return f"{problem}: try a learning rate below {lr} for {optimizer.kind}, a longer warmup{clipping_advice}"

    def _evaluate_tracked_examples(self) -> None:
        """Evaluate the tracked examples and write the metrics. Only validation data determines the best step."""
        self._accumulate_losses()
        state = self.state
        if state.num_summed_steps:
            loss = state.loss_sum / state.num_summed_steps
            self._append_metrics("batches", {"loss": loss, "lr": self.optimizer.optimizers[0].param_groups[0]["lr"]})
            if state.first_loss is not None and has_diverged(state.first_loss, loss):
                message = f"training diverged: loss rose from {state.first_loss:.3g} to {loss:.3g} by step {state.step}"
                raise DivergedError(self._format_divergence_message(message))
            state.loss_sum, state.num_summed_steps = 0.0, 0
        with self.optimizer.use_evaluation_weights(state.step):
            for split, examples in self.tracked_examples.items():
                evaluation = self.process.run_evaluation_pass(
                    self.model, self.objective, self.time_batches(examples), self.device
                )
                self.evaluations[split] = evaluation
                self._append_metrics(split, summarize_evaluation(evaluation, self.objective.metric))
                if split == "validation":
                    use_loss = self.settings.metric_for_best_model == "loss"
                    self._update_best(evaluation.loss if use_loss else 1 - evaluation.accuracy)
        for subset, (split, positions) in self._subset_positions.items():
            evaluation = self.evaluations[split].select_examples(positions)
            self._append_metrics(subset, summarize_evaluation(evaluation, self.objective.metric))

    def _append_metrics(self, split: str, scores: dict[str, float]) -> None:
        """Append the metrics of a split at the current step to metrics.jsonl."""
        line = {"step": self.state.step, "split": split, **scores, "seconds": round(self.state.seconds, 3)}
        if self.process.is_main_process:
            append_jsonl(self.metrics_path, line)
        self.state.num_metrics_lines += 1

    def _update_best(self, score: float) -> None:
        """Record the lowest finite score and, if requested, save its weights. Ties go to the earliest step."""
        state = self.state
        if math.isfinite(score) and (state.best_score is None or score < state.best_score):
            state.best_score, state.best_step, state.evaluations_since_best = score, state.step, 0
            if self.settings.load_best_model_at_end and self.process.is_main_process:
                path = self._build_best_weights_path(state.step)
                self._best_weights_checksum = tensor_files.save_model_weights(path, self.model)
        else:
            state.evaluations_since_best += 1

    def _build_best_weights_path(self, step: int) -> Path:
        return self.folder / f"best-{step:06d}.safetensors"

    def _is_patience_exhausted(self) -> bool:
        """Return whether to stop early, because the validation score has not improved for `patience` evaluations."""
        early_stopping = self.settings.early_stopping
        return early_stopping is not None and self.state.evaluations_since_best >= early_stopping.patience

    def save_checkpoint(self) -> None:
        """Write a checkpoint and remove weights that are no longer the best."""
        self._accumulate_losses()
        self.process.check_weights_in_sync(self.optimizer.parameters)
        if not self.process.is_main_process:
            return
        self.state.peak_memory = max(self.state.peak_memory, process_memory.read_peak_memory_bytes())
        self.state.file_checksums = self._collect_file_checksums()
        optimizer_tensors = {**self.optimizer.collect_state_tensors(), **self.gradients.collect_state_tensors()}
        checkpoints.save_checkpoint(self.folder, self.model, optimizer_tensors, self.state)
        for weights_path in self.folder.glob("best-*.safetensors"):
            if self.state.best_step is not None and weights_path != self._build_best_weights_path(self.state.best_step):
                weights_path.unlink(missing_ok=True)

    def _collect_file_checksums(self) -> dict[str, str]:
        """Return the checksums of metrics.jsonl and of the best weights."""
        checksums = {}
        if self.metrics_path.is_file():
            checksums[self.metrics_path.name] = compute_sha256(self.metrics_path)
        if self._best_weights_checksum is not None and self.state.best_step is not None:
            checksums[self._build_best_weights_path(self.state.best_step).name] = self._best_weights_checksum
        return checksums

    def _resume_from_checkpoint(self) -> bool:
        """Restore the newest checkpoint of the run folder; return whether there is one."""
        optimizer_tensors = None
        if self.process.is_main_process:
            checkpoint = checkpoints.find_latest_checkpoint(self.folder)
            if checkpoint is not None:
                optimizer_tensors, self.state = checkpoints.restore_checkpoint(checkpoint, self.model)
                checkpoints.check_world_size(checkpoint, self.state, self.process.world_size)
            checkpoints.truncate_jsonl(self.metrics_path, self.state.num_metrics_lines)
            if checkpoint is not None:
                checkpoints.verify_unchanged_files(self.folder, self.state.file_checksums, f"at step {self.state.step}")
                if (best_step := self.state.best_step) is not None:
                    file_name = self._build_best_weights_path(best_step).name
                    self._best_weights_checksum = self.state.file_checksums.get(file_name)
        optimizer_tensors, self.state = self.process.synchronize_start(self.model, optimizer_tensors, self.state)
        if optimizer_tensors is not None:
            self.gradients.pop_state_tensors(optimizer_tensors)
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
                weights_path = self._build_best_weights_path(chosen_step)
                checksums = self._collect_file_checksums()
                checkpoints.verify_unchanged_files(self.folder, checksums, f"at step {chosen_step}")
                tensors = tensor_files.read_safetensors(weights_path)
                tensor_files.load_model_tensors(self.model, tensors, str(weights_path))
            self.process.broadcast_weights(self.model)
        else:
            self.optimizer.keep_evaluation_weights(state.step)
        remove_objective_parts(self.model)
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
        """Return the last mean training loss in metrics.jsonl, or nan."""
        losses = [line["loss"] for line in read_jsonl(self.metrics_path) if line["split"] == "batches"]
        return float(losses[-1]) if losses else math.nan


def has_diverged(first_loss: float, loss: float) -> bool:
    """Return whether the training loop stops: the loss is several times the first one and several nats above it.

    The factor alone would flag models whose initial loss is near 0, such as fine-tuned ones: 0.01 may rise to 0.1.
    """
    return loss > max(DIVERGENCE_FACTOR * first_loss, DIVERGENCE_NATS + first_loss)


def summarize_evaluation(evaluation: Evaluation, metric: str) -> dict[str, float]:
    """Return the metrics of an evaluation pass as written to metrics.jsonl, with the main metric of the task."""
    metrics = {"loss": evaluation.loss, "count": int(evaluation.counts.sum())}
    return {**metrics, metric: evaluation.perplexity if metric == "perplexity" else evaluation.accuracy}
