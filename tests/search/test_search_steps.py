"""The steps of a search, without training: what is tried next, in which order, and what it costs.

Trials are played: a made-up figure is written where a worker would have written one."""

import itertools
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead.atomic_io import read_jsonl, write_json
from headtohead.config.search import SearchConfig
from headtohead.errors import MissingExtraError, TrialError
from headtohead.execution.worker_pool import Job
from headtohead.runner import run_experiment
from headtohead.runner.run_search import DECISION_LAG, SearchRun
from headtohead.search import samplers

RATES = {"training.optimizer.lr": {"low": 1e-5, "high": 1e-1, "log": True}}
MIXED = {
    **RATES,
    "training.batch_size": {"low": 4, "high": 32, "step": 4},
    "model.position": ["learned", "alibi", "rope"],
}
GRID = {"training.batch_size": [2, 4, 8, 16], "model.layers": [1, 2, 3]}


def figure(settings: dict[str, Any], seed: int, spread: float = 0.05) -> float:
    """A made-up loss: best near a rate of 0.003 or a batch of 8, with some noise."""
    noise = random.Random(f"{sorted(settings.items(), key=str)}{seed}").gauss(0, spread)
    rate, batch = settings.get("training.optimizer.lr", 3e-3), settings.get("training.batch_size", 8)
    return 3 + abs(math.log10(rate / 3e-3)) + 0.5 * abs(math.log2(batch / 8)) + noise


def play(
    search: SearchRun, *, workers: int = 2, order: int = 0, stop: int | None = None, loss: Callable[..., float] = figure
) -> list[str]:
    """Run the search as workers would, ending trials in a drawn order; with `stop`, kill it after so many trials."""
    draw, done = random.Random(order), []
    while True:
        running = [job for job in search.jobs if not job.is_over]
        search.jobs += search.take_next_jobs(workers - len(running)) if len(running) < workers else []
        running = [job for job in search.jobs if not job.is_over]
        if not running or (stop is not None and len(done) >= stop):
            return done
        job = draw.choice(running)
        end(search, job, loss)
        done.append(f"{job.trial.variant}/{job.trial.seed}")


def end(search: SearchRun, job: Job, loss: Callable[..., float]) -> None:
    point = search.points[int(job.trial.variant.removeprefix("point-")) - 1]
    job.folder.mkdir(parents=True, exist_ok=True)
    value = loss(point.settings, job.trial.seed)
    training = {"seconds": 1.0, "seconds_per_step": 0.1, "peak_memory": 1, "last_loss": value, "chosen_step": 1}
    result = {"metric": "perplexity", "scores": {"validation": {"loss": value}}, "training": training, "sha256": {}}
    write_json(job.folder / "result.json", result)
    job.state = "finished"


@pytest.fixture
def begun(small: Any, tmp_path: Path) -> Any:
    def build(name: str = "runs", *, again: bool = False, **search: Any) -> SearchRun:
        place = tmp_path / name
        place.mkdir(exist_ok=again)
        return SearchRun(small(search=search, variants={}), place)

    return build


def test_a_grid_tries_every_point_with_every_seed_once(begun):
    search = begun(space=GRID, seeds=3)
    done = play(search)
    assert len(done) == len(set(done)) == 36
    tried = {tuple(point.settings.values()) for point in search.points}
    assert tried == set(itertools.product(*GRID.values()))
    assert search.select_winner().settings["training.batch_size"] == 8


@pytest.mark.parametrize("method", ["grid", "random", "tpe"])
@pytest.mark.parametrize("prune", [False, True])
def test_a_search_is_the_same_whatever_the_order_of_the_workers_and_after_any_kill(begun, method, prune):
    pytest.importorskip("optuna")
    asked = {"method": method, "seeds": 3, "prune": prune, "budget": {"trials": 36}}
    asked["space"] = GRID if method == "grid" else MIXED

    def said(search: SearchRun) -> list[Any]:
        return [(point.settings, point.seed_scores, point.pruned) for point in search.points]

    first = begun("first", **asked)
    play(first, order=1)
    other = begun("other", **asked)
    play(other, order=2, workers=3)
    assert said(first) == said(other)
    assert first.select_winner().name == other.select_winner().name
    stop, played = 5, 0
    while True:
        part = begun("part", again=True, **asked)
        now = len(play(part, order=stop, stop=stop))
        played += now
        if now < stop:
            break
    assert said(part) == said(first)
    assert played == sum(len(point.seed_scores) for point in first.points), "no trial was played twice"
    if prune:
        assert any(point.pruned for point in first.points)
        assert all(len(point.seed_scores) < 3 for point in first.points if point.pruned)
        assert not any(point.pruned for point in first.points[: DECISION_LAG - 1])


