"""docs/judging.md: its examples run, and its layout of a file is one that is read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

GUIDE = (Path(__file__).parents[2] / "docs" / "judging.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.csv").write_text(blocks("csv")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    examples = blocks("python")
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, "docs/judging.md", "exec"), {})
    assert "alibi helped: perplexity 7.7 % lower" in capsys.readouterr().out
