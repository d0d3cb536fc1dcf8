"""Write a report to disk: page, tables and charts in the requested formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headtohead.atomic_io import translate_disk_full_error, write_bytes, write_text
from headtohead.errors import RequestError
from headtohead.experiment import findings_view, schemas
from headtohead.experiment.schemas import Findings
from headtohead.presentation.files import DOCUMENT_SUFFIXES, check_formats, write_charts, write_tables
from headtohead.report import page
from headtohead.report.forest import build_forest_plot
from headtohead.report.markdown import render_markdown_report
from headtohead.report.sections import build_charts, build_tables
from headtohead.verdict.record import Verdict


def write_report(
    experiment_folder: Path, formats: Sequence[str] = ("html",), output_path: Path | None = None
) -> list[Path]:
    """Write the report of an experiment's folder and return the files written.

    Page and Markdown are report.html and report.md; tables are report-tables/NAME.csv or .tex, charts are
    report-charts/NAME.svg, .pdf or .png. `output_path` is another folder for them, or a file for a single document.
    """
    check_formats(formats)
    with schemas.report_inconsistent_data(experiment_folder / "findings.json"):
        findings = findings_view.read_findings(experiment_folder)
        return _write_formats(findings, experiment_folder, formats, output_path or experiment_folder)


def _write_formats(
    findings: Findings, experiment_folder: Path, formats: Sequence[str], output_path: Path
) -> list[Path]:
    written: list[Path] = []
    for name in dict.fromkeys(formats):
        if name in DOCUMENT_SUFFIXES:
            is_file = output_path.suffix == DOCUMENT_SUFFIXES[name] and len(set(formats)) == 1
            path = output_path if is_file else output_path / f"report{DOCUMENT_SUFFIXES[name]}"
            with translate_disk_full_error(path):
                path.parent.mkdir(parents=True, exist_ok=True)
            is_html = name == "html"
            text = page.render_page(findings, None, experiment_folder) if is_html else render_markdown_report(findings)
            write_text(path, text)
            written.append(path)
        elif name in ("csv", "latex"):
            written += write_tables(build_tables(findings), name, output_path / "report-tables")
        else:
            written += write_charts(build_charts(findings), name, output_path / "report-charts")
    return written


def save_forest_plot(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write verdicts on scores from elsewhere as a chart (.svg, .pdf, .png) or a page (.html)."""
    findings = Findings(verdicts=list(verdicts))
    margin = findings_view.get_equivalence_margin(findings)
    chart = build_forest_plot(verdicts, findings_view.get_metric(findings) if verdicts else "", margin)
    renderers: dict[str, Callable[[], bytes]] = {
        ".html": lambda: page.render_page(findings).encode(),
        ".svg": lambda: chart.to_svg(background="white").encode(),
        ".pdf": chart.to_pdf,
        ".png": chart.to_png,
    }
    if path.suffix not in renderers:
        raise RequestError(f"{path}: unsupported file extension {path.suffix!r}; allowed: {', '.join(renderers)}")
    write_bytes(path, renderers[path.suffix]())
