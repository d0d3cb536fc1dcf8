"""Tuned comparisons: each variant has its own optimum, edge optima extend the grid, and the choice adds noise."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headtohead.config.experiment import BASELINE
from headtohead.config.trial_settings import build_trial, diff_settings_from_baseline
from headtohead.errors import ConfigError, RunFolderError
from headtohead.experiment.run_folder import open_experiment_runs
from headtohead.findings.compute import compute_findings
from headtohead.report import write
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verification.verify import verify_experiment
from headtohead.search import tuning
from headtohead.search.points import SearchPoint
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.scores import Scores
from headtohead.verdict.tuning_variance import TuningVariance, estimate_tuning_variance

LR_SETTING = "training.optimizer.lr"


def make_points(losses: dict[float, float], setting: str = LR_SETTING) -> list[SearchPoint]:
    """Return points with two seeds, from the loss for each value of a setting."""
    return [
        SearchPoint(number, {setting: value}, 2, {1000: loss, 1001: loss + 0.01})
        for number, (value, loss) in enumerate(losses.items())
    ]


def test_an_optimum_inside_the_grid_is_not_extended(small: Any) -> None:
    tuning_experiment = tuning.build_tuning_experiment(
        small(tune={"space": {LR_SETTING: [1e-3, 3e-3, 1e-2]}}), BASELINE
    )
    points = make_points({1e-3: 3.0, 3e-3: 2.0, 1e-2: 2.5})
    assert tuning.find_grid_extensions(tuning_experiment, points, {LR_SETTING: 3e-3}) == {}
    assert tuning.find_grid_extensions(tuning_experiment, points, {LR_SETTING: 1e-2}) == {LR_SETTING: 0.033}
    assert tuning.find_grid_extensions(tuning_experiment, points, {LR_SETTING: 1e-3}) == {
        LR_SETTING: pytest.approx(0.00033)
    }


def test_an_optimum_without_a_valid_next_value_is_not_extended(small: Any) -> None:
    tuning_experiment = tuning.build_tuning_experiment(
        small(tune={"space": {"model.dropout": [0.0, 0.1, 0.2]}}), "alibi"
    )
    points = make_points({0.0: 2.0, 0.1: 2.5, 0.2: 3.0}, "model.dropout")
    assert tuning.find_grid_extensions(tuning_experiment, points, {"model.dropout": 0.0}) == {}, (
        "dropout cannot be negative"
    )
    assert tuning.find_grid_extensions(tuning_experiment, points, {"model.dropout": 0.2}) == {
        "model.dropout": pytest.approx(0.3)
    }


def test_optima_near_the_ends_of_a_continuous_range_are_at_its_edge(small: Any) -> None:
    space = {LR_SETTING: {"low": 1e-4, "high": 1e-1, "log": True}}
    tuning_experiment = tuning.build_tuning_experiment(
        small(tune={"space": space, "method": "random", "budget": "8 trials"}), BASELINE
    )
    assert tuning.find_grid_extensions(tuning_experiment, [], {LR_SETTING: 0.09}) == {LR_SETTING: 0.09}
    assert tuning.find_grid_extensions(tuning_experiment, [], {LR_SETTING: 0.01}) == {}


def test_a_grid_of_two_settings_is_extended_with_all_combinations() -> None:
    points = [
        SearchPoint(number, {"a": a, "b": b}, 2) for number, (a, b) in enumerate([(1, 1), (1, 2), (2, 1), (2, 2)])
    ]
    assert tuning.list_grid_extension_points(points, "a", 3) == [{"a": 3, "b": 1}, {"a": 3, "b": 2}]


def test_each_variant_is_trained_with_its_own_tuned_settings(small: Any) -> None:
    experiment = small(tune={"space": {LR_SETTING: [1e-3, 1e-2]}}, training={"optimizer": {"kind": "adam", "lr": 1e-3}})
    assert experiment.identity() == experiment.model_copy(update={"tuned": {BASELINE: {LR_SETTING: 0.5}}}).identity()
    tuned_experiment = experiment.model_copy(
        update={"tuned": {BASELINE: {LR_SETTING: 1e-2}, "alibi": {LR_SETTING: 1e-3}}}
    )
    optimizers = {name: build_trial(tuned_experiment, name, 0).training.optimizer for name in tuned_experiment.names}
    assert {name: optimizer.options for name, optimizer in optimizers.items()} == {
        BASELINE: {"lr": 1e-2},
        "alibi": {"lr": 1e-3},
    }
    assert optimizers["alibi"].kind == "adam", "the kind of optimizer does not change"
    assert list(diff_settings_from_baseline(tuned_experiment, "alibi")) == ["model.position", "training.optimizer"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tune": {"space": {"training.optimizer.rl": [1, 2]}}}, "tune.space.training.optimizer.rl"),
        ({"tune": {"space": {LR_SETTING: [1e-3, 1e-2]}, "prune": True}}, "prune is only allowed in"),
        (
            {"tune": {"space": {LR_SETTING: [1e-3, 1e-2]}}, "search": {"space": {LR_SETTING: [1e-3]}}},
            "cannot be combined with",
        ),
        (
            {
                "tune": {"space": {LR_SETTING: [1e-3]}},
                "variants": {"fast": {"training": {"optimizer": {"kind": "adamw", "lr": 1}}}},
            },
            "variant fast differs from the baseline only in tuned settings",
        ),
        (
            {"tune": {"space": {"data.train_rows": [10, 20]}}},
            "tune.space.data.train_rows: scores on different validation",
        ),
    ],
)
def test_invalid_tuning_is_rejected(small: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)


def test_choice_error_is_small_for_clear_and_for_irrelevant_choices() -> None:
    noise = np.random.default_rng(0).normal(0, 0.05, (4, 3))
    clear = estimate_tuning_variance(np.array([[0.0], [3.0], [0.0], [0.0]]) + noise, 1)
    flat = estimate_tuning_variance(np.full((4, 1), 1.0) + 1e-6 * noise, 1)
    close = estimate_tuning_variance(np.array([[0.0], [1.0], [0.99], [0.9]]) + noise, 1)
    assert clear.variance == 0.0 and flat.variance < 1e-9 and close.variance > 1e-5
    assert clear.degrees_of_freedom == 6


def test_noise_shared_by_all_points_of_a_seed_does_not_affect_the_choice_error() -> None:
    scores = np.array([[0.0, 0.01, 0.0], [1.0, 1.0, 1.01], [0.99, 1.0, 1.0]])
    shifted_scores = scores + np.array([0.0, 5.0, -3.0])
    assert estimate_tuning_variance(shifted_scores, 1).variance == pytest.approx(
        estimate_tuning_variance(scores, 1).variance
    )


def test_interval_of_a_tuned_verdict_includes_the_choice_error() -> None:
    noise = np.random.default_rng(1).normal(0, 0.1, (2, 5, 40))
    baseline, variant = (
        Scores(tuple(range(5)), 3 + shift + noise[i], np.ones(40)) for i, shift in enumerate((0, -0.05))
    )
    choice_error = TuningVariance(0.05**2, 4)
    options: dict[str, Any] = {"metric": "loss", "equivalence_margin": 0.01}
    (untuned,) = compare_scores(baseline, {"v": variant}, **options)
    (tuned,) = compare_scores(
        baseline, {"v": variant}, tuning_variances={"v": choice_error.add(choice_error)}, **options
    )
    assert (untuned.outcome, tuned.outcome) == ("helped", "cannot tell")
    half_width = (tuned.interval[1] - tuned.interval[0]) / 2
    assert half_width > 2.7 * np.sqrt(2) * 0.05 and tuned.effect == untuned.effect
    low, high = tuned.seed_interval
    assert (high - low) / 2 > 2.7 * np.sqrt(2) * 0.05, "the interval for these texts includes it as well"
    assert untuned.min_detectable_effect < tuned.min_detectable_effect
    # More seeds cannot reduce the choice error, so none are advised.
    assert tuned.additional_seeds is None and "Not even 1,000 seeds" in tuned.summary


def test_rank_tests_do_not_decide_a_tuned_comparison() -> None:
    losses = np.random.default_rng(1).normal(3, 0.1, (12, 40))
    baseline = Scores(tuple(range(5)), losses[:5], np.ones(40), lost=tuple(range(5, 12)))
    variant = Scores(tuple(range(12)), losses - 1, np.ones(40))
    options: dict[str, Any] = {"metric": "loss", "equivalence_margin": 0.01}
    (untuned,) = compare_scores(baseline, {"v": variant}, **options)
    (tuned,) = compare_scores(baseline, {"v": variant}, tuning_variances={"v": TuningVariance(1e-9, 4)}, **options)
    assert (untuned.outcome, tuned.outcome) == ("helped", "cannot tell")


@pytest.fixture
def tuned_folder(small: Any, tmp_path: Path) -> Path:
    """Return the folder of a finished tuned experiment whose grid was extended."""
    folder = tmp_path / "tuned"
    run_experiment(build_tuned_experiment(small), folder, num_workers=1)
    return folder


def build_tuned_experiment(small: Any, **changes: Any) -> Any:
    training = {"budget": "10 steps", "eval_every": 10}
    return small(seeds=3, training=training, tune={"space": {LR_SETTING: [1e-4, 1e-3]}, "extend": 1}, **changes)


def test_a_tuned_experiment_end_to_end(tuned_folder: Path, small: Any) -> None:
    findings = compute_findings(open_experiment_runs(tuned_folder))
    assert findings.tuning is not None
    sides = {side.name: side for side in findings.tuning.sides}
    assert {len(side.points) for side in sides.values()} == {3}, "baseline and variant have the same points"
    assert findings.tuning.trials == 2 * 3 * 2
    assert all(side.settings == {LR_SETTING: 0.01} and side.edges == [LR_SETTING] for side in sides.values())
    (verdict,) = findings.verdicts
    assert verdict.outcome == "not comparable"
    assert "has its optimum at the edge of the tuned values (training.optimizer.lr = 0.01)" in verdict.reason
    run = open_experiment_runs(tuned_folder).run("alibi", 0)
    assert run.trial.training.optimizer.options["lr"] == 0.01
    (effect,) = findings.tuning.effects
    assert effect.tuned == pytest.approx(effect.at_baseline_optimum)
    assert effect.at_file_settings is not None, "the learning rate of the file, 0.001, is in the grid"
    page = write(tuned_folder, ["html"])[0].read_text()
    assert "Tuning" in page and "best with lr 0.01, at the edge of the tuned values" in page
    assert not [check for check in verify_experiment(tuned_folder, render_report=write) if not check.passed]

    # Nothing is tuned or trained again, and the choice of a finished tuning does not change.
    journal_before = (tuned_folder / "tune" / "alibi" / "journal.jsonl").read_bytes()
    outcome = run_experiment(build_tuned_experiment(small), tuned_folder, num_workers=1, resume=True)
    assert all(job.state == "kept" for job in outcome.jobs)
    assert (tuned_folder / "tune" / "alibi" / "journal.jsonl").read_bytes() == journal_before
    with pytest.raises(RunFolderError, match="--resume continues it"):
        run_experiment(build_tuned_experiment(small), tuned_folder, num_workers=1)

    # An edited tuning trial fails verification.
    result = tuned_folder / "tune" / "alibi" / "search" / "point-001" / "seed-1000" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "seconds": 1.0}))
    assert any("tune/alibi" in check.location for check in verify_experiment(tuned_folder) if not check.passed)


def test_an_interrupted_tuning_is_continued(small: Any, tmp_path: Path) -> None:
    folder = tmp_path / "tuned"
    experiment = build_tuned_experiment(small)

    class InterruptError(Exception):
        pass

    def interrupt(jobs: Any) -> None:
        if sum(job.state == "finished" for job in jobs) == 2:
            raise InterruptError("after two trials")

    with pytest.raises(InterruptError, match="after two"):
        run_experiment(experiment, folder, num_workers=1, on_update=interrupt)
    finished_files = sorted(folder.glob("tune/*/search/*/*/result.json"))
    modification_times = [path.stat().st_mtime_ns for path in finished_files]
    assert 1 <= len(finished_files) < 12
    outcome = run_experiment(experiment, folder, num_workers=1, resume=True)
    assert outcome.findings is not None and outcome.findings.tuning is not None
    assert [path.stat().st_mtime_ns for path in finished_files] == modification_times
    assert outcome.findings.tuning.trials == 12


def test_choice_error_is_unknown_with_one_tuning_seed() -> None:
    points = make_points({1e-3: 2.0, 1e-2: 3.0})
    assert tuning.estimate_tuning_choice_error(points, {LR_SETTING: 1e-3}, "perplexity") is not None
    single_seed_points = [replace(point, num_seeds=1, seed_scores={1000: 2.0}) for point in points]
    assert tuning.estimate_tuning_choice_error(single_seed_points, {LR_SETTING: 1e-3}, "perplexity") is None
