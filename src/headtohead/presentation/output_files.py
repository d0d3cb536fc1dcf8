"""Write the output files of a report or decoding comparison: documents, tables and charts in the requested formats."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, get_args

from headtohead import safe_open
from headtohead.atomic_io import translate_disk_full_error, write_bytes, write_text
from headtohead.errors import ChartError, MissingExtraError, RequestError, format_suggestion
from headtohead.presentation.chart import Chart
from headtohead.presentation.file_names import sanitize_file_name
from headtohead.presentation.renderers.csv_tables import render_csv
from headtohead.presentation.renderers.latex import render_latex_table
from headtohead.presentation.table import Table

OutputFormat = Literal["html", "md", "pdf", "tex", "csv", "chart-svg", "chart-pdf", "chart-png"]
OUTPUT_FORMATS: tuple[str, ...] = get_args(OutputFormat)
DOCUMENT_FORMATS = ("html", "md", "pdf", "tex")
CHARTS_FOLDER = "report-charts"
TABLES_FOLDER = "report-tables"
CHART_FORMATS = {"md": "svg", "tex": "pdf"}
"""formats of the charts that a document format links to"""


def check_output_formats(formats: Sequence[str]) -> None:
    """Raise RequestError if the formats requested for output files are empty or contain one that cannot be written."""
    unknown_formats = [name for name in formats if name not in OUTPUT_FORMATS]
    if unknown_formats or not formats:
        given_formats = ", ".join(map(repr, unknown_formats)) or "none"
        hint = format_suggestion(unknown_formats[0], OUTPUT_FORMATS) if unknown_formats else ""
        raise RequestError(f"format: {given_formats} given{hint}; allowed: {', '.join(OUTPUT_FORMATS)}")
    if "pdf" in formats and importlib.util.find_spec("typst") is None:
        raise MissingExtraError("typst", "pdf", "a PDF report")


def write_output_files(
    formats: Sequence[str],
    output_path: Path,
    render_document: Callable[[str], str | bytes],
    build_tables: Callable[[], Iterable[Table]],
    build_charts: Callable[[], Iterable[Chart]],
) -> list[Path]:
    """Write documents, tables and charts in each requested format, and return the paths of the files written.

    Documents are report.html, report.md, report.pdf and report.tex; tables are report-tables/NAME.csv or .tex; charts
    are report-charts/NAME.svg, .pdf or .png. `output_path` is a folder, or a file for a single document. Raise
    ChartError at the end if requested charts could not be rendered; documents are written without them.
    """
    check_output_formats(formats)
    paths_written: list[Path] = []
    num_missing_charts = 0
    for name in dict.fromkeys(formats):
        if name in DOCUMENT_FORMATS:
            is_single_file = output_path.suffix == f".{name}" and len(set(formats)) == 1
            path = output_path if is_single_file else output_path / f"report.{name}"
            content = render_document(name)
            with translate_disk_full_error(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(path, content if isinstance(content, bytes) else content.encode(errors="backslashreplace"))
            paths_written.append(path)
            if name in CHART_FORMATS:
                paths_written += write_chart_files(build_charts(), CHART_FORMATS[name], path.parent / CHARTS_FOLDER)
            if name == "tex":
                paths_written += write_table_files(build_tables(), name, path.parent / TABLES_FOLDER)
        elif name == "csv":
            paths_written += write_table_files(build_tables(), name, output_path / TABLES_FOLDER)
        else:
            charts = list(build_charts())
            chart_paths = write_chart_files(charts, name.removeprefix("chart-"), output_path / CHARTS_FOLDER)
            num_missing_charts += len(charts) - len(chart_paths)
            paths_written += chart_paths
    if num_missing_charts:
        raise ChartError(f"{num_missing_charts} requested charts could not be rendered; everything else was written")
    return paths_written


def write_table_files(tables: Iterable[Table], table_format: str, folder: Path) -> list[Path]:
    """Write each table to NAME.csv or NAME.tex and return the paths."""
    render_table = render_csv if table_format == "csv" else render_latex_table
    safe_open.create_folder(folder)
    paths_written = []
    for table in tables:
        path = folder / f"{sanitize_file_name(table.name)}.{table_format}"
        write_text(path, render_table(table))
        paths_written.append(path)
    return paths_written


def write_chart_files(charts: Iterable[Chart], image_format: str, folder: Path) -> list[Path]:
    """Write each chart to NAME.svg, .pdf or .png and return the paths.

    Charts that cannot be rendered cause a warning.
    """
    safe_open.create_folder(folder)
    paths_written = []
    for chart in charts:
        path = folder / f"{sanitize_file_name(chart.name)}.{image_format}"
        try:
            write_bytes(path, chart.render(image_format))
        except ChartError as error:
            chart.warn_not_rendered(error)
            continue
        paths_written.append(path)
    return paths_written
