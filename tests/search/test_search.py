"""A search with real trainings: nothing is trained twice, the winner is chosen on validation data and tested once."""

import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from headtohead.atomic_io import read_json, read_jsonl
from headtohead.config.search import FIRST_SEARCH_SEED
from headtohead.errors import ConfigError, RequestError, RunFolderError
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run, open_runs
from headtohead.findings import compute
from headtohead.runner import run_search
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verify import verify_experiment
from headtohead.trials.trial import run_trial
from headtohead.verdict.statistics import compute_mean_interval

FILE = """
question = "Which setting is best?"
task = "language-model"
seeds = 2
data = {{ source = "{source}" }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training = {{ steps = 8, eval_every = 8, checkpoint_every = 4, batch_size = 4 }}
[search.space]
training.optimizer.lr = [0.02, 0.003, 0.0003]
training.batch_size = [4, 8]
model.layers = [1, 2]
"""


def finished(folder: Path) -> dict[str, int]:
    """Every finished run of the search, and the moment at which it was finished."""
    # Not rglob, which looks into each run's folder too, where checkpoints appear and go while it looks.
    return {str(p.parent.relative_to(folder)): p.stat().st_mtime_ns for p in folder.glob("search/*/*/result.json")}


@dataclass
class Killed:
    """A search that was killed in the middle and continued."""

    file: Path
    folder: Path
    before: dict[str, int]
    outcome: Any

    @property
    def search(self) -> Any:
        return self.outcome.findings.search


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    from tests.conftest import write_text

    root = tmp_path_factory.mktemp("search")
    file, folder = root / "grid.toml", root / "runs"
    file.write_text(FILE.format(source=write_text(root / "text")))
    command = [sys.executable, "-m", "headtohead.cli", "run", str(file), "--out", str(folder), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(finished(folder)) < 7:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # a worker whose parent is gone ends at its next word
    before = finished(folder)
    outcome = run_experiment(loading.load_experiment(file), folder, num_workers=2, resume=True)
    return Killed(file, folder, before, outcome)


def test_a_grid_of_12_points_goes_on_after_a_kill_and_repeats_nothing(killed):
    after = finished(killed.folder)
    assert 7 <= len(killed.before) < 24
    assert len(after) == 24
    assert {name: after[name] for name in killed.before} == killed.before
    assert not killed.outcome.failed_jobs
    settings = [tuple(sorted(point.settings.items())) for point in killed.search.points]
    assert len(set(settings)) == 12
    events = [line["event"] for line in read_jsonl(killed.folder / "journal.jsonl")]
    assert events.count("point") == 12 and events.count("winner") == 1
    again = run_experiment(loading.load_experiment(killed.file), killed.folder, num_workers=2, resume=True)
    assert finished(killed.folder) == after
    assert all(job.state == "kept" for job in again.jobs)
    assert again.findings == killed.outcome.findings


def test_a_journal_that_lost_its_end_is_named_and_not_used(killed, tmp_path):
    copied = shutil.copytree(killed.folder, tmp_path / "runs")
    journal = copied / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().partition(b'{"event": "winner"')[0])
    with pytest.raises(RunFolderError, match=r"journal\.jsonl is truncated"):
        compute.compute_findings(open_runs(copied))
    assert any("journal.jsonl" in check.observation for check in verify_experiment(copied) if not check.passed)
    with pytest.raises(RunFolderError, match=r"baseline has a run that journal\.jsonl does not record"):
        run_experiment(loading.load_experiment(killed.file), copied, num_workers=1, resume=True)
    for variant in ("baseline", "winner"):
        shutil.rmtree(copied / variant)
    outcome = run_experiment(loading.load_experiment(killed.file), copied, num_workers=1, resume=True)
    assert outcome.findings.search.winner == killed.search.winner
    assert all(check.passed for check in verify_experiment(copied))


