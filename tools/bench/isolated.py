"""Work that is measured in a child process, where peak memory and start-up can be observed.

    python -m tools.bench.isolated NAME '{"option": value}'      prints its result as one line of JSON

A peak is the memory that the work adds to what the process held before. Something small of the same kind runs first,
because memory that a library allocates at its first call is not part of the work.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from headtohead.config.model import TransformerConfig
from headtohead.config.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.saved_models import model_io
from headtohead.training import memory
from headtohead.training.loop import Trainer
from headtohead.training.objectives import LanguageModelObjective
from headtohead.training.optimizers import ScheduledOptimizer
from headtohead.trials import outputs
from headtohead.trials import trial as trial_module

from . import child_processes
from .attention_op import build_attention_pass
from .workload import build_baseline_trial, build_decoder_experiment

WARM_UP_LENGTH = 512


def measure_peak(work: Callable[[], object]) -> dict[str, float]:
    """Return the peak memory that the work adds, in bytes, and its duration in seconds."""
    gc.collect()
    memory.reset_peak()
    memory_before, start = memory.read_peak_bytes(), time.perf_counter()
    work()
    return {"bytes": memory.read_peak_bytes() - memory_before, "seconds": time.perf_counter() - start}


def _build_base_decoder(vocab_size: int, **changes: Any) -> Transformer:
    sizes = build_decoder_experiment("sotu")["model"] | changes
    model = build_model(TransformerConfig.model_validate(sizes), vocab_size)
    assert isinstance(model, Transformer)
    return model


def _sample_batch(rows: int, length: int, vocab_size: int) -> Batch:
    ids = torch.randint(vocab_size, (rows, length + 1))
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def measure_training_step(loss: str, vocab_size: int, tokens: int, context: int) -> dict[str, float]:
    """Measure one step of the base decoder with our loss ("chunked") or cross entropy over all logits ("plain")."""
    model = _build_base_decoder(vocab_size, context=context)
    training = TrainingConfig.model_validate({"steps": 2, "optimizer": {"kind": "adam", "lr": 1e-3}})
    optimizer = ScheduledOptimizer(model, training, 2)
    objective = LanguageModelObjective()

    def run_step(rows: int) -> None:
        batch = _sample_batch(rows, context, vocab_size)
        if loss == "chunked":
            objective.loss(model, batch).backward()
        else:
            F.cross_entropy(model(batch.input_ids).logits.flatten(0, 1), batch.labels.flatten()).backward()
        optimizer.step(0)

    run_step(1)  # allocates the moments of Adam
    return measure_peak(lambda: run_step(tokens // context))


def measure_attention(is_encoder: bool, window: int | None, context: int) -> dict[str, float]:
    """Measure attention, forward and backward, once."""
    build_attention_pass(WARM_UP_LENGTH, window and WARM_UP_LENGTH // 8, is_encoder=is_encoder)()
    return measure_peak(build_attention_pass(context, window, is_encoder=is_encoder))


def measure_window_step(window: int, context: int) -> dict[str, float]:
    """Measure forward and backward pass of the base decoder with a window in every layer, on one row."""

    def build_step(length: int, size: int) -> Callable[[], None]:
        pattern = {"kind": "window", "size": size}
        model = _build_base_decoder(1000, context=length, position="none", pattern=pattern)
        batch = _sample_batch(1, length, 1000)
        return lambda: LanguageModelObjective().loss(model, batch).backward()

    build_step(WARM_UP_LENGTH, WARM_UP_LENGTH // 8)()
    return measure_peak(build_step(context, window))


@contextmanager
def time_calls(owner: Any, name: str, seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Add the duration of all calls of a function to `seconds[stage]` while the context is open."""
    original = getattr(owner, name)

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            seconds[stage] = seconds.get(stage, 0.0) + time.perf_counter() - start

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, original)


STAGES: tuple[tuple[Any, str, str], ...] = (
    (trial_module, "prepare_dataset", "read, split and tokenize the corpus"),
    (trial_module, "build_training", "build the model and record its start"),
    (Trainer, "_train_step", "steps"),
    (Trainer, "_evaluate_tracked_examples", "evaluation during training"),
    (Trainer, "_save_checkpoint", "checkpoints"),
    (trial_module, "evaluate_splits", "evaluation at the end"),
    (trial_module, "audit_scores", "audit of the scores"),
    (outputs, "audit_initial_and_trained_model", "audit of the model (seed 0 only)"),
    (outputs, "_write_head_measures", "head metrics"),
    (model_io, "save", "save the model"),
    (outputs, "build_result", "checksums and result"),
)


def measure_trial_stages(raw: dict[str, Any], seed: int) -> dict[str, float]:
    """Run one trial in this process and return the duration of each stage in seconds."""
    trial = build_baseline_trial(raw, seed)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        for owner, name, stage in STAGES:
            stack.enter_context(time_calls(owner, name, seconds, stage))
        start = time.perf_counter()
        trial_module.run_trial(trial, Path(scratch) / "run", device="cpu")
        total = time.perf_counter() - start
    return {**seconds, "other": total - sum(seconds.values()), "total": total}


WORK: dict[str, Callable[..., dict[str, float]]] = {
    "training-step": measure_training_step,
    "attention": measure_attention,
    "window-step": measure_window_step,
    "trial-stages": measure_trial_stages,
}


def run_isolated(name: str, **options: Any) -> dict[str, float]:
    """Run one of `WORK` in a child process with one thread."""
    command = child_processes.build_python_command("tools.bench.isolated", name, json.dumps(options))
    result: dict[str, float] = child_processes.parse_result(child_processes.run(command))
    return result


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(WORK[name](**options)))


if __name__ == "__main__":
    main()
