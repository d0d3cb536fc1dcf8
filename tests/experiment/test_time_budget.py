"""`h2h plan --within` fits seeds and cells to a time budget; the plan counts cells and tuning trials."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headtohead.errors import RequestError
from headtohead.runner.plan import FIXED_SECONDS, CellPlan, ExperimentPlan, plan_experiment
from headtohead.runner.time_budget import MAX_FITTED_SEEDS, fit_to_time, parse_time_budget

RATE = "training.optimizer.lr"
NUM_SEEDS = 5


def build_plan(seconds_per_seed: float, before: float = 0.0) -> ExperimentPlan:
    """Return a plan of 5 seeds, with `before` seconds of tuning."""
    seconds = FIXED_SECONDS + before + NUM_SEEDS * seconds_per_seed
    return ExperimentPlan("x", (), 10, 1, 0.0, seconds_per_seed, seconds, 0)


def build_sweep(*seconds_per_seed: float) -> ExperimentPlan:
    cells = tuple(CellPlan(str(index), {}, build_plan(item)) for index, item in enumerate(seconds_per_seed))
    return replace(build_plan(sum(seconds_per_seed)), cells=cells)


def test_as_many_seeds_as_fit_are_planned() -> None:
    fit = fit_to_time(build_plan(10.0, before=50.0), NUM_SEEDS, FIXED_SECONDS + 50.0 + 75.0)
    assert (fit.seeds, fit.cells) == (7, 1)
    assert fit.seconds == pytest.approx(FIXED_SECONDS + 50.0 + 70.0)
    assert fit_to_time(build_plan(10.0), NUM_SEEDS, 1e9).seeds == MAX_FITTED_SEEDS


def test_nothing_fits_if_three_seeds_do_not() -> None:
    fit = fit_to_time(build_plan(10.0), NUM_SEEDS, FIXED_SECONDS + 29.0)
    assert (fit.cells, fit.seconds) == (0, 0.0)
    assert fit.needed_seconds == pytest.approx(FIXED_SECONDS + 30.0)


def test_cells_share_the_seeds_and_the_first_cells_are_kept_if_three_seeds_do_not_fit() -> None:
    fit = fit_to_time(build_sweep(10.0, 20.0, 10.0), NUM_SEEDS, FIXED_SECONDS + 160.0)
    assert (fit.seeds, fit.cells, fit.seconds) == (4, 3, pytest.approx(FIXED_SECONDS + 160.0))
    fit = fit_to_time(build_sweep(10.0, 20.0, 10.0), NUM_SEEDS, FIXED_SECONDS + 100.0)
    assert (fit.seeds, fit.cells, fit.seconds) == (3, 2, pytest.approx(FIXED_SECONDS + 90.0))
    assert fit.needed_seconds == pytest.approx(FIXED_SECONDS + 120.0)


@pytest.mark.parametrize(
    ("text", "message"), [("2", "looks like"), ("2 weeks", "cannot be in 'weeks'"), ("0 hours", "above 0")]
)
def test_a_time_needs_a_unit(text: str, message: str) -> None:
    assert parse_time_budget("1.5 hours") == 5400.0
    with pytest.raises(RequestError, match=f"--within .*{message}"):
        parse_time_budget(text)


def test_the_plan_of_a_tuned_sweep_counts_cells_and_tuning_trials(small: Any) -> None:
    sweep = {"training": {"budget": ["10 steps", "20 steps"]}}
    experiment = small(seeds=3, sweep=sweep, tune={"space": {RATE: [1e-3, 1e-2, 1e-1]}})
    plan = plan_experiment(experiment, 1)
    assert [(cell.coordinates, cell.plan.plan[0].steps) for cell in plan.cells] == [
        ({"training.budget": "10 steps"}, 10),
        ({"training.budget": "20 steps"}, 20),
    ]
    assert plan.trials == 2 * 2 * 3
    for cell in plan.cells:
        tuning = cell.plan.tuning
        assert tuning is not None and (tuning.points, tuning.trials) == (3, 2 * 3 * 2)
        tuning_seconds = sum(variant.seconds for variant in cell.plan.plan) * 3 * 2
        assert tuning.estimate_seconds(1) == pytest.approx(tuning_seconds)
        assert cell.plan.seconds > tuning_seconds + 3 * cell.plan.seconds_per_seed
        assert cell.plan.detectable
    assert plan.seconds == pytest.approx(FIXED_SECONDS + sum(cell.plan.seconds - FIXED_SECONDS for cell in plan.cells))