def test_without_resume_the_folder_is_left_alone(killed):
    with pytest.raises(RunFolderError, match="--resume continues it"):
        run_experiment(loading.load_experiment(killed.file), killed.folder, num_workers=1)
    other = loading.load_experiment(killed.file, ["search.space.training.batch_size=[4, 8, 16]"])
    with pytest.raises(RunFolderError, match="contains another search"):
        run_experiment(other, killed.folder, num_workers=1, resume=True)
    longer = loading.load_experiment(killed.file, ["search.budget.trials=12"])
    with pytest.raises(RunFolderError, match="this search ended with the budget none"):
        run_experiment(longer, killed.folder, num_workers=1, resume=True)


def test_the_winner_is_the_best_on_validation_data_and_is_judged_by_fresh_seeds(killed):
    means = {}
    for point in killed.search.points:
        runs = [Run(killed.folder / "search" / point.name / f"seed-{FIRST_SEARCH_SEED + at}") for at in (0, 1)]
        means[point.point] = np.mean([run.result.scores["validation"].loss for run in runs])
        assert point.mean == pytest.approx(np.exp(means[point.point]))
    winner = killed.search.winner
    assert winner == min(means, key=lambda point: means[point])
    runs = open_runs(killed.folder)
    assert runs.experiment.names == ("baseline", "winner")
    assert runs.seeds("winner") == runs.seeds("baseline") == [0, 1]
    searched = {int(p.name.removeprefix("seed-")) for p in (killed.folder / "search").glob("point-*/seed-*")}
    assert searched == {FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + 1}
    chosen, settings = runs.run("winner", 0).trial, killed.search.points[winner].settings
    assert chosen.training.optimizer.options["lr"] == settings["training.optimizer.lr"]
    assert (chosen.training.batch_size, chosen.model.layers) == (
        settings["training.batch_size"],
        settings["model.layers"],
    )
    assert chosen.training.steps == 8, "what the point does not name stays as the file has it"
    (verdict,) = killed.outcome.findings.verdicts
    assert verdict.variant == "winner" and verdict.seeds == 2


def test_selection_bias_is_the_drop_to_the_fresh_seeds(killed):
    runs, bias = open_runs(killed.folder), killed.search.selection_bias
    fresh, base = (
        [run.result.scores["validation"].loss for run in runs.finished(name).values()]
        for name in ("winner", "baseline")
    )
    point = killed.search.points[killed.search.winner]
    search = [np.log(value) for _, value in point.scores]
    before, after, unit = np.exp(np.mean(search)), np.exp(np.mean(fresh)), np.exp(np.mean(base))
    assert bias.lead == pytest.approx((unit - before) / unit)
    assert bias.bias == pytest.approx((after - before) / unit)
    assert bias.lead - bias.bias == pytest.approx(bias.kept)
    low, high = bias.interval
    assert low < bias.bias < high
    # With the spread of all four of the winner's seeds it is narrower than the t interval of two, and as wide as this:
    spread = np.sqrt((np.var(search, ddof=1) + np.var(fresh, ddof=1)) / 2)
    ends = [np.mean(fresh) + side * 4.302653 * spread / np.sqrt(2) for side in (-1, 1)]
    assert [low, high] == pytest.approx([(np.exp(end) - before) / unit for end in ends])
    assert compute_mean_interval(fresh) is not None


def test_the_interval_of_a_point_has_the_spread_of_all_points(killed):
    points = [point for point in killed.search.points if len(point.scores) == 2]
    logs = [np.log([value for _, value in point.scores]) for point in points]
    spread = np.sqrt(np.mean([np.var(figures, ddof=1) for figures in logs]))
    freedom = len(points)
    for point, figures in zip(points, logs, strict=True):
        reach = stats.t.ppf(0.975, freedom) * spread / np.sqrt(2)
        assert point.interval == pytest.approx([np.exp(np.mean(figures) + side * reach) for side in (-1, 1)])


