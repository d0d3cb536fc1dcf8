"""Large models: how much of a trial of 10 million parameters is training, and how good estimates before a trial are."""

from __future__ import annotations

from .experiments import LARGE_MODELS, build_large_experiment
from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target

TRIAL_SIZE = "10 million"
NUM_STEPS = 200
NUM_ESTIMATED_STEPS = 20
MIN_STEP_FRACTION = 0.85
MAX_ESTIMATE_RATIO = 1.25
MEGABYTE = 1e6


def measure_large_models(settings: BenchmarkSettings) -> Measurements:
    """Run a trial of 200 steps with two evaluations, and three shorter trials whose time and memory are estimated."""
    yield from _measure_trial(settings)
    for size in ["1 million"] if settings.is_short else LARGE_MODELS:
        yield from _measure_estimates(size, settings)


def _measure_trial(settings: BenchmarkSettings) -> Measurements:
    """Yield the fraction of a trial's time that is training steps, and its stages."""
    size, steps = ("1 million", 4) if settings.is_short else (TRIAL_SIZE, NUM_STEPS)
    seconds = run_isolated("trial-stages", raw=build_large_experiment(size, steps=steps), seed=1)
    total = seconds["total"]
    yield Measurement(
        f"{size} parameters, {steps} steps with two evaluations: time of the trial that is training steps",
        seconds["steps"],
        "s",
        total,
        "whole trial",
        seconds["steps"] / total,
        "share",
        Target(MIN_STEP_FRACTION),
    )
    rows = [[stage, f"{value:.1f}", f"{100 * value / total:.1f} %"] for stage, value in seconds.items()]
    columns = ["stage", "seconds", "fraction"]
    yield Table(f"Stages of a trial of {size} parameters", columns, rows, "One thread, seed 1.")


def _measure_estimates(size: str, settings: BenchmarkSettings) -> Measurements:
    """Yield how far the estimates of `h2h plan` are from what a trial takes, as a factor in either direction."""
    steps = 4 if settings.is_short else NUM_ESTIMATED_STEPS
    result = run_isolated("estimates", raw=build_large_experiment(size, steps=steps), seed=1)
    for quantity, unit, scale in (("seconds", "s", 1.0), ("bytes", "MB", MEGABYTE)):
        estimated, measured = result[f"estimated_{quantity}"], result[quantity]
        yield Measurement(
            f"{size} parameters, {steps} steps: estimated {'time' if unit == 's' else 'memory'}",
            estimated / scale,
            unit,
            measured / scale,
            "measured",
            max(estimated / measured, measured / estimated),
            target=Target(MAX_ESTIMATE_RATIO, is_maximum=True),
        )
