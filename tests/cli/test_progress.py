"""Progress output of long operations: a live table in a terminal, occasional lines in a log."""

import functools
import os
import pty
import re
import subprocess
import sys
import termios
import time
from types import SimpleNamespace

import pytest

from headtohead.execution.progress_display import estimate_time_left, format_training_speed
from headtohead.execution.worker_pool import Job
from headtohead.model_cost import ModelCost
from headtohead.progress import ProgressReporter, ProgressUpdate, StderrProgress

from .test_bad_input import h2h, write_experiment  # noqa: F401
from .test_search import SEARCH

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLUMNS = 80


def in_a_terminal(*arguments: object, cwd: object) -> str:
    """Return everything that the command writes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, COLUMNS))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headtohead.cli", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**plain, "TERM": "xterm"},
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        text += more
    os.close(ours)
    assert process.wait() == 0, text.decode()
    return text.decode()


def test_a_terminal_shows_a_table_that_grows(write_experiment, tmp_path):  # noqa: F811
    request = (
        "--out",
        "here",
        "--workers",
        "1",
        "--set",
        "training.budget=600 steps",
        "--set",
        "training.eval_every=300",
    )
    output = in_a_terminal("run", os.path.relpath(write_experiment(), tmp_path), *request, cwd=tmp_path)
    assert re.search(r"baseline +\d+ % \d+\.\d\d", CONTROL.sub("", output)), "how far a trial is, and its loss"
    assert re.search(r"1 of 2 trials done · \d+(\.\d)? steps/s", output)
    lines = [CONTROL.sub("", line) for line in re.split(r"[\r\n]+", output)]
    assert max(map(len, lines)) <= COLUMNS
    remaining = output[output.rindex("\x1b[2K") :]  # what stays when the table has gone
    assert "trials done" not in remaining and "report:" in remaining


def test_a_log_has_a_line_now_and_then(h2h, write_experiment, monkeypatch):  # noqa: F811
    monkeypatch.setattr(StderrProgress, "LOG_INTERVAL_SECONDS", 0.0)
    file = write_experiment()
    code, _, err = h2h("run", file, "--out", "here", "--workers", "1")
    assert code == 0
    assert re.search(r"^1 of 2 trials done · (starting|\d+(\.\d)? steps/s) · about .* left$", err, re.MULTILINE)
    assert "0.0 steps/s" not in err and "measuring" not in err
    assert "\x1b" not in err
    file.write_text(file.read_text() + SEARCH)
    code, _, err = h2h("run", file, "--quick", "--out", "there", "--workers", "1", "--set", "probe.prompts=[]")
    assert code == 0
    assert re.search(
        r"^search: 2 of 4 trials done in this run · at most .* left · best so far: point-", err, re.MULTILINE
    )
    assert re.search(r"^\d of \d trials done", err, re.MULTILINE), "and then the comparison"


def test_what_is_over_soon_is_not_mentioned(h2h, write_experiment):  # noqa: F811
    code, _, err = h2h("run", write_experiment(), "--out", "here", "--workers", "1")
    assert (code, err) == (0, "")


def test_work_of_unknown_size_is_reported_without_figures(monkeypatch, capsys):
    monkeypatch.setattr(StderrProgress, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(StderrProgress, "LOG_INTERVAL_SECONDS", 0.0)
    line = StderrProgress()
    line(ProgressUpdate("measuring", 0, 0))
    line(ProgressUpdate("writing", 90, 100, 605.4))
    assert capsys.readouterr().err == "measuring\nwriting: 90 of 100, about 10 min 05 s left\n"


def make_job(tmp_path, state: str, seconds_left: float | None = None, elapsed: float = 0.0, flops: int = 1) -> Job:
    """Return a job that started `elapsed` seconds ago and has just reported."""
    now = time.monotonic()
    cost = ModelCost(parameters=1, flops_per_token=flops, weights_bytes=4, training_bytes=4)
    job = Job(None, tmp_path, state, model_cost=cost, seconds_left=seconds_left)
    job.start_time, job.report_time, job.end_time = now - elapsed, now, now
    return job


def test_the_time_left_adds_what_runs_and_what_waits(tmp_path):
    job = functools.partial(make_job, tmp_path)
    assert estimate_time_left([job("running"), job("waiting")]) is None, "no worker has reported"
    two = [job("running", 5.0, 5.0), job("running", 5.0, 5.0), job("waiting"), job("waiting")]
    assert estimate_time_left(two) == pytest.approx((5 + 5 + 10 + 10) / 2, abs=0.1)
    one_starts = [job("running", 5.0, 5.0), job("running"), job("waiting")]
    assert estimate_time_left(one_starts) == pytest.approx((5 + 10 + 10) / 2, abs=0.1)
    last = [job("finished", elapsed=10.0), job("running", 30.0, 1.0)]
    assert estimate_time_left(last) == pytest.approx(30, abs=0.1)


def test_larger_models_that_wait_count_for_more(tmp_path):
    job = functools.partial(make_job, tmp_path)
    jobs = [job("finished", elapsed=10.0, flops=100), job("running", 5.0, 5.0, flops=100), job("waiting", flops=400)]
    assert estimate_time_left(jobs) == pytest.approx(5 + 40, abs=0.1)


def test_the_time_left_leaves_out_what_precedes_the_first_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Model loading takes 60 s, and each of ten units 2 s."""
    times = iter([0.0, 62.0, 64.0, 66.0, 68.0])
    monkeypatch.setattr("headtohead.progress.time", SimpleNamespace(monotonic=lambda: next(times)))
    updates: list[ProgressUpdate] = []
    reporter = ProgressReporter("generating", 10, updates.append)
    for _ in range(4):
        reporter.step()
    assert [update.seconds_left for update in updates] == [None, 62 * 9, 32 * 8, 2 * 7, 2 * 6]


@pytest.mark.parametrize(
    ("steps_per_second", "text"),
    [(0.0, "starting"), (0.04, "25 s per step"), (0.6, "0.6 steps/s"), (13.2, "13 steps/s")],
)
def test_slow_trials_show_seconds_per_step(steps_per_second: float, text: str) -> None:
    assert format_training_speed(steps_per_second) == text
