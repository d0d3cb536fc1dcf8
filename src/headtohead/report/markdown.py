"""The report as one Markdown document."""

from __future__ import annotations

from collections.abc import Sequence

from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation.exports import escape_markdown, render_markdown_table
from headtohead.presentation.table import Table
from headtohead.search import phrasing


def render_markdown_report(findings: Findings, tables: Sequence[Table]) -> str:
    """The question, the verdicts, and every table."""
    lines = [f"# {escape_markdown(findings_view.get_question(findings))}", ""]
    for row in (*distillation_tables.build_headline_verdicts(findings), *findings_view.get_verdicts(findings)):
        lines += [f"- **{escape_markdown(row['word'])}**: {escape_markdown(row['sentence'])}"]
    if said := phrasing.describe_search(findings):
        lines += ["", *(f"- {escape_markdown(sentence)}" for sentence in said)]
    for table in tables:
        lines += ["", f"## {escape_markdown(table.title)}", "", render_markdown_table(table).rstrip()]
    return "\n".join(lines) + "\n"
