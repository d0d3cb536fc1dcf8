"""Untrusted text is printed with control characters escaped, and output works in any terminal encoding."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.text import Text

from headtohead.cli.app import print_note_to_stderr
from headtohead.cli.generate import print_continuation_stream
from headtohead.nn.parts import registry
from headtohead.presentation.renderers import terminal
from headtohead.presentation.table import make_table, make_text_columns
from headtohead.progress import ProgressUpdate, StderrProgress

from .test_bad_input import h2h, write_experiment  # noqa: F401

ESCAPE = "\x1b]0;owned\x07\x1b[2J\x9b31m\r\x7f\u202e"


def assert_safe(output: str) -> None:
    assert "owned" in output
    unsafe = [character for character in output if character in "\x1b\x07\x9b\r\x7f\u202e"]
    assert not unsafe, repr(output)


def test_errors_are_escaped(h2h, tmp_path: Path) -> None:  # noqa: F811
    for arguments in (["score", f"no{ESCAPE}", "text"], ["run", f"no{ESCAPE}.toml"], ["verify", f"no{ESCAPE}"]):
        _, out, err = h2h(*arguments)
        assert_safe(out + err)


def test_a_plan_is_escaped(h2h, write_experiment) -> None:  # noqa: F811
    file = write_experiment()
    content = file.read_text().replace("alibi]", f"{json.dumps('x' + ESCAPE)}]")
    file.write_text(content.replace('question = "', f'question = "{json.dumps(ESCAPE)[1:-1]}'))
    _, out, err = h2h("plan", file)
    assert_safe(out + err)


def test_judge_escapes_names_in_a_table_of_scores(h2h, tmp_path: Path) -> None:  # noqa: F811
    rows = [
        f"{name},{seed},{score + seed / 10}" for name, score in (("base", 1), (f"x{ESCAPE}", 2)) for seed in range(4)
    ]
    (tmp_path / "scores.csv").write_bytes("\n".join(["variant,seed,loss", *rows]).replace("\r", "").encode())
    _, out, err = h2h("judge", "scores.csv", "--baseline", "base", "--metric", "loss", "--equivalence-margin", "0.1")
    assert_safe(out + err)


def test_streams_notes_tables_and_status_lines_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = SimpleNamespace(prompt=0, sample=0, text=f"text{ESCAPE}", finish_reason="length")
    for is_terminal in ("0", "1"):
        if is_terminal == "1":
            monkeypatch.setenv("FORCE_COLOR", "1")
            monkeypatch.setenv("TERM", "dumb")
        print_continuation_stream([chunk], [f"prompt{ESCAPE}"], 1)
        print_note_to_stderr(f"note{ESCAPE}")
        columns = make_text_columns("a", f"b{ESCAPE}")
        terminal.print_table(make_table("t", f"title{ESCAPE}", f"caption{ESCAPE}", columns, [(f"c{ESCAPE}", "d")]))
        terminal.get_stdout_console().print(Text(f"plain{ESCAPE}"))
        captured = capsys.readouterr()
        for output in (captured.out, captured.err):
            for style in ("\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[33m"):  # colors that rich adds itself
                output = output.replace(style, "")
            assert_safe(output)


def test_progress_lines_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StderrProgress, "SILENT_SECONDS", -1)
    monkeypatch.setattr(StderrProgress, "LOG_INTERVAL_SECONDS", -1)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    StderrProgress()(ProgressUpdate(f"reading {ESCAPE}", 1, 2))
    assert_safe(stream.getvalue())


def run_h2h(*arguments: str | bytes, **environment: str) -> tuple[int, bytes]:
    command = [sys.executable, "-m", "headtohead.cli", *arguments]
    result = subprocess.run(command, capture_output=True, check=False, env={**os.environ, **environment}, timeout=300)
    return result.returncode, result.stdout + result.stderr


def test_a_terminal_that_knows_only_ascii_gets_escapes(tmp_path: Path) -> None:
    rows = [f"{name},{seed},{seed + 1}" for name in ("base", "Łódź") for seed in range(4)]
    (tmp_path / "scores.csv").write_text("\n".join(["variant,seed,loss", *rows]), encoding="utf-8")
    arguments = ("judge", str(tmp_path / "scores.csv"), "--metric", "loss", "--equivalence-margin", "0.1")
    code, output = run_h2h(*arguments, PYTHONIOENCODING="ascii:strict")
    assert b"Traceback" not in output and b"\\u0141\\xf3d" in output
    assert code == 0


def test_a_folder_name_that_is_not_utf8_is_shown_escaped(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    Path(os.fsdecode(folder)).mkdir()
    code, output = run_h2h("verify", folder)
    assert code in (1, 2)
    assert b"Traceback" not in output and b"\\udcff\\udcfe" in output


def test_parts_are_listed_by_slot_in_80_columns(h2h, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = h2h("parts")
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.strip() for line in lines if line.strip() in registry.SLOTS] == list(registry.SLOTS)
    assert "options: base = 10000.0" in out
    listed = {line.split()[0] for line in lines if line.strip()}
    assert {part_class.kind for part_class in registry.list_part_classes()} <= listed
