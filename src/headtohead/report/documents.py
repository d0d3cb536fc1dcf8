"""Render the report as a single Markdown, LaTeX or PDF document."""

from __future__ import annotations

from headtohead.experiment import findings_view
from headtohead.presentation.files import CHARTS_FOLDER
from headtohead.presentation.renderers import latex, typst
from headtohead.presentation.renderers.markdown import escape_markdown, render_markdown_sections
from headtohead.presentation.section import Section, shorten_sections
from headtohead.report.context import ReportContext
from headtohead.report.page import describe_basis, list_warnings
from headtohead.report.sections import build_sections


def render_markdown_document(context: ReportContext, *, headlines_only: bool = False) -> str:
    """Return the report as Markdown: the question, the warnings and every section, or only the verdicts."""
    sections = _build_document_sections(context)
    if headlines_only:
        sections = [section for section in sections if section.is_headline]
    question = findings_view.get_question(context.findings)
    paragraphs = [escape_markdown(paragraph) for paragraph in _write_introduction(context)]
    charts_folder = "" if headlines_only else CHARTS_FOLDER
    text = render_markdown_sections(sections, charts_folder)
    return "\n\n".join([f"# {escape_markdown(question)}", *paragraphs, text])


def render_latex_document(context: ReportContext) -> str:
    """Return the report as a LaTeX document, ordered like the PDF. Charts are included from report-charts."""
    question = findings_view.get_question(context.findings)
    return latex.render_document(
        question, _write_introduction(context), _build_document_sections(context), CHARTS_FOLDER
    )


def render_pdf_document(context: ReportContext) -> bytes:
    """Return the report as a typeset PDF, with all charts and attention maps."""
    question = findings_view.get_question(context.findings)
    return typst.render_pdf(question, _write_introduction(context), _build_document_sections(context))


def _write_introduction(context: ReportContext) -> list[str]:
    """Return the warnings and the basis of the verdicts, one paragraph each."""
    warnings = [f"{warning['lead']} {warning['text']}" for warning in list_warnings(context)]
    return [*warnings, describe_basis(context)]


def _build_document_sections(context: ReportContext) -> list[Section]:
    sections = build_sections(context)
    return sections if context.is_full else shorten_sections(sections)
