"""The examples of docs/how-to/report.md run unchanged."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headtohead.presentation.output_files import OUTPUT_FORMATS
from headtohead.report.sections import build_charts

from .make_findings import make_findings

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "report.md"
RawFindings = dict[str, Any]


def test_the_examples_run(
    raw_findings_without_curves: Callable[..., RawFindings],
    write_folder: Callable[[RawFindings], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "runs").mkdir()
    write_folder(raw_findings_without_curves({"v": -0.08})).rename(tmp_path / "runs" / "mine")
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    exec(example, {})
    assert (tmp_path / "runs" / "mine" / "report.html").is_file()


def test_every_format_and_chart_is_reported(raw_findings: Callable[..., RawFindings]) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert all(f"--format {report_format}" in text for report_format in OUTPUT_FORMATS)
    assert all(f"`{chart.name}`" in text for chart in build_charts(make_findings(raw_findings({"v": 0.1}))))
