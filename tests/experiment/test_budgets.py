"""Budgets are converted to steps once, variants get equal terms, and a resumed experiment keeps its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headtohead.config.budget import parse_budget
from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.trial_settings import build_trial, diff_settings_from_baseline
from headtohead.errors import ConfigError, RequestError, RunFolderError
from headtohead.experiment.run_folder import open_experiment_runs
from headtohead.runner.budgets import read_budgets, resolve_budgets
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.search_trials import build_search_trial
from headtohead.runner.verification.retrain import retrain_and_compare
from headtohead.trials.step_cost import compute_step_cost

pytestmark = pytest.mark.usefixtures("in_process_workers")

BATCH_OF_12 = {"rows": {"training": {"batch_size": 12}}}
"""costs 1.5 times as much per step as a batch of 8"""


def count_steps(experiment: Experiment) -> dict[str, int]:
    resolved, _ = resolve_budgets(experiment, {})
    return {name: int(parse_budget(build_trial(resolved, name, 0).training.budget).amount) for name in resolved.names}


def test_a_budget_of_tokens_is_the_same_text_for_every_batch_size(small: Any) -> None:
    experiment = small(training={"budget": "6400 tokens"}, variants=BATCH_OF_12)
    assert count_steps(experiment) == {BASELINE: 100, "rows": 67}
    assert resolve_budgets(experiment, {})[0].equal == "tokens"


@pytest.mark.parametrize("term", ["tokens", "flops"])
def test_a_step_that_costs_half_as_much_again_gives_two_thirds_of_the_steps(small: Any, term: str) -> None:
    experiment = small(training={"budget": "300 steps"}, equal=term, variants=BATCH_OF_12)
    assert count_steps(experiment) == {BASELINE: 300, "rows": 200}


def test_equal_flops_follow_from_the_flops_of_the_models(small: Any) -> None:
    experiment = small(training={"budget": "1e9 flops"}, variants={"deep": {"model": {"layers": 3}}})
    baseline, deep = (compute_step_cost(build_trial(experiment, name, 0)).flops for name in (BASELINE, "deep"))
    assert baseline is not None and deep is not None and deep > 1.5 * baseline
    assert count_steps(experiment) == {BASELINE: round(1e9 / baseline), "deep": round(1e9 / deep)}


def test_equal_steps_hold_for_a_budget_in_epochs(small: Any) -> None:
    as_written = small(training={"budget": "2 epochs"}, variants=BATCH_OF_12)
    assert resolve_budgets(as_written, {}) == (as_written, {}), "each variant has its own two epochs"
    steps = count_steps(small(training={"budget": "2 epochs"}, equal="steps", variants=BATCH_OF_12))
    assert steps["rows"] == steps[BASELINE] > 10


def test_a_variant_keeps_the_budget_that_it_sets_itself(small: Any) -> None:
    variants = {"rows": {"training": {"batch_size": 12, "budget": "77 steps"}}}
    assert count_steps(small(equal="flops", variants=variants)) == {BASELINE: 40, "rows": 77}


def test_a_variant_of_the_same_cost_changes_nothing_else(small: Any) -> None:
    resolved, _ = resolve_budgets(small(equal="tokens", variants={"alibi": {"model": {"position": "alibi"}}}), {})
    assert list(diff_settings_from_baseline(resolved, "alibi")) == ["model.position"]


WIDE = {"model": {"width": 128, "heads": 1, "layers": 2}, "equal": "parameters"}


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"projection": {"kind": "mlp", "depth": 1}}, "model.feedforward.hidden"),
        ({"layers": 3}, "model.feedforward.hidden"),
        ({"feedforward": {"kind": "mlp", "hidden": 400}}, "model.width"),
    ],
)
def test_parameters_are_equal_within_one_percent(small: Any, changes: dict[str, Any], setting: str) -> None:
    experiment = small(**WIDE, variants={"other": {"model": changes}})
    resolved, budgets = resolve_budgets(experiment, {})
    assert list(budgets["other"].resized) == [setting]
    before, after = (compute_step_cost(build_trial(item, "other", 0)).parameters for item in (experiment, resolved))
    target = compute_step_cost(build_trial(resolved, BASELINE, 0)).parameters
    assert abs(before - target) > 0.01 * target
    assert abs(after - target) <= 0.01 * target
    assert budgets["other"].parameters == after


def test_parameters_that_cannot_be_equal_are_rejected_with_the_nearest_match(small: Any) -> None:
    experiment = small(**WIDE, variants={"tiny": {"model": {"width": 8, "feedforward": {"kind": "mlp", "hidden": 3}}}})
    with pytest.raises(RequestError, match=r"variants.tiny: no hidden size or width .* the nearest is the model as it"):
        resolve_budgets(experiment, {})


def test_points_of_a_search_have_equal_tokens_too(small: Any) -> None:
    experiment = small(equal="tokens", search={"space": {"training.batch_size": [8, 16]}}, variants={})
    resolved, _ = resolve_budgets(experiment, {})
    budgets = [
        build_search_trial(resolved, "point", {"training.batch_size": size}, 1000).training.budget for size in (8, 16)
    ]
    assert budgets == ["40 steps", "20 steps"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"equal": "parameters", "search": {"space": {"training.batch_size": [8]}}}, "equal: parameters cannot be"),
        ({"equal": "watts"}, "equal: cannot be 'watts'"),
        ({"search": {"space": {"training.budget": ["2 minutes"]}}}, "compares budgets in steps or epochs"),
    ],
)
def test_what_cannot_be_equal_is_rejected(small: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)


def test_seconds_are_timed_once_and_a_resumed_experiment_keeps_its_steps(small: Any, tmp_path: Path) -> None:
    experiment = small(training={"budget": "0.2 seconds"}, seeds=1, variants={"deep": {"model": {"layers": 3}}})
    folder = tmp_path / "runs"
    run_experiment(experiment, folder, num_workers=1)
    budgets = read_budgets(folder)
    assert budgets["deep"].steps < budgets[BASELINE].steps
    assert budgets[BASELINE].seconds_per_step == pytest.approx(0.2 / budgets[BASELINE].steps, rel=0.5)
    runs = open_experiment_runs(folder)
    assert runs.run("deep", 0).result.training.steps == budgets["deep"].steps
    assert runs.experiment.equal == "seconds"
    assert retrain_and_compare(runs.run("deep", 0)) == ""
    (folder / "deep" / "seed-0" / "result.json").unlink()  # as if it had been killed
    run_experiment(experiment, folder, num_workers=1, resume=True)
    assert read_budgets(folder) == budgets
    longer = small(training={"budget": "90 seconds"}, seeds=1)
    with pytest.raises(RunFolderError, match=r"contains a different experiment.*training.budget"):
        run_experiment(longer, folder, num_workers=1, resume=True)
