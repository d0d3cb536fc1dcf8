"""Regression tests for problems found by `make faults`. The harness itself is tested in tests/tools/test_faults.py."""

import json
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import write_text

from headtohead.config import trial_settings
from headtohead.errors import RunFolderError, TrialError
from headtohead.execution.ray import artifacts
from headtohead.execution.worker_pool import Job
from headtohead.experiment import findings_view, loading
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import Run, lock_folder, lock_run_folder, open_experiment_runs
from headtohead.findings import compute
from headtohead.json_files import has_valid_json_checksum, read_json, verify_json_checksum, write_json
from headtohead.runner import run_experiment, run_search
from headtohead.runner.verification.verify import verify_experiment
from headtohead.saved_models import model_io
from headtohead.trials.trial import run_trial


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with one finished run of each variant, created without workers."""
    root = tmp_path_factory.mktemp("made")
    raw = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(write_text(root / "text"))},
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
        "training": {"budget": "20 steps", "batch_size": 8},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    experiment, folder = loading.build_experiment(raw, "made"), root / "runs"
    runs = run_experiment.create_folder_with_corpus(folder, experiment, command=[], resume=False)
    for name in experiment.names:
        run_trial(trial_settings.build_trial(experiment, name, 0), folder / name / "seed-0", device="cpu")
        Journal(folder).record_finished(name, 0, folder / name / "seed-0")
    compute.write_findings(runs)
    return folder


@pytest.fixture
def finished(made: Path, tmp_path: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(made, tmp_path / "runs"))


def flip(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new, 1))


@pytest.mark.timeout(600)  # to import torch takes a busy machine minutes
def test_a_worker_ends_with_its_parent_in_the_middle_of_a_trial(small: Any, tmp_path: Path):
    """The worker used to continue until its next message, so an immediate resume had two workers in one run folder."""
    trial = trial_settings.build_trial(
        small(training={"budget": f"{10**6} steps", "checkpoint_every": 10, "eval_every": 10**6}), "baseline", 0
    )
    folder = tmp_path / "runs" / "baseline" / "seed-0"
    folder.mkdir(parents=True)
    worker = subprocess.Popen(
        [sys.executable, "-m", "headtohead.execution.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    request = {
        "trial": trial.model_dump(mode="json"),
        "folder": str(folder),
        "device": "cpu",
        "teacher_batches": None,
        "request": 1,
    }
    worker.stdin.write(json.dumps(request) + "\n")
    worker.stdin.flush()
    deadline = time.monotonic() + 500
    while not list(folder.glob("checkpoint-*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    worker.stdin.close()  # as the death of the parent does; its other pipe stays open
    assert worker.wait(timeout=20) == 0
    worker.stdout.close()


def test_a_second_worker_in_a_run_folder_waits(tmp_path: Path):
    order = []

    def second() -> None:
        with lock_run_folder(tmp_path / "run"):
            order.append("second")

    with lock_run_folder(tmp_path / "run"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(timeout=10)
    assert order == ["first", "second"]


def test_a_folder_is_locked_under_every_path_to_it(tmp_path: Path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    with (
        lock_folder(tmp_path / "runs"),
        pytest.raises(RunFolderError, match="another process is running this experiment"),
        lock_folder(tmp_path / "link"),
    ):
        pass


def test_half_a_file_of_a_kill_does_not_keep_an_experiment_from_beginning(small: Any, tmp_path: Path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / ".experiment.json.77.part").write_text("{")
    run_experiment.create_folder_with_corpus(tmp_path / "runs", small(), command=[], resume=True)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "corpus.json",
        "experiment.json",
        "journal.jsonl",
    ]


def test_what_a_kill_left_of_a_finished_run_is_swept_away(finished: Path):
    (finished / "alibi" / "seed-0" / "checkpoint-000020").mkdir()
    runs = open_experiment_runs(finished)
    jobs = run_experiment._build_jobs(runs, runs.experiment, runs.experiment.names, range(1), {})
    assert {job.state for job in jobs} == {"kept"}
    assert not list(finished.rglob("checkpoint-*"))


def test_a_verdict_is_not_made_from_damaged_files(finished: Path):
    path = finished / "baseline" / "seed-0" / "scores.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(RunFolderError, match=r"baseline/seed-0/scores\.safetensors is corrupted"):
        compute.write_findings(open_experiment_runs(finished))


def test_a_result_vouches_for_itself(finished: Path):
    path = finished / "baseline" / "seed-0" / "result.json"
    flip(path, b'"trial_seconds": ', b'"trial_seconds": 1')
    assert not Run(path.parent).has_valid_checksum
    with pytest.raises(RunFolderError, match=r"result\.json is corrupted"):
        compute.write_findings(open_experiment_runs(finished))
    assert "baseline/seed-0/result.json" in {
        check.location for check in verify_experiment(finished) if not check.passed
    }


def test_a_result_that_cannot_be_read_is_reported_with_all_others(finished: Path):
    (finished / "baseline" / "seed-0" / "result.json").write_text("{")
    (finished / "alibi" / "seed-0" / "metrics.jsonl").write_text("")
    failed = {check.location for check in verify_experiment(finished) if not check.passed}
    assert {"baseline/seed-0/result.json", "alibi/seed-0/metrics.jsonl"} <= failed


@pytest.mark.parametrize("name", ["corpus.json", "experiment.json", "findings.json"])
def test_files_of_the_experiment_vouch_for_themselves(finished: Path, name: str):
    assert all(check.passed for check in verify_experiment(finished))
    flip(finished / name, b'"schema_version": 2', b'"schema_version": 2, "more": 0')
    assert name in {check.location for check in verify_experiment(finished) if not check.passed}


def test_a_report_is_not_made_from_damaged_findings(finished: Path):
    flip(finished / "findings.json", b'"verdicts": [', b'"verdicts": [ ')
    findings_view.read_findings(finished)  # another blank says nothing else
    flip(finished / "findings.json", b'"metric": "perplexity"', b'"metric": "accuracy"')
    with pytest.raises(RunFolderError, match=r"findings\.json is corrupted: checksum mismatch; .* recomputes it"):
        findings_view.read_findings(finished)


def test_damaged_weights_are_not_loaded(finished: Path):
    path = finished / "baseline" / "seed-0" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 4
    path.write_bytes(bytes(content))
    with pytest.raises(RunFolderError, match=r"model\.safetensors is corrupted"):
        model_io.load_saved_model(path.parent)


def test_a_checksum_covers_the_content_and_not_the_formatting(tmp_path: Path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1.5, "b": ["x"]}, with_checksum=True)
    content = read_json(path)
    assert has_valid_json_checksum(content)
    path.write_text(json.dumps(dict(reversed(content.items()))))
    verify_json_checksum(path, "do something")
    path.write_text(json.dumps({**content, "a": 1.25}))
    with pytest.raises(RunFolderError, match=r"checksum mismatch; do something"):
        verify_json_checksum(path, "do something")


def test_a_seal_whose_name_is_damaged_is_no_seal(tmp_path: Path):
    path = tmp_path / "file.json"
    write_json(path, {"a": 1.5}, with_checksum=True)
    flip(path, b'"checksum"', b'"chacksum"')
    with pytest.raises(RunFolderError, match="checksum mismatch"):
        verify_json_checksum(path, "do something")
    assert has_valid_json_checksum({})
    assert has_valid_json_checksum({"sha256": "0" * 64})


def test_an_archive_never_holds_half_a_checkpoint_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A checkpoint was replaced by the next one while the folder was being archived."""
    run, home = tmp_path / "run", tmp_path / "home"
    for folder in (run / "checkpoint-000010", home):
        folder.mkdir(parents=True)
    for name in ("model", "state"):
        (run / "checkpoint-000010" / name).write_text("10")
    plain = artifacts._add_run_folder

    def meanwhile(tar: Any, folder: Path) -> None:
        old = folder / "checkpoint-000010"
        if old.is_dir():
            (old / "state").unlink()  # the training has begun to remove it
            plain(tar, folder)
            (old / "model").unlink()
            old.rmdir()
            (folder / "checkpoint-000020").mkdir()
            for name in ("model", "state"):
                (folder / "checkpoint-000020" / name).write_text("20")
        else:
            plain(tar, folder)

    monkeypatch.setattr(artifacts, "_add_run_folder", meanwhile)
    artifacts.unpack_run_folder(artifacts.pack_run_folder(run), home)
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*")) == [
        "checkpoint-000020",
        "checkpoint-000020/model",
        "checkpoint-000020/state",
    ]


