"""A report on disk: the page, the tables and the charts, in the formats that were asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headtohead.atomic_io import translate_disk_full_error, write_bytes, write_text
from headtohead.experiment import findings_view, schemas
from headtohead.experiment.findings_view import Findings
from headtohead.presentation.exports import render_csv, render_latex_table
from headtohead.presentation.files import DOCUMENT_SUFFIXES, _render_chart_image, _sanitize_file_name, check_formats
from headtohead.report import charts, page, tables
from headtohead.report.markdown import render_markdown_report


def write_report(
    experiment_folder: Path, formats: Sequence[str] = ("html",), output_path: Path | None = None
) -> list[Path]:
    """Write the report of an experiment's folder, and say which files were written.

    The page and the Markdown are report.html and report.md; each table is report-tables/NAME.csv or .tex, each chart
    report-charts/NAME.svg, .pdf or .png. `out` is another folder for them, or a file for one of those two alone.
    """
    check_formats(formats)
    with schemas.report_inconsistent_data(experiment_folder / "findings.json"):
        return _write_formats(
            findings_view.read_findings(experiment_folder), experiment_folder, formats, output_path or experiment_folder
        )


def _write_formats(
    findings: Findings, experiment_folder: Path, formats: Sequence[str], output_path: Path
) -> list[Path]:
    written: list[Path] = []
    for one in dict.fromkeys(formats):
        if one in DOCUMENT_SUFFIXES:
            alone = output_path.suffix == DOCUMENT_SUFFIXES[one] and len(set(formats)) == 1
            path = output_path if alone else output_path / f"report{DOCUMENT_SUFFIXES[one]}"
            with translate_disk_full_error(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, _render_document(one, findings, experiment_folder))
            written.append(path)
        elif one in ("csv", "latex"):
            written += _write_tables(one, findings, output_path / "report-tables")
        else:
            written += _write_charts(one, findings, output_path / "report-charts")
    return written


def _render_document(document_format: str, findings: Findings, experiment_folder: Path) -> str:
    if document_format == "html":
        return page.render_page(findings, None, experiment_folder)
    return render_markdown_report(findings, tables.build_tables(findings))


def _write_tables(table_format: str, findings: Findings, output_folder: Path) -> list[Path]:
    say, suffix = (render_csv, ".csv") if table_format == "csv" else (render_latex_table, ".tex")
    output_folder.mkdir(parents=True, exist_ok=True)
    written = []
    for table in tables.build_tables(findings, long_format=table_format == "csv"):
        path = output_folder / f"{_sanitize_file_name(table.name)}{suffix}"
        write_text(path, say(table))
        written.append(path)
    return written


def _write_charts(image_format: str, findings: Findings, output_folder: Path) -> list[Path]:
    output_folder.mkdir(parents=True, exist_ok=True)
    written = []
    for chart in charts.build_charts(findings):
        path = output_folder / f"{_sanitize_file_name(chart.name)}.{image_format}"
        write_bytes(path, _render_chart_image(chart, image_format))
        written.append(path)
    return written
