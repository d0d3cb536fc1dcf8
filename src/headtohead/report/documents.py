"""Render the report as a single Markdown, LaTeX or PDF document, by default without sections that need no attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headtohead.experiment import findings_view
from headtohead.presentation.output_files import CHARTS_FOLDER
from headtohead.presentation.renderers import latex, typst
from headtohead.presentation.renderers.markdown import escape_markdown, render_markdown_sections
from headtohead.presentation.section import Block, BulletList, HtmlBlock, Section
from headtohead.presentation.table import Table
from headtohead.report.context import ReportContext
from headtohead.report.introduction import build_report_lead, list_introduction_warnings
from headtohead.report.sections import build_sections

MAX_SHORT_TABLE_ROWS = 24
"""rows of tables that replace an HTML block, such as samples, in short documents"""


def render_markdown_document(context: ReportContext, *, headlines_only: bool = False) -> str:
    """Return the report as Markdown: the question, the warnings and every section, or only the verdicts."""
    sections = _build_document_sections(context)
    if headlines_only:
        sections = [section for section in sections if section.is_headline]
    question = findings_view.get_question(context.findings)
    paragraphs = [escape_markdown(paragraph) for paragraph in _list_introduction_paragraphs(context)]
    charts_folder = "" if headlines_only else CHARTS_FOLDER
    text = render_markdown_sections(sections, charts_folder)
    return "\n\n".join([f"# {escape_markdown(question)}", *paragraphs, text])


def render_latex_document(context: ReportContext) -> str:
    """Return the report as a LaTeX document, ordered like the PDF. Charts are included from report-charts."""
    question = findings_view.get_question(context.findings)
    return latex.render_latex_sections(
        question, _list_introduction_paragraphs(context), _build_document_sections(context), CHARTS_FOLDER
    )


def render_pdf_document(context: ReportContext) -> bytes:
    """Return the report as a typeset PDF, with all charts and attention maps."""
    question = findings_view.get_question(context.findings)
    return typst.render_pdf(question, _list_introduction_paragraphs(context), _build_document_sections(context))


def _list_introduction_paragraphs(context: ReportContext) -> list[str]:
    """Return the warnings, followed by the lead paragraph."""
    warnings = [f"{warning['lead']} {warning['text']}" for warning in list_introduction_warnings(context)]
    return [*warnings, build_report_lead(context)]


def _build_document_sections(context: ReportContext) -> list[Section]:
    """Return the sections of a document, shortened unless the full report was requested."""
    sections = build_sections(context)
    return sections if context.is_full else shorten_sections(sections)


def shorten_sections(sections: Sequence[Section]) -> list[Section]:
    """Return the sections of a short document.

    All sections that have a summary are replaced by one list of summaries, at the position of the first. Details are
    omitted, and tables that replace an HTML block are truncated.
    """
    summaries = [f"{section.title}: {section.summary}" for section in sections if section.summary]
    shortened_sections = [
        replace(
            section,
            blocks=[_shorten_block(block) for block in section.blocks if not getattr(block, "is_detail", False)],
        )
        for section in sections
        if not section.summary
    ]
    if summaries:
        first_index = next(index for index, section in enumerate(sections) if section.summary)
        shortened_sections.insert(first_index, Section("checks", "Checks", [BulletList(summaries)], "Checks"))
    return shortened_sections


def _shorten_block(block: Block) -> Block:
    """Return an HTML block with only the first rows of its tables."""
    if not isinstance(block, HtmlBlock):
        return block
    return replace(block, tables=[_truncate_table(table) for table in block.tables])


def _truncate_table(table: Table) -> Table:
    """Return the first rows of a table for a short document, with a caption that says so if rows are omitted."""
    if len(table.rows) <= MAX_SHORT_TABLE_ROWS:
        return table
    caption = f"{table.caption} The first {MAX_SHORT_TABLE_ROWS} of {len(table.rows)} rows.".strip()
    return replace(table, rows=table.rows[:MAX_SHORT_TABLE_ROWS], caption=caption)