def test_a_trial_of_a_search_scores_validation_data_only_and_keeps_no_model(killed, tmp_path):
    for result in (killed.folder / "search").rglob("result.json"):
        assert set(read_json(result)["scores"]) == {"validation"}
        assert not (result.parent / "model.safetensors").exists()
        splits = {line["split"] for line in read_jsonl(result.parent / "metrics.jsonl")}
        assert splits <= {"batches", "train", "validation"}
    # Other test texts change nothing in a search: not one figure depends on them.
    experiment = loading.load_experiment(killed.file)
    source = tmp_path / "text"
    shutil.copytree(experiment.data.source, source)
    (source / "test.txt").write_text("nothing like it .\n")
    other = loading.load_experiment(killed.file, data_source=source)
    point = killed.search.points[0]
    trial = run_search.build_search_trial(other, point.name, point.settings, FIRST_SEARCH_SEED)
    result = run_trial(trial, tmp_path / "run", device="cpu")
    there = Run(killed.folder / "search" / point.name / f"seed-{FIRST_SEARCH_SEED}").result
    assert result.scores == there.scores


def test_the_folder_is_verified_with_its_search(killed, tmp_path):
    checks = verify_experiment(killed.folder)
    assert all(check.passed for check in checks)
    assert sum("search/point-" in check.location for check in checks) >= 24
    copied = tmp_path / "runs"
    shutil.copytree(killed.folder, copied)
    path = copied / "search" / "point-003" / f"seed-{FIRST_SEARCH_SEED}" / "result.json"
    path.write_text(path.read_text().replace('"loss": ', '"loss": 1'))
    failed = [check.location for check in verify_experiment(copied) if not check.passed]
    assert any("search" in place for place in failed)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"training.batch_size": [4, 0]}, "search.space.training.batch_size: must be >= 1, not 0"),
        ({"model.heads": [2, 3]}, "width 16 cannot be divided among 3 heads"),
        ({"model.position": ["alibi", "alibbi"]}, "did you mean 'alibi'"),
        ({"training.optimizer.lr": [0.1, "fast"]}, "must be a number, not 'fast'"),
    ],
)
def test_an_impossible_value_fails_before_anything_is_trained(small, space, said):
    with pytest.raises(ConfigError, match="error") as caught:
        small(search={"space": space})
    assert said in str(caught.value)


def test_what_only_building_shows_is_found_before_anything_is_written(small, tmp_path):
    experiment = small(search={"space": {"training.optimizer.lr": [0.1, -1.0]}}, variants={})
    with pytest.raises(RequestError, match=r"training.optimizer.lr = -1.0 cannot be built"):
        run_experiment(experiment, tmp_path / "runs", num_workers=1)
    assert not (tmp_path / "runs").exists()


def test_without_validation_data_there_is_no_search(small):
    with pytest.raises(ConfigError, match="needs validation data"):
        small(search={"space": {"training.batch_size": [4, 8]}}, data={"validation_fraction": 0})


def test_a_diverging_point_is_excluded_and_the_others_continue(small, tmp_path):
    tiny = {"steps": 20, "eval_every": 20, "checkpoint_every": 20, "batch_size": 4}
    space = {"training.optimizer": [{"kind": "sgd", "lr": 1e30}, {"kind": "adamw", "lr": 0.01}]}
    experiment = small(search={"space": space, "seeds": 1}, training=tiny, variants={}, probe={}, seeds=1)
    outcome = run_experiment(experiment, tmp_path / "runs", num_workers=1)
    points = {point.status: point for point in outcome.findings.search.points}
    assert points["failed"].settings["training.optimizer"]["kind"] == "sgd"
    assert "try a learning rate below 1e+30" in points["failed"].message
    assert outcome.findings.search.winner == points["finished"].point
    assert open_runs(tmp_path / "runs").run("winner", 0).trial.training.optimizer.kind == "adamw"
    kept = finished(tmp_path / "runs")
    run_experiment(experiment, tmp_path / "runs", num_workers=1, resume=True)
    assert finished(tmp_path / "runs") == kept
    (only,) = (tmp_path / "runs" / "search" / points["failed"].name).iterdir()
    assert only.name == f"seed-{FIRST_SEARCH_SEED}"
