"""Searches with real training: no trial runs twice, and the winner is selected on validation data and tested once."""

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

from headtohead.config.tables.search import FIRST_SEARCH_SEED
from headtohead.errors import ConfigError, RequestError, RunFolderError
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run, open_experiment_runs
from headtohead.findings import compute
from headtohead.json_files import read_json, read_jsonl
from headtohead.runner import search_trials
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verification.verify import verify_experiment
from headtohead.trials.trial import run_trial
from headtohead.verdict.intervals import compute_mean_interval

EXPERIMENT_FILE = """
question = "Which setting is best?"
task = "language-model"
seeds = 2
data = {{ source = "{source}" }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training = {{ budget = "8 steps", eval_every = 8, checkpoint_every = 4, batch_size = 4 }}
[search.space]
training.optimizer.lr = [0.02, 0.003, 0.0003]
training.batch_size = [4, 8]
model.layers = [1, 2]
"""


def read_finish_times(folder: Path) -> dict[str, int]:
    """Return the time at which each finished run of the search finished."""
    # Not rglob, because checkpoints in the run folders appear and disappear meanwhile.
    return {
        str(path.parent.relative_to(folder)): path.stat().st_mtime_ns for path in folder.glob("search/*/*/result.json")
    }


@dataclass
class KilledSearch:
    """A search that was killed halfway and resumed."""

    file: Path
    folder: Path
    finished_before_kill: dict[str, int]
    outcome: Any

    @property
    def search(self) -> Any:
        return self.outcome.findings.search


@pytest.fixture(scope="module")
def killed_search(tmp_path_factory: pytest.TempPathFactory) -> KilledSearch:
    from tests.conftest import write_text

    root = tmp_path_factory.mktemp("search")
    file, folder = root / "grid.toml", root / "runs"
    file.write_text(EXPERIMENT_FILE.format(source=write_text(root / "text")))
    command = [sys.executable, "-m", "headtohead.cli", "run", str(file), "--out", str(folder), "--workers", "2"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(read_finish_times(folder)) < 7:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(1)  # a worker without its parent ends at its next message
    finished_before_kill = read_finish_times(folder)
    outcome = run_experiment(loading.load_experiment(file), folder, num_workers=2, resume=True)
    return KilledSearch(file, folder, finished_before_kill, outcome)


def test_a_killed_search_is_resumed_without_repeating_trials(killed_search):
    finish_times = read_finish_times(killed_search.folder)
    assert 7 <= len(killed_search.finished_before_kill) < 24
    assert len(finish_times) == 24
    assert {
        name: finish_times[name] for name in killed_search.finished_before_kill
    } == killed_search.finished_before_kill
    assert not killed_search.outcome.failed_jobs
    settings = [tuple(sorted(point.settings.items())) for point in killed_search.search.points]
    assert len(set(settings)) == 12
    events = [line["event"] for line in read_jsonl(killed_search.folder / "journal.jsonl")]
    assert events.count("point") == 12 and events.count("winner") == 1
    outcome = run_experiment(
        loading.load_experiment(killed_search.file), killed_search.folder, num_workers=2, resume=True
    )
    assert read_finish_times(killed_search.folder) == finish_times
    assert all(job.state == "kept" for job in outcome.jobs)
    assert outcome.findings == killed_search.outcome.findings


def test_a_truncated_journal_is_reported(killed_search, tmp_path):
    copied_folder = shutil.copytree(killed_search.folder, tmp_path / "runs")
    journal = copied_folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().partition(b'{"event": "winner"')[0])
    with pytest.raises(RunFolderError, match=r"journal\.jsonl is truncated"):
        compute.compute_findings(open_experiment_runs(copied_folder))
    assert any("journal.jsonl" in check.observation for check in verify_experiment(copied_folder) if not check.passed)
    with pytest.raises(RunFolderError, match=r"baseline has a run that journal\.jsonl does not record"):
        run_experiment(loading.load_experiment(killed_search.file), copied_folder, num_workers=1, resume=True)
    for variant in ("baseline", "winner"):
        shutil.rmtree(copied_folder / variant)
    outcome = run_experiment(loading.load_experiment(killed_search.file), copied_folder, num_workers=1, resume=True)
    assert outcome.findings.search.winner == killed_search.search.winner
    assert all(check.passed for check in verify_experiment(copied_folder))


