"""Searches without training: the order of points, budgets, pruning, interruptions and failures.

Trials are simulated: a synthetic score is written in place of a worker's result.
"""

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead.config.tables.search import SearchConfig
from headtohead.errors import MissingExtraError, TrialError
from headtohead.execution.worker_pool import Job
from headtohead.json_files import read_jsonl, write_json
from headtohead.runner import run_experiment
from headtohead.runner.run_search import DECISION_LAG, SearchRun
from headtohead.search import samplers

LR_SPACE = {"training.optimizer.lr": {"low": 1e-5, "high": 1e-1, "log": True}}
MIXED_SPACE = {
    **LR_SPACE,
    "training.batch_size": {"low": 4, "high": 32, "step": 4},
    "model.position": ["learned", "alibi", "rope"],
}
GRID_SPACE = {"training.batch_size": [2, 4, 8, 16], "model.layers": [1, 2, 3]}


def compute_synthetic_loss(settings: dict[str, Any], seed: int, noise_std: float = 0.05) -> float:
    """Return a synthetic loss with some noise, best near a learning rate of 0.003 or a batch size of 8."""
    noise = random.Random(f"{sorted(settings.items(), key=str)}{seed}").gauss(0, noise_std)
    lr, batch_size = settings.get("training.optimizer.lr", 3e-3), settings.get("training.batch_size", 8)
    return 3 + abs(math.log10(lr / 3e-3)) + 0.5 * abs(math.log2(batch_size / 8)) + noise


def simulate_workers(
    search: SearchRun,
    *,
    num_workers: int = 2,
    order_seed: int = 0,
    max_trials: int | None = None,
    compute_loss: Callable[..., float] = compute_synthetic_loss,
) -> list[str]:
    """Run a search with simulated workers that finish in random order; return the trials in this order.

    With `max_trials`, interrupt it after this many trials.
    """
    rng, finished_trials = random.Random(order_seed), []
    while True:
        running = [job for job in search.jobs if not job.is_over]
        search.jobs += search.take_next_jobs(num_workers - len(running)) if len(running) < num_workers else []
        running = [job for job in search.jobs if not job.is_over]
        if not running or (max_trials is not None and len(finished_trials) >= max_trials):
            return finished_trials
        job = rng.choice(running)
        finish_job(search, job, compute_loss)
        finished_trials.append(f"{job.trial.variant}/{job.trial.seed}")


def finish_job(search: SearchRun, job: Job, compute_loss: Callable[..., float]) -> None:
    """Write the result of a simulated trial."""
    point = search.points[int(job.trial.variant.removeprefix("point-")) - 1]
    job.folder.mkdir(parents=True, exist_ok=True)
    loss = compute_loss(point.settings, job.trial.seed)
    training = {"seconds": 1.0, "seconds_per_step": 0.1, "peak_memory": 1, "last_loss": loss, "chosen_step": 1}
    result = {"metric": "perplexity", "scores": {"validation": {"loss": loss}}, "training": training, "sha256": {}}
    write_json(job.folder / "result.json", result)
    job.state = "finished"


@pytest.fixture
def build_search(small: Any, tmp_path: Path) -> Any:
    def build(name: str = "runs", *, is_resumed: bool = False, **search_settings: Any) -> SearchRun:
        folder = tmp_path / name
        folder.mkdir(exist_ok=is_resumed)
        return SearchRun(small(search=search_settings, variants={}), folder)

    return build


def test_a_grid_tries_every_point_with_every_seed_once(build_search):
    search = build_search(space=GRID_SPACE, seeds=3)
    finished_trials = simulate_workers(search)
    assert len(finished_trials) == len(set(finished_trials)) == 36
    tried_combinations = {tuple(point.settings.values()) for point in search.points}
    assert tried_combinations == set(itertools.product(*GRID_SPACE.values()))
    assert search.select_winner().settings["training.batch_size"] == 8


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
@pytest.mark.parametrize("prune", [False, True])
def test_search_does_not_depend_on_worker_order_or_interruptions(build_search, method, prune):
    pytest.importorskip("optuna")
    search_settings = {"method": method, "seeds": 3, "prune": prune, "budget": "36 trials"}
    search_settings["space"] = GRID_SPACE if method == "grid" else MIXED_SPACE

    def list_outcomes(search: SearchRun) -> list[Any]:
        return [(point.settings, point.seed_scores, point.pruned) for point in search.points]

    first = build_search("first", **search_settings)
    simulate_workers(first, order_seed=1)
    second = build_search("second", **search_settings)
    simulate_workers(second, order_seed=2, num_workers=3)
    assert list_outcomes(first) == list_outcomes(second)
    assert first.select_winner().name == second.select_winner().name
    max_trials, total_trials = 5, 0
    while True:
        interrupted = build_search("interrupted", is_resumed=True, **search_settings)
        num_trials = len(simulate_workers(interrupted, order_seed=max_trials, max_trials=max_trials))
        total_trials += num_trials
        if num_trials < max_trials:
            break
    assert list_outcomes(interrupted) == list_outcomes(first)
    assert total_trials == sum(len(point.seed_scores) for point in first.points), "no trial ran twice"
    if prune:
        assert any(point.pruned for point in first.points)
        assert all(len(point.seed_scores) < 3 for point in first.points if point.pruned)
        assert not any(point.pruned for point in first.points[: DECISION_LAG - 1])


