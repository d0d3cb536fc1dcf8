"""Step: the fraction of the machine's peak that a training step reaches, and where its time is spent.

The peak is that of a product of two 2,048 x 2,048 matrices in float32 on one thread, measured alternately with the
steps. A step counts as 6 x tokens x parameters FLOPs without the embedding table, which is only looked up: two per
weight and token in the forward pass, four in the backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from headtohead.training.hardware import process_memory

from . import peer_models, peer_training
from .experiments import build_decoder_experiment
from .machine import MATRIX_SIZE, build_matrix_product
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target
from .timing import run_alternating
from .workload import WorkloadShape, build_trainer, copy_weights, get_workload_shape, list_step_batches

ROUNDS = 15
STEPS_PER_ROUND = 10


@dataclass(frozen=True)
class ModelSize:
    """A model whose step is measured, and the minimum fraction of the peak."""

    title: str
    model: dict[str, Any]
    min_fraction: float
    steps_per_round: int = STEPS_PER_ROUND
    max_rounds: int = ROUNDS


WIDE_FEEDFORWARD = {"kind": "mlp", "hidden": 1024}
MODEL_SIZES = (
    ModelSize("width 64, context 32", {}, 0.45),
    ModelSize("width 256, context 64", {"width": 256, "context": 64, "feedforward": WIDE_FEEDFORWARD}, 0.75),
    ModelSize(
        "10 million parameters, width 256, 9 layers, context 256",
        {"width": 256, "layers": 9, "heads": 8, "context": 256, "feedforward": WIDE_FEEDFORWARD},
        0.8,
        steps_per_round=1,
        max_rounds=5,
    ),
)


def measure_step_efficiency(settings: BenchmarkSettings) -> Measurements:
    """Compare our step and GPT-2's with the peak, then profile ours. Freed memory is retained, as in a worker."""
    process_memory.retain_freed_memory()
    for size in MODEL_SIZES:
        yield from _measure_model_size(size, settings)


def _measure_model_size(size: ModelSize, settings: BenchmarkSettings) -> Measurements:
    """Measure the steps of one model: fraction of the peak, GPT-2 for comparison, and a profile."""
    num_steps = min(2, size.steps_per_round) if settings.is_short else size.steps_per_round
    raw = build_decoder_experiment(settings.data, steps=500, eval_every=100, model=size.model)
    model, trainer = build_trainer(raw, 0, settings.scratch / size.title.replace(" ", "-").replace(",", ""))
    model.train()
    shape = get_workload_shape(raw, model, trainer)
    weights = copy_weights(model)
    matrix_product, product_flops = build_matrix_product()
    contestants: dict[str, Callable[[], object]] = {
        "peak": matrix_product,
        "ours": lambda: [trainer.train_step(index) for index in range(num_steps)],
        "gpt2": _build_peer_steps(peer_models.build_gpt2(shape, weights), shape, trainer, num_steps),
    }
    best = run_alternating(contestants, settings.get_num_rounds(size.max_rounds))
    peak_flops_per_second = product_flops / best["peak"].wall_seconds
    tokens_per_step = raw["training"]["batch_size"] * shape.context
    num_parameters = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    seconds_per_step = {name: best[name].wall_seconds / num_steps for name in ("ours", "gpt2")}
    step_flops = 6 * tokens_per_step * num_parameters
    fractions = {name: step_flops / seconds / peak_flops_per_second for name, seconds in seconds_per_step.items()}
    yield Measurement(
        f"{size.title}: fraction of the peak of {peak_flops_per_second / 1e9:.0f} GFLOP/s ({MATRIX_SIZE:,} square, one "
        "thread)",
        1e3 * seconds_per_step["ours"],
        "ms per step",
        1e3 * seconds_per_step["gpt2"],
        "transformers GPT-2, plain step",
        fractions["ours"],
        "share",
        Target(size.min_fraction),
    )
    name = f"{size.title}: fraction of the peak, transformers GPT-2"
    yield Measurement(name, 1e3 * seconds_per_step["gpt2"], "ms per step", result=fractions["gpt2"], kind="share")
    yield _profile_steps(size.title, trainer, shape, tokens_per_step, num_steps, seconds_per_step["ours"])


