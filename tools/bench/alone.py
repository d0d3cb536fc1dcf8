"""Work that is measured in a process of its own, because memory and start-up can only be seen there.

    python -m tools.bench.alone NAME '{"option": value}'      prints its answer as one line of JSON

A peak is what a piece of work adds at its highest point to what the process held before. Something small of the same
kind is done first: what a library takes at its first call belongs to nobody.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from headtohead.config import experiment, loading
from headtohead.config import model as config_model
from headtohead.config import training as config_training
from headtohead.data.batches import Batch
from headtohead.model_factory import build_model
from headtohead.nn.transformer import Transformer
from headtohead.training import memory
from headtohead.training.loop import Trainer
from headtohead.training.objectives import LanguageModelObjective
from headtohead.training.optimizers import ScheduledOptimizer
from headtohead.trials import trial as lab_trial

from . import children, lessons
from .roads import attention_work

SMALL = 512


def peak_of(work: Callable[[], object]) -> dict[str, float]:
    """Bytes that the work adds at the most, and its seconds."""
    gc.collect()
    memory.reset_peak()
    before, began = memory.read_peak_bytes(), time.perf_counter()
    work()
    return {"bytes": memory.read_peak_bytes() - before, "seconds": time.perf_counter() - began}


def loss_step(kind: str, vocab: int, tokens: int, context: int) -> dict[str, float]:
    """One step of the base decoder: with our loss, or with plain cross entropy over whole logits."""
    sizes = lessons.decoder("sotu", seeds=1, steps=1, evaluate=1)["model"] | {"context": context}
    model = build_model(config_model.TransformerConfig.model_validate(sizes), vocab)
    assert isinstance(model, Transformer)
    training = config_training.TrainingConfig.model_validate({"steps": 2, "optimizer": {"kind": "adam", "lr": 1e-3}})
    descent = ScheduledOptimizer(model, training, 2)
    objective = LanguageModelObjective()

    def step(rows: int) -> None:
        ids = torch.randint(vocab, (rows, context + 1))
        batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        if kind == "ours":
            loss = objective.loss(model, batch)
        else:
            loss = F.cross_entropy(model(batch.input_ids).logits.flatten(0, 1), batch.labels.flatten())
        loss.backward()
        descent.step(0)

    step(1)  # Adam's moments and the libraries' own memory are there from here on
    return peak_of(lambda: step(tokens // context))


def attention(encoder: bool, window: int | None, context: int) -> dict[str, float]:
    """Attention forward and backward, once."""
    attention_work(SMALL, window and SMALL // 8, encoder=encoder)()
    return peak_of(attention_work(context, window, encoder=encoder))


def window_step(window: int, context: int) -> dict[str, float]:
    """One step of the base decoder with a window in every layer, on one row."""

    def made(length: int, size: int) -> Callable[[], None]:
        sizes = lessons.decoder("sotu", seeds=1, steps=1, evaluate=1)["model"]
        sizes |= {"context": length, "position": "none", "pattern": {"kind": "window", "size": size}}
        model = build_model(config_model.TransformerConfig.model_validate(sizes), 1000)
        ids = torch.randint(1000, (1, length + 1))
        batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        return lambda: LanguageModelObjective().loss(model, batch).backward()

    made(SMALL, SMALL // 8)()
    return peak_of(made(context, window))


@contextmanager
def stopwatch(owner: Any, name: str, times: dict[str, float], stage: str) -> Iterator[None]:
    """Adds up the seconds that a function takes while this is open."""
    inner = getattr(owner, name)

    def timed(*given: Any, **more: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*given, **more)
        finally:
            times[stage] = times.get(stage, 0.0) + time.perf_counter() - began

    setattr(owner, name, timed)
    try:
        yield
    finally:
        setattr(owner, name, inner)


STAGES: tuple[tuple[Any, str, str], ...] = (
    (lab_trial, "prepare", "reading, splitting and tokenising the corpus"),
    (lab_trial, "begin", "the model and what is noted of its start"),
    (Trainer, "_step", "steps"),
    (Trainer, "_evaluate", "scoring along the way"),
    (Trainer, "_save", "checkpoints"),
    (lab_trial, "evaluate_splits", "scoring at the end"),
    (lab_trial, "_audit", "audits (seed 0 only)"),
    (lab_trial, "_heads", "what each head does"),
    (lab_trial.model_io, "save", "saving the model"),
    (lab_trial, "_result", "checksums and the result"),
)


def fixed_costs(raw: dict[str, Any], seed: int) -> dict[str, float]:
    """One trial in a fresh process, by stages."""
    trial = loading.build_trial(lessons.experiment(raw), experiment.BASELINE, seed)
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        opened = [stopwatch(owner, name, times, stage) for owner, name, stage in STAGES]
        for one in opened:
            one.__enter__()
        began = time.perf_counter()
        lab_trial.run_trial(trial, Path(scratch) / "run", device="cpu")
        whole = time.perf_counter() - began
        for one in reversed(opened):
            one.__exit__(None, None, None)
    return {**times, "the rest": whole - sum(times.values()), "the whole trial": whole}


WORK: dict[str, Callable[..., dict[str, float]]] = {
    "loss-step": loss_step,
    "attention": attention,
    "window-step": window_step,
    "fixed-costs": fixed_costs,
}


def ask(name: str, **options: Any) -> dict[str, float]:
    """Have it done in a child, on one thread."""
    said = children.run(children.python("tools.bench.alone", name, json.dumps(options)))
    answer: dict[str, float] = children.answer(said)
    return answer


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    name, options = sys.argv[1], json.loads(sys.argv[2])
    print(json.dumps(WORK[name](**options)))


if __name__ == "__main__":
    main()
