"""Work that is measured in a child process: peak memory of steps and of attention, and the stages of a trial.

    python -m tools.bench.isolated NAME '{"option": value}'      prints its result as one line of JSON

A peak is the memory that the work adds to what the process held before. A small instance of the same work runs first,
because memory that a library allocates at its first call is not part of the work.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from headtohead.config.tables.model import TransformerConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.execution import local_worker
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.saved_models import model_io
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.hardware import process_memory
from headtohead.training.loop import Trainer
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective
from headtohead.trials import analyses, result_files
from headtohead.trials import trial as trial_module
from headtohead.trials.step_cost import compute_trial_model_cost
from headtohead.trials.timing import estimate_trial_seconds

from . import child_processes
from .attention_op import build_attention_pass
from .experiments import build_decoder_experiment
from .workload import build_baseline_trial, build_trainer

WARM_UP_LENGTH = 512
"""context length of the unmeasured first run, in tokens"""


def measure_peak_memory(work: Callable[[], object]) -> dict[str, float]:
    """Return the peak memory that the work adds, in bytes, and its duration in seconds."""
    gc.collect()
    process_memory.reset_peak_memory()
    memory_before, start_time = process_memory.read_peak_memory_bytes(), time.perf_counter()
    work()
    return {
        "bytes": process_memory.read_peak_memory_bytes() - memory_before,
        "seconds": time.perf_counter() - start_time,
    }


def _build_base_decoder(vocab_size: int, **changes: Any) -> Transformer:
    """Return the base decoder with changes to its settings."""
    model_settings = build_decoder_experiment("sotu")["model"] | changes
    model = build_model(TransformerConfig.model_validate(model_settings), vocab_size)
    assert isinstance(model, Transformer)
    return model


def _sample_batch(batch_size: int, length: int, vocab_size: int) -> Batch:
    """Return a batch of random tokens for next-token prediction."""
    token_ids = torch.randint(vocab_size, (batch_size, length + 1))
    return Batch(token_ids[:, :-1].contiguous(), token_ids[:, 1:].contiguous())


def measure_training_step_memory(loss: str, vocab_size: int, tokens: int, context: int) -> dict[str, float]:
    """Measure one step of the base decoder with our loss ("chunked") or cross entropy over all logits ("plain")."""
    model = _build_base_decoder(vocab_size, context=context)
    training = TrainingConfig.model_validate({"budget": "2 steps", "optimizer": {"kind": "adam", "lr": 1e-3}})
    optimizer = ScheduledOptimizer(model, training, 2)
    objective = LanguageModelObjective()

    def run_step(batch_size: int) -> None:
        batch = _sample_batch(batch_size, context, vocab_size)
        if loss == "chunked":
            objective.compute_loss(model, batch).backward()
        else:
            F.cross_entropy(model(batch.input_ids).logits.flatten(0, 1), batch.labels.flatten()).backward()
        optimizer.step(0)

    run_step(1)  # allocates the moment estimates of Adam
    return measure_peak_memory(lambda: run_step(tokens // context))


def measure_attention_memory(is_encoder: bool, window: int | None, context: int) -> dict[str, float]:
    """Measure one forward and backward pass of the attention operation."""
    build_attention_pass(WARM_UP_LENGTH, window and WARM_UP_LENGTH // 8, is_encoder=is_encoder)()
    return measure_peak_memory(build_attention_pass(context, window, is_encoder=is_encoder))


def measure_window_step_memory(window: int, context: int) -> dict[str, float]:
    """Measure forward and backward pass of the base decoder with a window in every layer, on one sequence."""

    def build_step(length: int, window_size: int) -> Callable[[], None]:
        pattern = {"kind": "window", "size": window_size}
        model = _build_base_decoder(1000, context=length, position="none", pattern=pattern)
        batch = _sample_batch(1, length, 1000)
        return lambda: LanguageModelObjective().compute_loss(model, batch).backward()

    build_step(WARM_UP_LENGTH, WARM_UP_LENGTH // 8)()
    return measure_peak_memory(build_step(context, window))


@contextmanager
def time_calls(owner: Any, name: str, seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the duration of all calls of a function to `seconds[stage]` while the context is open."""
    original = getattr(owner, name)

    def call_and_time(*args: Any, **kwargs: Any) -> Any:
        start_time = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start_time

    setattr(owner, name, call_and_time)
    try:
        yield
    finally:
        setattr(owner, name, original)


