"""The examples of docs/judging.md run, and the documented file layout is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headtohead.verdict.external_scores.judge_csv import judge_csv

GUIDE = (Path(__file__).parents[2] / "docs" / "judging.md").read_text(encoding="utf-8")


def extract_code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def test_every_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.csv").write_text(extract_code_blocks("csv")[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    examples = extract_code_blocks("python")
    assert len(examples) == 3
    for example in examples:
        exec(compile(example, "docs/judging.md", "exec"), {})
    assert "alibi helped: perplexity 7.7 % lower" in capsys.readouterr().out


def test_the_quoted_verdicts_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "scores.csv"
    quotes = [" ".join(quote.replace("\n> ", "\n").split()) for quote in re.findall(r"(?<=\n)> ((?:.+\n)+)", GUIDE)]
    assert len(quotes) == 2
    for quote, text in zip(
        quotes, (extract_code_blocks("csv")[0], extract_code_blocks("csv")[0].replace("160.1", "181.9")), strict=True
    ):
        path.write_text(text, encoding="utf-8")
        assert judge_csv(path)[0].summary == quote