def _build_peer_steps(
    model: torch.nn.Module, shape: WorkloadShape, trainer: Any, num_steps: int
) -> Callable[[], object]:
    """Return a function that runs the steps of a plain training loop."""
    optimizer = peer_training.create_adam(model, shape.lr)
    batches = list_step_batches(trainer, num_steps)

    def run_steps() -> None:
        for batch in batches:
            peer_training.compute_loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    return run_steps


# ---- where the time is spent

CATEGORIES = (
    "vocabulary: products",
    "vocabulary: softmax and loss",
    "vocabulary: weight-sized tensors zeroed, added, scaled",
    "embedding and positions",
    "attention: projections",
    "attention: scores and values",
    "feed-forward",
    "norms",
    "optimizer",
    "other, and Python between operations",
)
OTHER_CATEGORY = CATEGORIES[-1]
FIRST_MATRIX_INDEX = {"aten::mm": 0, "aten::addmm": 1, "aten::addmm_": 1}
"""matrix products, and the index of the first matrix among their inputs"""
CATEGORIES_BY_NAME_FRAGMENT = {
    "layer_norm": "norms",
    "embedding": "embedding and positions",
    "scaled_dot_product": "attention: scores and values",
    "adam": "optimizer",
    "Optimizer.": "optimizer",
}


def categorize_operation(name: str, input_shapes: list[list[int]], shape: WorkloadShape, tokens_per_step: int) -> str:
    """Return the category of an operation from its name and the shapes of its inputs."""
    for fragment, category in CATEGORIES_BY_NAME_FRAGMENT.items():
        if fragment in name:
            return category
    if name in FIRST_MATRIX_INDEX:
        first, second = input_shapes[FIRST_MATRIX_INDEX[name] :][:2]
        return _categorize_product(first, second, shape, tokens_per_step)
    vocab_size, weight_shape = shape.vocab_size, [shape.vocab_size, shape.width]
    if any(vocab_size in dims for dims in input_shapes):
        has_logits = any(len(dims) == 2 and vocab_size in dims and dims != weight_shape for dims in input_shapes)
        return CATEGORIES[1] if has_logits else CATEGORIES[2]
    hidden_shapes = [dims for dims in input_shapes if dims and dims[-1] == shape.hidden]
    return "feed-forward" if any(dims != [shape.hidden, shape.width] for dims in hidden_shapes) else OTHER_CATEGORY


def _categorize_product(first: list[int], second: list[int], shape: WorkloadShape, tokens_per_step: int) -> str:
    """Categorize a matrix product. One of its three sizes is the number of tokens; the others identify its weights."""
    sizes = [*first, second[-1]]
    if shape.vocab_size in sizes:
        return "vocabulary: products"
    if tokens_per_step in sizes:
        sizes.remove(tokens_per_step)
    return "feed-forward" if shape.hidden in sizes else "attention: projections"


def _profile_steps(
    title: str, trainer: Any, shape: WorkloadShape, tokens_per_step: int, num_steps: int, seconds_per_step: float
) -> Table:
    """Return fractions from the profiler, which slows down small operations, as milliseconds of an unprofiled step."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        start_time = time.perf_counter()
        for index in range(num_steps):
            trainer.train_step(index)
        total_seconds = time.perf_counter() - start_time
    seconds_by_category = dict.fromkeys(CATEGORIES, 0.0)
    for event in profiler.key_averages(group_by_input_shape=True):
        category = categorize_operation(event.key, event.input_shapes or [], shape, tokens_per_step)
        seconds_by_category[category] += event.self_cpu_time_total / 1e6
    seconds_by_category[OTHER_CATEGORY] += max(0.0, total_seconds - sum(seconds_by_category.values()))
    total_category_seconds = sum(seconds_by_category.values())
    fractions = {category: seconds / total_category_seconds for category, seconds in seconds_by_category.items()}
    rows = [
        [category, f"{100 * fraction:.1f} %", f"{1e3 * seconds_per_step * fraction:.2f}"]
        for category, fraction in fractions.items()
    ]
    note = (
        f"{num_steps} of our steps under torch.profiler on one thread, as fractions of {1e3 * seconds_per_step:.1f} ms."
    )
    return Table(f"Where the time of a step is spent, {title}", ["category", "fraction", "ms per step"], rows, note)
