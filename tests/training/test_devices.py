"""Selecting devices, child processes that crash or hang, and the bfloat16 probe."""

from __future__ import annotations

import time

import pytest
import torch

from headtohead.errors import DeviceError, RequestError
from headtohead.training import devices
from headtohead.training.devices import Bfloat16Support

GOOD = 'import json; print(json.dumps({"error": 0.001, "slowdown": 2.0}))'
CRASHES_WITHOUT_WORKAROUND = f"""
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
    os.kill(os.getpid(), signal.SIGILL)
{GOOD}
"""
CRASHES = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def no_workaround(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in devices.BFLOAT16_WORKAROUND_ENV:
        monkeypatch.delenv(name, raising=False)


def test_cpu_is_always_available() -> None:
    assert devices.select_device("cpu") == torch.device("cpu")


def test_auto_selects_the_first_available_kind() -> None:
    available = []
    for kind in ("cuda", "mps", "cpu"):
        try:
            available.append(devices.select_device(kind))
        except DeviceError:
            continue
    assert devices.select_device("auto") == available[0]


@pytest.mark.parametrize(
    ("kind", "is_available"),
    [("cuda", torch.cuda.is_available()), ("mps", torch.backends.mps.is_available())],
)
def test_an_unavailable_device_is_refused_with_a_reason_and_alternatives(kind: str, is_available: bool) -> None:
    if is_available:
        pytest.skip(f"this machine has {kind}")
    with pytest.raises(DeviceError, match=rf"'{kind}' is not available: .+; use --device auto or --device cpu"):
        devices.select_device(kind)


@pytest.mark.parametrize(("name", "suggestion"), [("gpu", "cuda"), ("cud", "cuda"), ("metal", "mps"), ("Auto", "auto")])
def test_an_unknown_device_suggests_the_closest_and_lists_all(name: str, suggestion: str) -> None:
    with pytest.raises(DeviceError, match=f"'{name}'; did you mean '{suggestion}'.*auto, cpu, cuda, mps"):
        devices.select_device(name)


def test_an_unknown_device_without_a_close_match_gets_no_suggestion() -> None:
    with pytest.raises(DeviceError, match=r"unknown device 'xyzzy' \(allowed"):
        devices.select_device("xyzzy")


def test_a_missing_device_has_the_exit_code_of_a_wrong_request() -> None:
    assert DeviceError.exit_code == 2


def test_set_num_threads_returns_the_previous_number() -> None:
    before = torch.get_num_threads()
    try:
        assert devices.set_num_threads(2) == before
        assert torch.get_num_threads() == 2
    finally:
        assert devices.set_num_threads(before) == 2


@pytest.mark.parametrize("n", [0, -1])
def test_less_than_one_thread_is_refused(n: int) -> None:
    with pytest.raises(RequestError, match=f"threads must be 1 or more, got {n}"):
        devices.set_num_threads(n)


def test_a_child_process_returns_its_last_line_as_json() -> None:
    result = devices.run_in_child_process(
        "print('noise'); import sys, json; print(json.dumps({'a': sys.argv[1]}))", "x", timeout_seconds=20
    )
    assert result.output == {"a": "x"}


def test_a_killed_child_process_is_reported() -> None:
    result = devices.run_in_child_process(CRASHES, timeout_seconds=20)
    assert result.output is None
    assert result.exit_description == "was killed: Illegal instruction"


def test_a_hanging_child_process_times_out() -> None:
    start = time.monotonic()
    result = devices.run_in_child_process("import time; time.sleep(60)", timeout_seconds=0.5)
    assert time.monotonic() - start < 20
    assert (result.output, result.exit_description) == (None, "timed out after 0.5 s")


def test_a_failing_child_process_reports_its_last_error_line() -> None:
    result = devices.run_in_child_process("raise ValueError('broken')", timeout_seconds=20)
    assert (result.output, result.exit_description) == (None, "failed: ValueError: broken")


def test_bfloat16_probe_runs_on_this_machine() -> None:
    support = devices.probe_bfloat16()
    # Any status is possible, but none because of an error in the probe code.
    assert not support.exit_description.startswith("failed")
    assert (support.status == "works") == devices.is_bfloat16_usable()
    assert (support.status == "no") == (support.slowdown is None)


def test_a_crash_that_the_workaround_prevents_names_the_workaround(no_workaround: None) -> None:
    support = devices.probe_bfloat16(probe_code=CRASHES_WITHOUT_WORKAROUND, timeout_seconds=20)
    workaround = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    assert support == Bfloat16Support("works with workaround", "was killed: Illegal instruction", workaround, 2.0)


def test_bfloat16_works_if_the_workaround_is_already_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in devices.BFLOAT16_WORKAROUND_ENV.items():
        monkeypatch.setenv(name, value)
    assert devices.probe_bfloat16(probe_code=CRASHES_WITHOUT_WORKAROUND, timeout_seconds=20).status == "works"


def test_a_crash_that_nothing_prevents_means_no_support(no_workaround: None) -> None:
    assert devices.probe_bfloat16(probe_code=CRASHES, timeout_seconds=20).status == "no"


@pytest.mark.parametrize("error", ["0.5", "float('nan')"])
def test_an_inaccurate_result_means_no_support(error: str) -> None:
    code = f"import json; print(json.dumps({{'error': {error}, 'slowdown': 1.0}}))"
    support = devices.probe_bfloat16(probe_code=code, timeout_seconds=20)
    assert support.status == "no"
    assert support.exit_description.startswith("was inaccurate")
