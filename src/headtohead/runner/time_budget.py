"""Fit an experiment to a time budget: the number of seeds, and the cells of a sweep, that can be run in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headtohead.config.budget import TIME_UNITS, check_budget, parse_budget
from headtohead.errors import RequestError
from headtohead.runner.detectable_effects import SEED_COUNTS
from headtohead.runner.plan import FIXED_SECONDS, ExperimentPlan
from headtohead.verdict.interim import MIN_SEEDS

MAX_FITTED_SEEDS = max(SEED_COUNTS)
"""more seeds are not proposed, even if they fit"""


@dataclass(frozen=True)
class TimeFit:
    """What can be run within a time budget."""

    budget_seconds: float
    seeds: int
    """number of seeds per variant"""
    cells: int
    """number of sweep cells that fit, counted from the first cell of the plan; 1 or 0 without a sweep"""
    seconds: float
    """estimated time of that many cells with that many seeds"""
    needed_seconds: float
    """estimated time of all cells with the smallest number of seeds that can be judged"""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def parse_time_budget(text: str) -> float:
    """Return the seconds in the value of `--within`, such as "2 hours"; raise RequestError for anything else."""
    try:
        return parse_budget(check_budget(text, TIME_UNITS, '"2 hours" or "30 minutes"')).amount
    except ValueError as error:
        raise RequestError(f"--within {error}") from None


def fit_to_time(plan: ExperimentPlan, num_seeds: int, budget_seconds: float) -> TimeFit:
    """Return the largest number of seeds with which everything fits, or the cells that fit with the fewest seeds.

    `num_seeds` is the number of seeds in the plan. Every cell gets the same number of seeds, so that cells can be
    compared. If they do not fit with the smallest number of seeds that can be judged, the first cells are kept, which
    cover all values early.
    """
    cell_plans = [cell.plan for cell in plan.cells] or [plan]
    seconds_per_seed = [cell_plan.seconds_per_seed for cell_plan in cell_plans]
    # The time of each cell that does not depend on the number of seeds
    base_seconds = [
        cell_plan.seconds - FIXED_SECONDS - num_seeds * cell_plan.seconds_per_seed for cell_plan in cell_plans
    ]

    def estimate_seconds(num_cells: int, seeds: int) -> float:
        return FIXED_SECONDS + sum(base_seconds[:num_cells]) + seeds * sum(seconds_per_seed[:num_cells])

    seeds = int((budget_seconds - FIXED_SECONDS - sum(base_seconds)) / max(sum(seconds_per_seed), 1e-9))
    seeds = min(max(seeds, MIN_SEEDS), MAX_FITTED_SEEDS)
    num_cells = max(
        count for count in range(len(cell_plans) + 1) if count == 0 or estimate_seconds(count, seeds) <= budget_seconds
    )
    return TimeFit(
        budget_seconds,
        seeds,
        num_cells,
        estimate_seconds(num_cells, seeds) if num_cells else 0.0,
        estimate_seconds(len(cell_plans), MIN_SEEDS),
    )
