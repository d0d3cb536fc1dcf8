"""Write documents, tables and charts in the requested formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from headtohead import safe_open
from headtohead.atomic_io import translate_disk_full_error, write_bytes, write_text
from headtohead.errors import ChartError, RequestError, format_suggestion
from headtohead.presentation.chart import Chart
from headtohead.presentation.file_names import sanitize_file_name
from headtohead.presentation.renderers.csv_tables import render_csv
from headtohead.presentation.renderers.latex import render_latex_table
from headtohead.presentation.table import Table

ReportFormat = Literal["html", "md", "pdf", "tex", "csv", "chart-svg", "chart-pdf", "chart-png"]
REPORT_FORMATS: tuple[str, ...] = get_args(ReportFormat)
DOCUMENT_FORMATS = ("html", "md", "pdf", "tex")
CHARTS_FOLDER = "report-charts"
TABLES_FOLDER = "report-tables"
CHART_FORMATS = {"md": "svg", "tex": "pdf"}
"""formats of the charts that documents link to"""


def check_formats(formats: Sequence[str]) -> None:
    """Raise RequestError if the list of output formats is empty or contains an unknown format."""
    unknown = [name for name in formats if name not in REPORT_FORMATS]
    if unknown or not formats:
        given_formats = ", ".join(map(repr, unknown)) or "none"
        hint = format_suggestion(unknown[0], REPORT_FORMATS) if unknown else ""
        raise RequestError(f"format: {given_formats} given{hint}; allowed: {', '.join(REPORT_FORMATS)}")


def write_formats(
    formats: Sequence[str],
    output_path: Path,
    render_document: Callable[[str], str | bytes],
    build_tables: Callable[[], Iterable[Table]],
    build_charts: Callable[[], Iterable[Chart]],
) -> list[Path]:
    """Write a report in each format and return the paths of the files written.

    Documents are report.html, report.md, report.pdf and report.tex; tables are report-tables/NAME.csv or .tex; charts
    are report-charts/NAME.svg, .pdf or .png. `output_path` is a folder, or a file for a single document. Raise
    ChartError at the end if requested charts could not be rendered; documents are written without them.
    """
    check_formats(formats)
    written: list[Path] = []
    num_missing_charts = 0
    for name in dict.fromkeys(formats):
        if name in DOCUMENT_FORMATS:
            is_file = output_path.suffix == f".{name}" and len(set(formats)) == 1
            path = output_path if is_file else output_path / f"report.{name}"
            content = render_document(name)
            with translate_disk_full_error(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
            written.append(path)
            if name in CHART_FORMATS:
                written += write_charts(build_charts(), CHART_FORMATS[name], path.parent / CHARTS_FOLDER)
            if name == "tex":
                written += write_tables(build_tables(), name, path.parent / TABLES_FOLDER)
        elif name == "csv":
            written += write_tables(build_tables(), name, output_path / TABLES_FOLDER)
        else:
            charts = list(build_charts())
            paths = write_charts(charts, name.removeprefix("chart-"), output_path / CHARTS_FOLDER)
            num_missing_charts += len(charts) - len(paths)
            written += paths
    if num_missing_charts:
        raise ChartError(f"{num_missing_charts} requested charts could not be rendered; everything else was written")
    return written


def write_tables(tables: Iterable[Table], table_format: str, folder: Path) -> list[Path]:
    """Write each table to NAME.csv or NAME.tex and return the paths."""
    render = render_csv if table_format == "csv" else render_latex_table
    safe_open.create_folder(folder)
    written = []
    for table in tables:
        path = folder / f"{sanitize_file_name(table.name)}.{table_format}"
        write_text(path, render(table))
        written.append(path)
    return written


def write_charts(charts: Iterable[Chart], image_format: str, folder: Path) -> list[Path]:
    """Write each chart to NAME.svg, .pdf or .png and return the paths.

    Charts that cannot be rendered cause a warning.
    """
    safe_open.create_folder(folder)
    written = []
    for chart in charts:
        path = folder / f"{sanitize_file_name(chart.name)}.{image_format}"
        try:
            write_bytes(path, chart.render(image_format))
        except ChartError as error:
            chart.warn_not_rendered(error)
            continue
        written.append(path)
    return written