def test_what_has_travelled_is_fetched_again_when_it_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = tmp_path / "home" / "text"
    (source / "__pycache__").mkdir(parents=True)
    (source / "train.txt").write_text("the people\n")
    (source / "__pycache__" / "x.pyc").write_text("")
    parcel = artifacts.Artifact(
        artifacts.compute_artifact_digest(source), source.name, artifacts.pack_file_or_folder(source)
    )
    fetched: list[str] = []

    def fetch(box: bytes) -> bytes:
        fetched.append("once more")
        return box

    for damage in (None, None, "the peeple\n"):
        monkeypatch.setattr(artifacts, "_verified_paths", set())  # a new process
        if damage:
            (place / "train.txt").write_text(damage)
        place = artifacts.unpack_cached(parcel, tmp_path / "there", fetch)
        assert (place / "train.txt").read_text() == "the people\n"
    assert len(fetched) == 2


def test_best_weights_of_earlier_steps_do_not_stay_at_home(tmp_path: Path):
    existing, local = tmp_path / "there", tmp_path / "here"
    for folder, step in ((existing, 40), (local, 20)):
        folder.mkdir()
        (folder / f"best-{step:06d}.safetensors").write_text(str(step))
    artifacts.unpack_run_folder(artifacts.pack_run_folder(existing), local)
    assert [path.name for path in local.iterdir()] == ["best-000040.safetensors"]


def test_files_that_come_home_are_sealed_again(finished: Path):
    run = finished / "baseline" / "seed-0"
    source = read_json(run / "trial.json")["trial"]["data"]["source"]
    artifacts.restore_original_paths(run, {source: "/at/home"})
    assert read_json(run / "trial.json")["trial"]["data"]["source"] == "/at/home"
    assert has_valid_json_checksum(read_json(run / "trial.json"))
    assert Run(run).has_valid_checksum
    assert Run(run).find_damaged_files() == []


def test_a_search_ends_where_a_trial_cannot_even_say_why_it_failed(small: Any, tmp_path: Path):
    """Without a failure.json the point remained open and was retried forever."""
    request = small(seeds=1, search={"space": {"training.optimizer.lr": [1e-3, 1e-2]}, "seeds": 1})
    search = run_search.SearchRun(request, tmp_path)
    (job,) = search.take_next_jobs(1)
    assert isinstance(job, Job)
    job.state, job.message = "failed", "/runs/x: Read-only file system"
    with pytest.raises(TrialError, match="Read-only file system"):
        search.take_next_jobs(1)
