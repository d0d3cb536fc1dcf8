"""File systems without locks, locks held by another process, and workers that stop reporting are detected."""

from __future__ import annotations

import errno
import fcntl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import write_text

from headtohead.cache_folders import lock_cache_folder
from headtohead.config import trial_settings
from headtohead.config.tables.data import DataConfig
from headtohead.data.token_cache import load_tokenized_corpus
from headtohead.errors import RunFolderError
from headtohead.execution import worker_pool
from headtohead.execution.progress_display import TrialProgressDisplay
from headtohead.execution.worker_pool import Job, WorkerPool, run_jobs
from headtohead.experiment.run_folder import lock_folder


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)


@pytest.mark.usefixtures("no_locks")
def test_a_file_system_without_locks_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"has no file locks \(No locks available\)"), lock_folder(tmp_path / "a"):
        pass
    with pytest.raises(OSError, match=r"has no file locks .* set XDG_CACHE_HOME") as error, lock_cache_folder(tmp_path):
        pass
    assert error.value.filename == str(tmp_path)


@pytest.mark.parametrize("obstacle", ["no locks", "file", "file in the way"])
def test_a_cache_that_cannot_be_used_leaves_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, obstacle: str
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "headtohead").write_text("")
    folder = {"no locks": "free", "file": "file/below", "file in the way": "cache"}[obstacle]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / folder))
    if obstacle == "no locks":
        request.getfixturevalue("no_locks")
    corpus = load_tokenized_corpus(DataConfig(source=str(write_text(tmp_path / "text"))), has_labels=False)
    assert len(corpus.encoded["train"].token_ids)


def test_waiting_for_a_lock_is_reported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom headtohead.cache_folders import lock_cache_folder\n"
        "with lock_cache_folder(Path(sys.argv[1])):\n    pass\n"
    )
    with lock_cache_folder(tmp_path):
        waiting_process = subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        time.sleep(2)
        assert waiting_process.poll() is None
    _, stderr = waiting_process.communicate(timeout=60)
    assert f"holds the lock {tmp_path}/.lock" in stderr


class SilentWorker:
    """A worker whose trial never ends."""

    def __init__(self, queue: Any, environment: dict[str, str], log_path: Path) -> None:
        self.job: Job | None = None
        self.is_ready, self.exit_reason = True, ""

    def start_job(self, job: Job, device: str) -> None:
        self.job = job
        job.start()

    def end(self) -> None: ...
    def close(self) -> None: ...


def test_a_trial_that_hangs_is_reported_and_ended(small: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = small()
    monkeypatch.setattr(worker_pool, "MAX_SILENT_SECONDS", 1.5, raising=False)
    monkeypatch.setattr("headtohead.execution.progress_display.SILENT_SECONDS", 0.4, raising=False)
    jobs = [Job(trial_settings.build_trial(experiment, "baseline", seed), tmp_path / str(seed)) for seed in (0, 1)]
    display, lines, start_time = TrialProgressDisplay(experiment), [], time.monotonic()

    def collect_progress_lines(jobs: Any) -> None:
        lines.extend(display.format_progress(jobs)[1:])
        if time.monotonic() - start_time > 20:
            raise TimeoutError(f"still waiting after 20 s; the display says: {display.format_progress(jobs)}")

    run_jobs(
        jobs,
        pool=WorkerPool(1, SilentWorker),
        log_path=tmp_path / "log",
        on_update=collect_progress_lines,
        environment={},
    )
    assert [job.state for job in jobs] == ["lost", "lost"]
    assert any(line.startswith("baseline/0: no progress for") for line in lines)
    assert any(line.startswith("baseline/1: no progress for") for line in lines)
    assert "reported no progress for 1.5 s and was ended" in jobs[0].message