def test_proposals_are_drawn_by_the_seed(begun):
    pytest.importorskip("optuna")
    for method in ("random", "tpe"):
        made = [SearchConfig.model_validate({"method": method, "space": MIXED, "seed": seed}) for seed in (0, 0, 1)]
        known = [(samplers.suggest_settings(made[0], at, [], []), float(at)) for at in range(8)]
        one, same, other = (samplers.suggest_settings(search, 9, [], known) for search in made)
        assert one == same != other
        for settings in (one, other):
            assert 1e-5 <= settings["training.optimizer.lr"] <= 0.1
            assert settings["training.batch_size"] in range(4, 33, 4)


def test_tpe_goes_where_it_went_well(begun):
    pytest.importorskip("optuna")
    asked = {"space": RATES, "seeds": 1, "budget": {"trials": 40}}

    def distance(search: SearchRun) -> float:
        play(search)
        late = [point.settings["training.optimizer.lr"] for point in search.points[20:]]
        return sum(abs(math.log10(rate / 3e-3)) for rate in late) / len(late)

    assert distance(begun("tpe", method="tpe", **asked)) < 0.6 * distance(begun("random", method="random", **asked))


def test_a_budget_in_trials_is_not_overdrawn_and_what_is_saved_is_spent_on_other_points(begun):
    plain = begun("plain", method="random", space=RATES, seeds=3, budget={"trials": 31})
    assert len(play(plain)) == 30
    assert len(plain.points) == 10
    pruned = begun("pruned", method="random", space=RATES, seeds=3, budget={"trials": 31}, prune=True)
    assert len(play(pruned)) <= 31
    assert len(pruned.points) > 10


def test_a_grid_that_is_cut_short_tries_a_fair_sample(begun):
    search = begun(space=GRID, budget={"trials": 8})
    play(search)
    assert len(search.points) == 4
    assert len({point.settings["model.layers"] for point in search.points}) > 1, "not the first corner of the file"


def test_minutes_end_a_search_and_breaks_do_not_count(begun):
    search = begun(method="random", space=RATES, seeds=2, budget={"minutes": 5})
    clock = itertools.count(0, 10.0)
    search.now = lambda: next(clock)
    search.start_time = 0.0
    play(search)
    assert search.seconds() >= 300
    took = len(search.points)
    assert 1 < took < 60
    again = begun(again=True, method="random", space=RATES, seeds=2, budget={"minutes": 5})
    again.now, again.start_time = (lambda: 1000.0), 1000.0
    assert again.previous_seconds >= 290, "what was used before counts"
    lines = read_jsonl(again.journal.path)
    assert sum(line["event"] == "point" for line in lines) == took


def test_a_trial_whose_worker_is_lost_is_retried_once_and_then_its_point_fails(begun):
    search = begun(space={"training.batch_size": [4, 8]}, seeds=1)
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


def test_numbers_that_go_together_badly_inside_a_range_cost_no_trial(small, tmp_path):
    space = {"model.heads": {"low": 2, "high": 4}, "model.width": {"low": 12, "high": 24}}
    experiment = small(search={"method": "random", "space": space, "seeds": 1, "budget": {"trials": 12}}, variants={})
    (tmp_path / "runs").mkdir()
    search = SearchRun(experiment, tmp_path / "runs")
    play(search, loss=lambda settings, seed: float(settings["model.width"]))
    failed = [point for point in search.points if point.failure]
    assert failed and all("cannot be divided" in str(point.failure) for point in failed)
    assert all(
        point.settings["model.width"] % point.settings["model.heads"] == 0
        for point in search.points
        if point.seed_scores
    )


def test_a_journal_whose_last_line_was_cut_off_is_continued(begun):
    search = begun(space=GRID)
    play(search, stop=3)
    text = search.journal.path.read_bytes()
    search.journal.path.write_bytes(text + b'{"event": "point", "point": 7, "sett')
    again = begun(again=True, space=GRID)
    assert len(again.points) == len(search.points)
    play(again)
    assert len(read_jsonl(again.journal.path)) > 24


def test_tpe_without_optuna_says_what_to_install(small, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    experiment = small(search={"method": "tpe", "space": RATES, "budget": {"trials": 4}}, variants={})
    with pytest.raises(MissingExtraError, match=r"headtohead\[search\]"):
        run_experiment.run_experiment(experiment, tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
