"""Budgets: accepted values, conversion and formatting."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from headtohead.config.budget import Budget, convert_to_steps, parse_budget
from headtohead.config.tables.search import SearchConfig
from headtohead.config.tables.training import TrainingConfig


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("500 steps", Budget(500, "steps")),
        ("1 step", Budget(1, "steps")),
        ("0.5 epochs", Budget(0.5, "epochs")),
        ("40 trials", Budget(40, "trials")),
        ("90 minutes", Budget(5400, "seconds")),
        ("2 hours", Budget(7200, "seconds")),
    ],
)
def test_a_budget_is_parsed_and_written_again(text: str, budget: Budget) -> None:
    assert parse_budget(text) == budget
    assert parse_budget(str(budget)) == budget


def test_a_part_of_a_budget_has_at_least_one_step() -> None:
    assert str(parse_budget("500 steps").divide(10)) == "50 steps"
    assert str(parse_budget("4 steps").divide(10)) == "1 step"
    assert str(parse_budget("1 epoch").divide(5)) == "0.2 epochs"


def test_steps_and_epochs_become_steps() -> None:
    assert TrainingConfig(budget="7 steps").compute_total_steps(30) == 7
    assert TrainingConfig(budget="1.5 epochs").compute_total_steps(30) == 45
    assert TrainingConfig(budget="0.001 epochs").compute_total_steps(30) == 1


@pytest.mark.parametrize("steps_per_epoch", [100, 131, 217])
def test_five_intervals_of_a_fifth_cover_the_training(steps_per_epoch: int) -> None:
    total_steps = TrainingConfig(budget="1.5 epochs").compute_total_steps(steps_per_epoch)
    interval = convert_to_steps("0.3 epochs", steps_per_epoch)
    assert 4 * interval < total_steps <= 5 * interval
    assert convert_to_steps("3 epochs", steps_per_epoch) == 3 * steps_per_epoch


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (500, 'is a number without a unit; write "500 steps"'),
        ("500", 'looks like "500 steps"'),
        ("5 eons", "cannot be in 'eons'; allowed: steps, epochs"),
        ("5 setps", "did you mean 'steps'"),
        ("0 steps", "must be above 0"),
        ("2.5 steps", "whole number of steps"),
        ("9e12 steps", "whole number of steps"),
        (True, "cannot be True"),
    ],
)
def test_an_invalid_budget_is_explained(value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainingConfig.model_validate({"budget": value})


def test_a_search_is_limited_by_trials_or_time() -> None:
    space = {"training.batch_size": (4, 8)}
    by_trials, by_time = (SearchConfig(space=space, budget=budget) for budget in ("9 trials", "2 minutes"))
    assert (by_trials.max_trials, by_trials.max_seconds) == (9, None)
    assert (by_time.max_trials, by_time.max_seconds) == (None, 120)
    with pytest.raises(ValidationError, match="cannot be in 'steps'; allowed: trials, seconds"):
        SearchConfig(space=space, budget="9 steps")
