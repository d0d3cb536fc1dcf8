"""Check that the safeguards of these tests detect every forbidden effect."""

import subprocess
import sys
from pathlib import Path

import pytest
from tools.fuzz_targets import FUZZ_TARGETS, FuzzTarget, SandboxViolationError, run_target

from headtohead.errors import DataError


def through(what):
    """Return a function that causes this effect."""
    FUZZ_TARGETS["tried"] = FuzzTarget("tried", lambda data, scratch: what(scratch), lambda scratch: [])


@pytest.fixture(autouse=True)
def _gone_afterwards():
    yield
    FUZZ_TARGETS.pop("tried", None)


def test_reading_outside_is_detected(scratch):
    through(lambda scratch: Path("/etc/hostname").read_text())
    with pytest.raises(SandboxViolationError, match="read outside: /etc/hostname"):
        run_target("tried", b"", scratch)


def test_writing_outside_is_prevented(scratch, tmp_path):
    through(lambda scratch: (tmp_path / "made").write_text("x"))
    with pytest.raises(SandboxViolationError, match="written outside"):
        run_target("tried", b"", scratch)
    assert not (tmp_path / "made").exists()


def test_a_way_out_through_a_link_is_detected(scratch, tmp_path):
    (tmp_path / "there").write_text("x")
    (scratch / "link").unlink(missing_ok=True)
    (scratch / "link").symlink_to(tmp_path / "there")
    through(lambda scratch: (scratch / "link").read_text())
    with pytest.raises(SandboxViolationError, match="read outside"):
        run_target("tried", b"", scratch)


def test_starting_a_process_is_prevented(scratch):
    through(lambda scratch: subprocess.run([sys.executable, "-c", ""], check=True))
    with pytest.raises(SandboxViolationError, match="Popen"):
        run_target("tried", b"", scratch)


def test_running_code_of_the_input_is_prevented(scratch):
    through(lambda scratch: exec(compile("1", str(scratch / "own.py"), "exec")))
    with pytest.raises(SandboxViolationError, match="code of the input was run"):
        run_target("tried", b"", scratch)


def test_an_error_without_words_and_one_without_end_are_detected(scratch):
    def silent(scratch):
        raise DataError("")

    def odd(scratch):
        raise KeyError("x")

    through(silent)
    with pytest.raises(AssertionError, match="has no message"):
        run_target("tried", b"", scratch)
    through(odd)
    with pytest.raises(KeyError, match="x"):
        run_target("tried", b"", scratch)


def test_what_an_error_says_has_an_end_and_can_be_shown():
    text = str(DataError("\ud800" + "x" * 10**6))
    assert len(text) < 20_000
    assert text.encode().startswith(b"\\ud800")