def test_existing_searches_are_not_continued_without_resume_or_with_other_settings(killed_search):
    with pytest.raises(RunFolderError, match="--resume continues it"):
        run_experiment(loading.load_experiment(killed_search.file), killed_search.folder, num_workers=1)
    different = loading.load_experiment(killed_search.file, ["search.space.training.batch_size=[4, 8, 16]"])
    with pytest.raises(RunFolderError, match="contains a different search"):
        run_experiment(different, killed_search.folder, num_workers=1, resume=True)
    longer = loading.load_experiment(killed_search.file, ["search.budget=12 trials"])
    with pytest.raises(RunFolderError, match="this search ended with the budget none"):
        run_experiment(longer, killed_search.folder, num_workers=1, resume=True)


def test_winner_is_best_on_validation_data_and_gets_fresh_seeds(killed_search):
    means = {}
    for point in killed_search.search.points:
        runs = [
            Run(killed_search.folder / "search" / point.name / f"seed-{FIRST_SEARCH_SEED + offset}")
            for offset in (0, 1)
        ]
        means[point.point] = np.mean([run.result.scores["validation"].loss for run in runs])
        assert point.mean == pytest.approx(np.exp(means[point.point]))
    winner = killed_search.search.winner
    assert winner == min(means, key=lambda point: means[point])
    runs = open_experiment_runs(killed_search.folder)
    assert runs.experiment.names == ("baseline", "winner")
    assert runs.seeds("winner") == runs.seeds("baseline") == [0, 1]
    search_seeds = {
        int(path.name.removeprefix("seed-")) for path in (killed_search.folder / "search").glob("point-*/seed-*")
    }
    assert search_seeds == {FIRST_SEARCH_SEED, FIRST_SEARCH_SEED + 1}
    winner_trial, settings = runs.run("winner", 0).trial, killed_search.search.points[winner].settings
    assert winner_trial.training.optimizer.options["lr"] == settings["training.optimizer.lr"]
    assert (winner_trial.training.batch_size, winner_trial.model.layers) == (
        settings["training.batch_size"],
        settings["model.layers"],
    )
    assert winner_trial.training.budget == "8 steps", "settings outside the space are those of the file"
    (verdict,) = killed_search.outcome.findings.verdicts
    assert verdict.variant == "winner" and verdict.seeds == 2


def test_selection_bias_is_the_difference_from_fresh_seeds(killed_search):
    runs, bias = open_experiment_runs(killed_search.folder), killed_search.search.selection_bias
    fresh_losses, baseline_losses = (
        [run.result.scores["validation"].loss for run in runs.finished(name).values()]
        for name in ("winner", "baseline")
    )
    point = killed_search.search.points[killed_search.search.winner]
    search_losses = [np.log(perplexity) for _, perplexity in point.scores]
    search_perplexity, fresh_perplexity, baseline_perplexity = (
        np.exp(np.mean(losses)) for losses in (search_losses, fresh_losses, baseline_losses)
    )
    assert bias.lead == pytest.approx((baseline_perplexity - search_perplexity) / baseline_perplexity)
    assert bias.bias == pytest.approx((fresh_perplexity - search_perplexity) / baseline_perplexity)
    assert bias.lead - bias.bias == pytest.approx(bias.kept)
    low, high = bias.interval
    assert low < bias.bias < high
    # The standard deviation is pooled over the four seeds of the winner, so the t quantile has 2 degrees of freedom.
    pooled_std = np.sqrt((np.var(search_losses, ddof=1) + np.var(fresh_losses, ddof=1)) / 2)
    bounds = [np.mean(fresh_losses) + sign * 4.302653 * pooled_std / np.sqrt(2) for sign in (-1, 1)]
    assert [low, high] == pytest.approx([(np.exp(bound) - search_perplexity) / baseline_perplexity for bound in bounds])
    assert compute_mean_interval(fresh_losses) is not None


def test_interval_of_a_point_uses_the_pooled_standard_deviation(killed_search):
    points = [point for point in killed_search.search.points if len(point.scores) == 2]
    losses_by_point = [np.log([perplexity for _, perplexity in point.scores]) for point in points]
    pooled_std = np.sqrt(np.mean([np.var(losses, ddof=1) for losses in losses_by_point]))
    degrees_of_freedom = len(points)
    for point, losses in zip(points, losses_by_point, strict=True):
        half_width = stats.t.ppf(0.975, degrees_of_freedom) * pooled_std / np.sqrt(2)
        assert point.interval == pytest.approx([np.exp(np.mean(losses) + sign * half_width) for sign in (-1, 1)])


