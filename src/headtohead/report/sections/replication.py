"""Sections on replicating published work: claims and published results."""

from __future__ import annotations

from headtohead.presentation.section import Section, make_table_blocks
from headtohead.replication.tables import build_claims_table, build_published_table
from headtohead.report.context import ReportContext


def build_claims_section(context: ReportContext) -> Section | None:
    """Return the section on published claims and whether they hold."""
    blocks = make_table_blocks(build_claims_table(context.findings), layout="stack broken")
    return Section("claims", "Published claims", blocks, "Claims") if blocks else None


def build_published_section(context: ReportContext) -> Section | None:
    """Return the section on published results alongside ours."""
    blocks = make_table_blocks(build_published_table(context.findings), layout="stack broken")
    comparisons = context.findings.published
    sources = ", ".join(dict.fromkeys(row.source for row in comparisons))
    is_compared = any(not row.other_data for row in comparisons)
    summary = f"{len(comparisons)} values of {sources}{'' if is_compared else ', measured on other data'}."
    return Section("published", "Published results", blocks, "Published results", summary=summary) if blocks else None
