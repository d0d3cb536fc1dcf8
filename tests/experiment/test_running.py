"""Killing a worker costs one trial, and --resume produces the same numbers."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from headtohead.config.trial_settings import build_trial
from headtohead.errors import RunFolderError
from headtohead.execution.worker_pool import Job
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.run_folder import lock_folder, open_experiment_runs
from headtohead.experiment.schemas import RunEvent, SettingsEvent
from headtohead.json_files import read_json
from headtohead.runner import run_experiment
from headtohead.runner.verification.verify import verify_experiment
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.step_cost import compute_trial_model_cost


def read_scores(folder: Path) -> dict[str, object]:
    runs = open_experiment_runs(folder)
    return {
        f"{variant}/{seed}": run.result.scores
        for variant in runs.experiment.names
        for seed, run in runs.finished(variant).items()
    }


def list_worker_pids() -> list[int]:
    children = subprocess.run(
        ["pgrep", "-P", str(os.getpid()), "-f", "headtohead.execution.worker"],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(pid) for pid in children.stdout.split()]


def test_a_killed_worker_costs_one_trial_and_resume_completes_it_with_the_same_numbers(
    small, tmp_path, in_process_pool
):
    experiment = small(training={"budget": "120 steps"})
    killed_pids: list[int] = []

    def kill_one(jobs: list[Job]) -> None:
        if not killed_pids and any(job.state == "running" and job.step >= 20 for job in jobs):
            killed_pids.append(list_worker_pids()[0])
            os.kill(killed_pids[0], signal.SIGKILL)

    outcome = run_experiment.run_experiment(experiment, tmp_path / "killed", num_workers=2, on_update=kill_one)
    assert killed_pids
    (lost,) = outcome.failed_jobs
    assert lost.state == "lost"
    assert "killed by signal 9" in lost.message
    assert sum(job.state == "finished" for job in outcome.jobs) == 3
    finished_files = {p: p.stat().st_mtime_ns for p in (tmp_path / "killed").rglob("result.json")}
    resumed = run_experiment.run_experiment(experiment, tmp_path / "killed", num_workers=2, resume=True)
    assert not resumed.failed_jobs
    assert all(path.stat().st_mtime_ns == when for path, when in finished_files.items())
    complete = run_experiment.run_experiment(experiment, tmp_path / "whole", backend=in_process_pool)
    assert read_scores(tmp_path / "killed") == read_scores(tmp_path / "whole")
    assert resumed.findings is not None
    assert complete.findings is not None
    assert resumed.findings.to_json()["verdicts"] == complete.findings.to_json()["verdicts"]


@pytest.mark.usefixtures("in_process_workers")
def test_a_trial_that_fails_does_not_take_the_others_along(small, tmp_path):
    experiment = small(seeds=1, variants={"wild": {"training": {"optimizer": {"kind": "sgd", "lr": 1e30}}}})
    outcome = run_experiment.run_experiment(experiment, tmp_path / "runs", num_workers=1)
    (failed,) = outcome.failed_jobs
    assert failed.trial.variant == "wild"
    assert "try a learning rate below 1e+30" in failed.message
    assert outcome.findings is not None
    assert outcome.findings.failures[0].message == failed.message
    assert read_json(tmp_path / "runs" / "wild" / "seed-0" / "failure.json")["kind"] == "DivergedError"


def test_ctrl_c_leaves_everything_resumable(small, tmp_path, text_folder):
    file = tmp_path / "mine.toml"
    file.write_text(
        f'question = "?"\ntask = "language-model"\nseeds = 1\n[data]\nsource = "{text_folder}"\n'
        "[model]\nwidth = 16\nlayers = 1\ncontext = 8\n[training]\nbudget = '3000 steps'\n"
        "checkpoint_every = 20\neval_every = 1000\n"
    )
    # Tests that a shell started in the background inherit a Ctrl-C that is switched off.
    start = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import headtohead.cli as c; c.main()"
    )
    command = [sys.executable, "-c", start, "run", str(file), "--out", str(tmp_path / "runs")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "runs").glob("baseline/seed-0/checkpoint-0000[2-9]*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    assert list((tmp_path / "runs").glob("baseline/seed-0/checkpoint-*"))
    assert not (tmp_path / "runs" / "baseline" / "seed-0" / "result.json").exists()


def test_the_same_folder_is_not_used_by_two_at_once(small, tmp_path):
    with (
        lock_folder(tmp_path / "runs"),
        pytest.raises(RunFolderError, match="another process is running this experiment"),
    ):
        run_experiment.run_experiment(small(), tmp_path / "runs", num_workers=1)
    assert not list_worker_pids(), "those that were started early have nothing to do"


@pytest.mark.usefixtures("in_process_workers")
def test_sizes_are_counted_once_and_told_to_the_workers(small, tmp_path):
    experiment = small(seeds=1, training={"budget": "4 steps"})
    run_experiment.run_experiment(experiment, tmp_path / "runs", num_workers=2)
    for name in experiment.names:
        trial = build_trial(experiment, name, 0)
        counted = compute_trial_model_cost(trial, prepare_dataset(trial.data, trial.task))
        start = read_json(tmp_path / "runs" / name / "seed-0" / "start.json")
        assert {key: start[key] for key in asdict(counted)} == asdict(counted)


@pytest.mark.usefixtures("in_process_workers")
def test_more_seeds_can_be_added(small, tmp_path):
    run_experiment.run_experiment(small(seeds=1), tmp_path / "runs", num_workers=2)
    outcome = run_experiment.run_experiment(small(seeds=2), tmp_path / "runs", num_workers=2, resume=True)
    assert [job.state for job in outcome.jobs] == ["kept", "kept", "finished", "finished"]


@pytest.mark.usefixtures("in_process_workers")
def test_auto_seeds_stop_when_it_is_settled(small, tmp_path):
    # No run of a network that cannot learn succeeds. Three runs of each side cannot prove it (p = 0.1), five can.
    experiment = small(
        seeds="auto up to 8",
        training={"optimizer": {"kind": "adamw", "lr": 0.01}, "budget": "60 steps"},
        variants={"still": {"training": {"optimizer": {"kind": "adamw", "lr": 1e-9}}}},
    )
    outcome = run_experiment.run_experiment(experiment, tmp_path / "runs", num_workers=2)
    assert outcome.findings is not None
    (verdict,) = outcome.findings.verdicts
    assert verdict.outcome == "hurt"
    assert (verdict.runs, verdict.lost_runs) == (5, 5)
    assert outcome.findings.interim_analyses == [3, 5]


@pytest.mark.usefixtures("in_process_workers")
def test_an_experiment_records_settings_and_runs_once(small, tmp_path):
    folder = tmp_path / "runs"
    run_experiment.run_experiment(small(), folder, num_workers=1)
    settings, *runs = [event for event in Journal(folder).read() if isinstance(event, SettingsEvent | RunEvent)]
    assert isinstance(settings, SettingsEvent) and settings.seeds == 2 and settings.variants == ["alibi"]
    expected = {(variant, seed) for variant in ("baseline", "alibi") for seed in range(2)}
    for status in ("started", "finished"):
        assert {(run.variant, run.seed) for run in runs if run.status == status} == expected
    assert all(len(run.digest) == 64 for run in runs if run.status == "finished")
    before = (folder / JOURNAL_FILE).read_bytes()
    run_experiment.run_experiment(small(), folder, num_workers=1, resume=True)
    assert (folder / JOURNAL_FILE).read_bytes() == before, "nothing new happened"
    run_experiment.run_experiment(small(seeds=3), folder, num_workers=1, resume=True)
    assert (folder / JOURNAL_FILE).read_bytes().startswith(before)
    assert [event.seeds for event in Journal(folder).read() if isinstance(event, SettingsEvent)] == [2, 3]
    assert any(check.location == JOURNAL_FILE and check.passed for check in verify_experiment(folder))