TRIAL_STAGES: tuple[tuple[Any, str, str], ...] = (
    (trial_module, "prepare_dataset", "read, split and tokenize the corpus"),
    (trial_module, "build_training", "build the model and record its start"),
    (Trainer, "train_step", "steps"),
    (Trainer, "_evaluate_tracked_examples", "evaluation during training"),
    (Trainer, "save_checkpoint", "checkpoints"),
    (trial_module, "evaluate_splits", "evaluation at the end"),
    (trial_module, "audit_trial_scores", "audit of the scores"),
    (trial_module, "audit_trial_training", "audit of the training"),
    (analyses, "audit_trial_models", "audit of the model (seed 0 only)"),
    (analyses, "_write_head_metrics", "head metrics"),
    (model_io, "save_model", "save the model"),
    (result_files, "build_result", "checksums and result"),
)
"""module or class, function, and title of each timed stage of a trial"""


def measure_trial_stages(raw: dict[str, Any], seed: int) -> dict[str, float]:
    """Run one trial in this process and return the duration of each stage in seconds."""
    trial = build_baseline_trial(raw, seed)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        for owner, name, stage in TRIAL_STAGES:
            stack.enter_context(time_calls(owner, name, seconds, stage))
        start_time = time.perf_counter()
        trial_module.run_trial(trial, Path(scratch) / "run", device="cpu")
        total_seconds = time.perf_counter() - start_time
    return {**seconds, "other": total_seconds - sum(seconds.values()), "total": total_seconds}


def measure_pinned_steps(raw: dict[str, Any], folder: str) -> dict[str, float]:
    """Pin this process to one core and train; return the seconds of the fastest step and the loss of the last one."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    process_memory.retain_freed_memory()
    model, trainer = build_trainer(raw, 0, Path(folder))
    model.train()
    seconds = []
    for step in range(trainer.total_steps):
        start_time = time.perf_counter()
        trainer.train_step(step)
        seconds.append(time.perf_counter() - start_time)
    return {"seconds": min(seconds[1:]), "loss": trainer._pending_losses[-1].item()}


def measure_estimates(raw: dict[str, Any], seed: int) -> dict[str, float]:
    """Run one trial in this process; return its duration and peak memory, estimated before and measured."""
    process_memory.retain_freed_memory()
    trial = build_baseline_trial(raw, seed)
    dataset = prepare_dataset(trial.data, trial.task)
    model_cost = compute_trial_model_cost(trial, dataset)
    with tempfile.TemporaryDirectory() as scratch:
        estimated_seconds = estimate_trial_seconds(trial, Path(scratch) / "estimate")
        process_memory.reset_peak_memory()
        start_time = time.perf_counter()
        trial_module.run_trial(trial, Path(scratch) / "run", device="cpu", model_cost=model_cost)
    return {
        "parameters": model_cost.parameters,
        "estimated_seconds": estimated_seconds,
        "seconds": time.perf_counter() - start_time,
        "estimated_bytes": local_worker.WORKER_BYTES + model_cost.training_bytes,
        "bytes": process_memory.read_peak_memory_bytes(),
    }


MEASURED_WORK: dict[str, Callable[..., dict[str, float]]] = {
    "training-step": measure_training_step_memory,
    "attention": measure_attention_memory,
    "window-step": measure_window_step_memory,
    "trial-stages": measure_trial_stages,
    "pinned-steps": measure_pinned_steps,
    "estimates": measure_estimates,
}


def run_isolated(name: str, **options: Any) -> dict[str, float]:
    """Run one of `MEASURED_WORK` in a child process with one thread."""
    command = child_processes.build_python_command("tools.bench.isolated", name, json.dumps(options))
    result: dict[str, float] = child_processes.parse_json_result(child_processes.run_command(command))
    return result


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(MEASURED_WORK[name](**options)))


if __name__ == "__main__":
    main()
