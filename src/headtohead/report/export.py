"""A report on disk: the page, the tables and the charts, in the formats that were asked for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from headtohead.atomic_io import disk_full_in_words, write_bytes, write_text
from headtohead.errors import RequestError, nearest
from headtohead.experiment import schemas
from headtohead.presentation.chart import Chart
from headtohead.presentation.exports import csv_text, latex, markdown_report
from headtohead.report import charts, findings_view, page, tables
from headtohead.report.findings_view import Findings

Format = Literal["html", "md", "csv", "latex", "svg", "pdf", "png"]
FORMATS: tuple[str, ...] = get_args(Format)
SUFFIXES = {"html": ".html", "md": ".md"}


def write(folder: Path, formats: Sequence[str] = ("html",), out: Path | None = None) -> list[Path]:
    """Write the report of an experiment's folder, and say which files were written.

    The page and the Markdown are report.html and report.md; each table is report-tables/NAME.csv or .tex, each chart
    report-charts/NAME.svg, .pdf or .png. `out` is another folder for them, or a file for one of those two alone.
    """
    check(formats)
    with schemas.agreeing(folder / "findings.json"):
        return _write(findings_view.read(folder), folder, formats, out or folder)


def _write(findings: Findings, folder: Path, formats: Sequence[str], target: Path) -> list[Path]:
    written: list[Path] = []
    for one in dict.fromkeys(formats):
        if one in SUFFIXES:
            alone = target.suffix == SUFFIXES[one] and len(set(formats)) == 1
            path = target if alone else target / f"report{SUFFIXES[one]}"
            with disk_full_in_words(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, _text(one, findings, folder))
            written.append(path)
        elif one in ("csv", "latex"):
            written += _write_tables(one, findings, target / "report-tables")
        else:
            written += _write_charts(one, findings, target / "report-charts")
    return written


def check(formats: Sequence[str]) -> None:
    """Every format that does not exist, at once."""
    unknown = [one for one in formats if one not in FORMATS]
    if unknown or not formats:
        given = ", ".join(map(repr, unknown)) or "none"
        near = nearest(unknown[0], FORMATS) if unknown else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise RequestError(f"format: {given} given{hint}; allowed: {', '.join(FORMATS)}")


def _text(one: str, findings: Findings, folder: Path) -> str:
    if one == "html":
        return page.render(findings, None, folder)
    return markdown_report(findings, tables.tables(findings))


def _write_tables(one: str, findings: Findings, folder: Path) -> list[Path]:
    say, suffix = (csv_text, ".csv") if one == "csv" else (latex, ".tex")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables.tables(findings, long=one == "csv"):
        path = folder / f"{_file_name(table.name)}{suffix}"
        write_text(path, say(table))
        written.append(path)
    return written


def _write_charts(one: str, findings: Findings, folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts.charts(findings):
        path = folder / f"{_file_name(chart.name)}.{one}"
        write_bytes(path, _drawn(chart, one))
        written.append(path)
    return written


def _drawn(chart: Chart, one: str) -> bytes:
    if one == "svg":
        return chart.svg(background="white").encode()
    return chart.pdf() if one == "pdf" else chart.png()


def _file_name(name: str) -> str:
    """A name that every file system takes: a confusion table is called after its variant."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "table"