def test_proposals_depend_only_on_the_seed(build_search):
    pytest.importorskip("optuna")
    for method in ("random", "tpe"):
        searches = [
            SearchConfig.model_validate({"method": method, "space": MIXED_SPACE, "seed": seed}) for seed in (0, 0, 1)
        ]
        scored_points = [(samplers.suggest_settings(searches[0], index, [], []), float(index)) for index in range(8)]
        first, repeated, different = (samplers.suggest_settings(search, 9, [], scored_points) for search in searches)
        assert first == repeated != different
        for settings in (first, different):
            assert 1e-5 <= settings["training.optimizer.lr"] <= 0.1
            assert settings["training.batch_size"] in range(4, 33, 4)


def test_tpe_proposes_settings_near_the_optimum(build_search):
    pytest.importorskip("optuna")
    search_settings = {"space": LR_SPACE, "seeds": 1, "budget": "40 trials"}

    def compute_mean_distance(method: str) -> float:
        """Return the mean distance of the later points from the optimum, in decades."""
        search = build_search(method, method=method, **search_settings)
        simulate_workers(search)
        late_lrs = [point.settings["training.optimizer.lr"] for point in search.points[20:]]
        return sum(abs(math.log10(lr / 3e-3)) for lr in late_lrs) / len(late_lrs)

    assert compute_mean_distance("tpe") < 0.6 * compute_mean_distance("random")


def test_trials_saved_by_pruning_are_spent_on_more_points(build_search):
    unpruned = build_search("unpruned", method="random", space=LR_SPACE, seeds=3, budget="31 trials")
    assert len(simulate_workers(unpruned)) == 30
    assert len(unpruned.points) == 10
    pruned = build_search("pruned", method="random", space=LR_SPACE, seeds=3, budget="31 trials", prune=True)
    assert len(simulate_workers(pruned)) <= 31
    assert len(pruned.points) > 10


def test_a_grid_stopped_by_its_budget_is_a_random_sample(build_search):
    search = build_search(space=GRID_SPACE, budget="8 trials")
    simulate_workers(search)
    assert len(search.points) == 4
    assert len({point.settings["model.layers"] for point in search.points}) > 1, (
        "not the first combinations of the file"
    )


def test_a_time_budget_excludes_interruptions(build_search):
    search = build_search(method="random", space=LR_SPACE, seeds=2, budget="5 minutes")
    clock = itertools.count(0, 10.0)
    search.now = lambda: next(clock)
    search.start_time = 0.0
    simulate_workers(search)
    assert search.get_elapsed_seconds() >= 300
    num_points = len(search.points)
    assert 1 < num_points < 60
    resumed = build_search(is_resumed=True, method="random", space=LR_SPACE, seeds=2, budget="5 minutes")
    resumed.now, resumed.start_time = (lambda: 1000.0), 1000.0
    assert resumed.previous_seconds >= 290, "earlier time counts"
    events = read_jsonl(resumed.journal.path)
    assert sum(event["event"] == "point" for event in events) == num_points


def test_a_trial_with_a_lost_worker_is_retried_once(build_search):
    search = build_search(space={"training.batch_size": [4, 8]}, seeds=1)
    for _ in range(2):
        (job,) = search.take_next_jobs(1)
        search.jobs.append(job)
        assert job.trial.variant == "point-001"
        job.state, job.message = "lost", "its worker was killed by signal 9"
    (job,) = search.take_next_jobs(1)
    assert job.trial.variant == "point-002"
    assert search.points[0].status == "failed"
    assert "killed twice" in str(search.points[0].failure)
    search.points[1].failure = "seed 1000: ran away"
    with pytest.raises(TrialError, match=r"every point of the search failed(.|\n)*ran away"):
        search.select_winner()


def test_invalid_combinations_are_not_trained(small, tmp_path):
    space = {"model.heads": {"low": 2, "high": 4}, "model.width": {"low": 12, "high": 24}}
    experiment = small(search={"method": "random", "space": space, "seeds": 1, "budget": "12 trials"}, variants={})
    (tmp_path / "runs").mkdir()
    search = SearchRun(experiment, tmp_path / "runs")
    simulate_workers(search, compute_loss=lambda settings, seed: float(settings["model.width"]))
    failed_points = [point for point in search.points if point.failure]
    assert failed_points and all("must be divisible" in str(point.failure) for point in failed_points)
    assert all(
        point.settings["model.width"] % point.settings["model.heads"] == 0
        for point in search.points
        if point.seed_scores
    )


def test_a_journal_with_an_incomplete_last_line_is_continued(build_search):
    search = build_search(space=GRID_SPACE)
    simulate_workers(search, max_trials=3)
    journal_bytes = search.journal.path.read_bytes()
    search.journal.path.write_bytes(journal_bytes + b'{"event": "point", "point": 7, "sett')
    resumed = build_search(is_resumed=True, space=GRID_SPACE)
    assert len(resumed.points) == len(search.points)
    simulate_workers(resumed)
    assert len(read_jsonl(resumed.journal.path)) > 24


def test_tpe_without_optuna_names_the_extra(small, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    experiment = small(search={"method": "tpe", "space": LR_SPACE, "budget": "4 trials"}, variants={})
    with pytest.raises(MissingExtraError, match=r"headtohead\[search\]"):
        run_experiment.run_experiment(experiment, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
