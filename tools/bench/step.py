"""Step: what share of the machine's own limit a training step reaches, and where its time goes.

The limit is a product of two square matrices of 2,048 in float32 on one thread, measured in turn with the steps. A
step's work is counted as 6 x tokens x parameters without the embedding table, which is only looked up: two operations
for each weight and token on the way forward, four on the way back.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from headtohead.training import memory

from . import lessons, peer_models, peers
from .findings import Bar, Finding, Found, How, Table
from .machine import SQUARE, square_product
from .turns import take_turns

ROUNDS = 15
STEPS = 10
"""in one turn"""


@dataclass(frozen=True)
class Size:
    """A model whose step is measured, and the share that is promised."""

    title: str
    model: dict[str, Any]
    wanted: float


SIZES = (
    Size("width 64, context 32", {}, 0.45),
    Size("width 256, context 64", {"width": 256, "context": 64, "feedforward": {"kind": "mlp", "hidden": 1024}}, 0.75),
)


def step(how: How) -> Found:
    """Ours and GPT-2's step against the peak; then ours under the profiler. Memory is kept as in a worker, for both."""
    memory.retain_freed_memory()
    for size in SIZES:
        yield from _measured(size, how)


def _measured(size: Size, how: How) -> Found:
    steps = 2 if how.short else STEPS
    raw = lessons.decoder(how.data, seeds=1, steps=500, evaluate=100, model=size.model)
    model, training = lessons.begun(raw, 0, Path(how.scratch) / size.title.replace(" ", "-").replace(",", ""))
    model.train()
    shape = lessons.shape_of(raw, model, training)
    start = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    product, operations = square_product()
    sides: dict[str, Callable[[], object]] = {
        "peak": product,
        "ours": lambda: [training._train_step(at) for at in range(steps)],
        "gpt2": _theirs(peer_models.gpt2(shape, start), shape, training, steps),
    }
    best = take_turns(sides, how.rounds(ROUNDS))
    peak = operations / best["peak"].wall
    tokens = raw["training"]["batch_size"] * shape.context
    counted = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    shares = {who: 6 * tokens * counted * steps / best[who].wall / peak for who in ("ours", "gpt2")}
    seconds = {who: best[who].wall / steps for who in ("ours", "gpt2")}
    what = f"{size.title}: share of the peak of {peak / 1e9:.0f} GFLOP/s ({SQUARE:,} square, one thread)"
    yield Finding(
        what,
        1e3 * seconds["ours"],
        "ms a step",
        1e3 * seconds["gpt2"],
        "transformers GPT-2, plain step",
        shares["ours"],
        "share",
        Bar(size.wanted),
    )
    yield Finding(
        f"{size.title}: the same of transformers GPT-2, for comparison",
        1e3 * seconds["gpt2"],
        "ms a step",
        figure=shares["gpt2"],
        kind="share",
    )
    yield _profile(size.title, training, shape, tokens, steps, seconds["ours"])


def _theirs(model: torch.nn.Module, shape: lessons.Shape, training: Any, steps: int) -> Callable[[], object]:
    """The step of a plain loop."""
    optimizer = peers.adam(model, shape.rate)
    batches = [training.schedule.batch(at) for at in range(steps)]
    mask = torch.ones_like(batches[0].input_ids, dtype=torch.bool)

    def side() -> None:
        for batch in batches:
            peers.loss_of(model, (batch.input_ids, batch.labels, mask)).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return side


# ---- where the time goes

PURPOSES = (
    "vocabulary: products",
    "vocabulary: softmax and loss",
    "vocabulary: tables of its size zeroed, added, scaled",
    "embedding and positions",
    "attention: projections",
    "attention: scores and values",
    "feed-forward",
    "norms",
    "optimizer",
    "the rest, and Python between operations",
)
REST = PURPOSES[-1]
PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::addmm_": 1}
"""products of two matrices, and which of their inputs is the first"""
BY_NAME = {
    "layer_norm": "norms",
    "embedding": "embedding and positions",
    "scaled_dot_product": "attention: scores and values",
    "adam": "optimizer",
    "Optimizer.": "optimizer",
}


def purpose_of(name: str, shapes: list[list[int]], shape: lessons.Shape, tokens: int) -> str:
    """What an operation is for, from its name and the shapes of what it is given."""
    for part, purpose in BY_NAME.items():
        if part in name:
            return purpose
    if name in PRODUCTS:
        return _purpose_of_product(*shapes[PRODUCTS[name] :][:2], shape=shape, tokens=tokens)
    if any(shape.vocab in one for one in shapes):
        logits = [one for one in shapes if len(one) == 2 and shape.vocab in one and one != [shape.vocab, shape.width]]
        return PURPOSES[1] if logits else PURPOSES[2]
    wide = [one for one in shapes if one and one[-1] == shape.hidden]
    return "feed-forward" if any(one != [shape.hidden, shape.width] for one in wide) else REST


def _purpose_of_product(a: list[int], b: list[int], *, shape: lessons.Shape, tokens: int) -> str:
    """A product has three sizes; one of them is the number of tokens, the others say which weights it is about."""
    sizes = [*a, b[-1]]
    if shape.vocab in sizes:
        return "vocabulary: products"
    if tokens in sizes:
        sizes.remove(tokens)
    return "feed-forward" if shape.hidden in sizes else "attention: projections"


def _profile(title: str, training: Any, shape: lessons.Shape, tokens: int, steps: int, seconds: float) -> Table:
    """Shares from the profiler, which slows small operations down; milliseconds from the step without it."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as seen:
        began = time.perf_counter()
        for at in range(steps):
            training._train_step(at)
        whole = time.perf_counter() - began
    spent = dict.fromkeys(PURPOSES, 0.0)
    for event in seen.key_averages(group_by_input_shape=True):
        spent[purpose_of(event.key, event.input_shapes or [], shape, tokens)] += event.self_cpu_time_total / 1e6
    spent[REST] += max(0.0, whole - sum(spent.values()))
    total = sum(spent.values())
    rows = [[name, f"{100 * one / total:.1f} %", f"{1e3 * seconds * one / total:.2f}"] for name, one in spent.items()]
    note = (
        f"{steps} steps of ours under torch.profiler on one thread; milliseconds are shares of {1e3 * seconds:.1f} ms."
    )
    return Table(f"Where a step's time goes, {title}", ["what for", "share", "ms a step"], rows, note)
