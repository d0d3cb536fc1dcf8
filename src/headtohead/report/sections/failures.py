"""Section on failures: lost runs and trials without a result."""

from __future__ import annotations

from headtohead.experiment.schemas import Findings
from headtohead.presentation.section import Section, make_table_blocks
from headtohead.presentation.table import Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext


def build_failures_section(context: ReportContext) -> Section | None:
    """Return the section on trials without a result, or None if every trial has one."""
    blocks = make_table_blocks(build_failures_table(context.findings))
    return Section("failures", "Trials without a result", blocks) if blocks else None


def build_failures_table(findings: Findings) -> Table:
    """Return one row per trial without a result, with its error message."""
    columns = make_text_columns("variant") + make_numeric_columns("seed") + make_text_columns(message="error")
    rows = [(failure.variant, failure.seed, failure.message) for failure in findings.failures]
    return make_table("failures", "Trials without a result", "Excluded from all statistics.", columns, rows)