def test_search_trials_score_only_validation_data_and_save_no_model(killed_search, tmp_path):
    for result in (killed_search.folder / "search").rglob("result.json"):
        assert set(read_json(result)["scores"]) == {"validation"}
        assert not (result.parent / "model.safetensors").exists()
        splits = {line["split"] for line in read_jsonl(result.parent / "metrics.jsonl")}
        assert splits <= {"batches", "train", "validation"}
    # The scores of a search do not depend on the test texts.
    experiment = loading.load_experiment(killed_search.file)
    source = tmp_path / "text"
    shutil.copytree(experiment.data.source, source)
    (source / "test.txt").write_text("nothing like it .\n")
    changed_experiment = loading.load_experiment(killed_search.file, data_source=source)
    point = killed_search.search.points[0]
    trial = search_trials.build_search_trial(changed_experiment, point.name, point.settings, FIRST_SEARCH_SEED)
    result = run_trial(trial, tmp_path / "run", device="cpu")
    existing = Run(killed_search.folder / "search" / point.name / f"seed-{FIRST_SEARCH_SEED}").result
    assert result.scores == existing.scores


def test_verification_includes_the_search(killed_search, tmp_path):
    checks = verify_experiment(killed_search.folder)
    assert all(check.passed for check in checks)
    assert sum("search/point-" in check.location for check in checks) >= 24
    copied_folder = tmp_path / "runs"
    shutil.copytree(killed_search.folder, copied_folder)
    path = copied_folder / "search" / "point-003" / f"seed-{FIRST_SEARCH_SEED}" / "result.json"
    path.write_text(path.read_text().replace('"loss": ', '"loss": 1'))
    failed_locations = [check.location for check in verify_experiment(copied_folder) if not check.passed]
    assert any("search" in location for location in failed_locations)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"training.batch_size": [4, 0]}, "search.space.training.batch_size: must be >= 1, not 0"),
        ({"model.heads": [2, 3]}, "width (16) must be divisible by heads (3)"),
        ({"model.position": ["alibi", "alibbi"]}, "did you mean 'alibi'"),
        ({"training.optimizer.lr": [0.1, "fast"]}, "must be a number, not 'fast'"),
    ],
)
def test_invalid_values_are_rejected_before_training(small, space, message):
    with pytest.raises(ConfigError, match="error") as error:
        small(search={"space": space})
    assert message in str(error.value)


def test_values_that_cannot_be_built_are_rejected_before_anything_is_written(small, tmp_path):
    experiment = small(search={"space": {"training.optimizer.lr": [0.1, -1.0]}}, variants={})
    with pytest.raises(RequestError, match=r"training.optimizer.lr = -1.0 cannot be built"):
        run_experiment(experiment, tmp_path / "runs", num_workers=1)
    assert not (tmp_path / "runs").exists()


def test_a_search_needs_validation_data(small):
    with pytest.raises(ConfigError, match="needs validation data"):
        small(search={"space": {"training.batch_size": [4, 8]}}, data={"validation_fraction": 0})


@pytest.mark.usefixtures("in_process_workers")
def test_a_diverging_point_is_excluded(small, tmp_path):
    training = {"budget": "20 steps", "eval_every": 20, "checkpoint_every": 20, "batch_size": 4}
    space = {"training.optimizer": [{"kind": "sgd", "lr": 1e30}, {"kind": "adamw", "lr": 0.01}]}
    experiment = small(search={"space": space, "seeds": 1}, training=training, variants={}, probe={}, seeds=1)
    outcome = run_experiment(experiment, tmp_path / "runs", num_workers=1)
    points_by_status = {point.status: point for point in outcome.findings.search.points}
    assert points_by_status["failed"].settings["training.optimizer"]["kind"] == "sgd"
    assert "try a learning rate below 1e+30" in points_by_status["failed"].message
    assert outcome.findings.search.winner == points_by_status["finished"].point
    assert open_experiment_runs(tmp_path / "runs").run("winner", 0).trial.training.optimizer.kind == "adamw"
    finish_times = read_finish_times(tmp_path / "runs")
    run_experiment(experiment, tmp_path / "runs", num_workers=1, resume=True)
    assert read_finish_times(tmp_path / "runs") == finish_times
    (seed_folder,) = (tmp_path / "runs" / "search" / points_by_status["failed"].name).iterdir()
    assert seed_folder.name == f"seed-{FIRST_SEARCH_SEED}"
