"""Write a report to disk: the page, tables and charts in the requested formats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from headtohead.config.parse_experiment import read_report_texts
from headtohead.experiment import findings_view, schemas
from headtohead.experiment.schemas import Findings
from headtohead.presentation import output_files
from headtohead.presentation.picture_files import save_picture
from headtohead.report import page
from headtohead.report.charts.forest_plot import build_forest_plot
from headtohead.report.context import ReportContext
from headtohead.report.documents import render_latex_document, render_markdown_document, render_pdf_document
from headtohead.report.sections import build_charts, build_tables
from headtohead.verdict.record import Verdict

DOCUMENT_RENDERERS: dict[str, Callable[[ReportContext], str | bytes]] = {
    "html": lambda context: page.render_page(context.findings, None, context.experiment_folder),
    "md": render_markdown_document,
    "pdf": render_pdf_document,
    "tex": render_latex_document,
}


def write_report(
    experiment_folder: Path,
    formats: Sequence[str] = ("html",),
    output_path: Path | None = None,
    *,
    findings: Findings | None = None,
    is_full: bool = False,
    text_file: Path | None = None,
) -> list[Path]:
    """Export the report of an experiment folder in several formats and return the paths of the files.

    Args:
        experiment_folder: Folder of the experiment.
        formats: Formats to write, such as "html", "md" or "pdf".
        output_path: A different folder, or a file for a single document; by default the experiment folder.
        findings: Findings to report; by default those in the folder.
        is_full: Include every section in Markdown and PDF. By default, sections that need no attention, such as passed
            audits, are replaced by one line each.
        text_file: A file whose `[[text]]` blocks replace those in the original experiment file.
    """
    output_files.check_output_formats(formats)
    texts = read_report_texts(text_file) if text_file is not None else None
    with schemas.translate_inconsistent_files_error(experiment_folder / "findings.json"):
        findings = findings or findings_view.read_findings(experiment_folder)
        if texts is not None and findings.experiment is not None:
            experiment = findings.experiment.model_copy(update={"text": texts})
            findings = findings.model_copy(update={"experiment": experiment})
        return output_files.write_output_files(
            formats,
            output_path or experiment_folder,
            lambda name: DOCUMENT_RENDERERS[name](ReportContext(findings, experiment_folder, is_full=is_full)),
            lambda: build_tables(findings),
            lambda: build_charts(findings),
        )


def export_forest_plot(verdicts: Sequence[Verdict], path: Path) -> None:
    """Write a forest plot of verdicts on scores from other sources, as a chart (.svg, .pdf, .png) or a page (.html)."""
    findings = Findings(verdicts=list(verdicts))
    margin = findings_view.get_equivalence_margin(findings)
    chart = build_forest_plot(verdicts, findings_view.get_metric(findings) if verdicts else "", margin)
    save_picture(path, lambda name: page.render_page(findings) if name == "html" else chart.render(name))
