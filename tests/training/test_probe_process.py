"""Code that crashes, hangs or fails in a child process is reported, and does not stop this one."""

from __future__ import annotations

import time

from headtohead.training.hardware.probe_process import run_probe_code

CRASHING_CODE = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


def test_a_child_process_returns_its_last_line_as_json() -> None:
    result = run_probe_code(
        "print('noise'); import sys, json; print(json.dumps({'a': sys.argv[1]}))", "x", timeout_seconds=20
    )
    assert result.output == {"a": "x"}


def test_a_killed_child_process_is_reported() -> None:
    result = run_probe_code(CRASHING_CODE, timeout_seconds=20)
    assert result.output is None
    assert result.exit_description == "was killed: Illegal instruction"


def test_a_hanging_child_process_times_out() -> None:
    start = time.monotonic()
    result = run_probe_code("import time; time.sleep(60)", timeout_seconds=0.5)
    assert time.monotonic() - start < 20
    assert (result.output, result.exit_description) == (None, "timed out after 0.5 s")


def test_a_failing_child_process_reports_its_last_error_line() -> None:
    result = run_probe_code("raise ValueError('broken')", timeout_seconds=20)
    assert (result.output, result.exit_description) == (None, "failed: ValueError: broken")
