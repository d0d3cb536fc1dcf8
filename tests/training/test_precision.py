"""The bfloat16 probe detects crashes, the workaround that prevents them, and inaccurate results."""

from __future__ import annotations

import pytest

from headtohead.training.hardware import precision
from headtohead.training.hardware.precision import Bfloat16Support

SUCCEEDING_CODE = 'import json; print(json.dumps({"error": 0.001, "slowdown": 2.0}))'
CRASHING_CODE_WITHOUT_WORKAROUND = f"""
import os, signal
if os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX512_CORE_BF16":
    os.kill(os.getpid(), signal.SIGILL)
{SUCCEEDING_CODE}
"""
CRASHING_CODE = "import os, signal; os.kill(os.getpid(), signal.SIGILL)"


@pytest.fixture
def no_workaround(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in precision.BFLOAT16_WORKAROUND_ENV:
        monkeypatch.delenv(name, raising=False)


def test_bfloat16_probe_runs_on_this_machine() -> None:
    support = precision.probe_bfloat16()
    # Any status is possible, but none because of an error in the probe code.
    assert not support.exit_description.startswith("failed")
    assert (support.status == "works") == precision.is_bfloat16_usable()
    assert (support.status == "no") == (support.slowdown is None)


def test_a_crash_that_the_workaround_prevents_names_the_workaround(no_workaround: None) -> None:
    support = precision.probe_bfloat16(probe_code=CRASHING_CODE_WITHOUT_WORKAROUND, timeout_seconds=20)
    workaround = "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"
    assert support == Bfloat16Support("works with workaround", "was killed: Illegal instruction", workaround, 2.0)


def test_bfloat16_works_if_the_workaround_is_already_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in precision.BFLOAT16_WORKAROUND_ENV.items():
        monkeypatch.setenv(name, value)
    assert precision.probe_bfloat16(probe_code=CRASHING_CODE_WITHOUT_WORKAROUND, timeout_seconds=20).status == "works"


def test_a_crash_that_nothing_prevents_means_no_support(no_workaround: None) -> None:
    assert precision.probe_bfloat16(probe_code=CRASHING_CODE, timeout_seconds=20).status == "no"


@pytest.mark.parametrize("error", ["0.5", "float('nan')"])
def test_an_inaccurate_result_means_no_support(error: str) -> None:
    code = f"import json; print(json.dumps({{'error': {error}, 'slowdown': 1.0}}))"
    support = precision.probe_bfloat16(probe_code=code, timeout_seconds=20)
    assert support.status == "no"
    assert support.exit_description.startswith("was inaccurate")
