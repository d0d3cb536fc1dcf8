"""The examples of docs/how-to/report.md run as they stand."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead.presentation.files import REPORT_FORMATS
from headtohead.report.sections import build_charts

from .typed import typed

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "report.md"
Findings = dict[str, Any]


def test_the_examples_run(
    plain: Callable[..., Findings],
    folder: Callable[[Findings], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "runs").mkdir()
    folder(plain({"v": -0.08})).rename(tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


def test_every_format_and_chart_is_named(findings: Callable[..., Findings]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"--format {one}" in text for one in REPORT_FORMATS)
    assert all(f"`{chart.name}`" in text for chart in build_charts(typed(findings({"v": 0.1}))))
