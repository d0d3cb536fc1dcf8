"""jax: a training step of the base decoder, against one jitted function in jax with equal mathematics, on one core."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import child_processes
from .experiments import build_decoder_experiment
from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Target, build_missing_peer_table
from .step import MODEL_SIZES, ModelSize
from .workload import write_workload

ROUNDS = 3
NUM_STEPS = 40
MAX_LOSS_DIFFERENCE = 1e-3
"""in nats, after the last step"""


def measure_jax_steps(settings: BenchmarkSettings) -> Measurements:
    """Compare the fastest of 40 steps, in processes that are pinned to one core and run alternately."""
    if find_spec("jax") is None:
        yield build_missing_peer_table("jax")
        return
    for size in MODEL_SIZES[:2]:
        yield from _measure_model_size(size, settings)


def _measure_model_size(size: ModelSize, settings: BenchmarkSettings) -> Measurements:
    num_steps = 4 if settings.is_short else NUM_STEPS
    folder = settings.scratch / f"jax-{size.title.split(',')[0].replace(' ', '-')}"
    raw = build_decoder_experiment(settings.data, steps=num_steps, eval_every=num_steps, model=size.model)
    write_workload(raw, folder)
    results: dict[str, list[dict[str, Any]]] = {"ours": [], "jax": []}
    for _ in range(settings.get_num_rounds(ROUNDS)):
        results["ours"].append(run_isolated("pinned-steps", raw=raw, folder=str(folder / "ours")))
        results["jax"].append(_run_jax(folder, num_steps))
    ours, theirs = (min(results[name], key=lambda result: result["seconds"]) for name in ("ours", "jax"))
    yield Measurement(
        f"{size.title}: training step on one core",
        1e3 * ours["seconds"],
        "ms",
        1e3 * theirs["seconds"],
        "jax with jit",
        theirs["seconds"] / ours["seconds"],
        target=Target(1.0),
    )
    difference = abs(ours["loss"] - theirs["losses"][-1])
    yield Measurement(
        f"{size.title}: difference of losses after {num_steps} steps",
        difference,
        "nats",
        result=difference,
        kind="nats",
        target=Target(MAX_LOSS_DIFFERENCE, is_maximum=True),
    )


def _run_jax(folder: Path, num_steps: int) -> dict[str, Any]:
    command = child_processes.build_python_command("tools.bench.peer_jax", str(folder), str(num_steps))
    result: dict[str, Any] = child_processes.parse_json_result(child_processes.run_command(command))
    return result
