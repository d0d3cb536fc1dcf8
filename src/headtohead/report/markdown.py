"""Render the report as one Markdown document."""

from __future__ import annotations

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation.exports import escape_markdown, render_markdown_sections
from headtohead.report.context import ReportContext
from headtohead.report.sections import build_sections


def render_markdown_report(findings: Findings, *, headlines_only: bool = False) -> str:
    """Return the question and every section, or only the verdicts."""
    sections = build_sections(ReportContext(findings))
    if headlines_only:
        sections = [section for section in sections if section.is_headline]
    return f"# {escape_markdown(findings_view.get_question(findings))}\n\n{render_markdown_sections(sections)}"
