"""Sections on the replication of published work: claims, published results, scores by setting and context length."""

from __future__ import annotations

from headtohead.presentation.section import Block, Figure, Section, make_table_blocks
from headtohead.replication.published import build_published_table
from headtohead.replication.tables import (
    build_axis_table,
    build_claims_table,
    build_context_cost_table,
    build_context_length_table,
)
from headtohead.report.axis_chart import build_axis_chart
from headtohead.report.context import ReportContext


def build_claims_section(context: ReportContext) -> Section | None:
    blocks = make_table_blocks(build_claims_table(context.findings), layout="stack broken")
    return Section("claims", "Published claims", blocks, "Claims") if blocks else None


def build_published_section(context: ReportContext) -> Section | None:
    """Return published results beside ours."""
    blocks = make_table_blocks(build_published_table(context.findings), layout="stack broken")
    comparisons = context.findings.published
    sources = ", ".join(dict.fromkeys(row.source for row in comparisons))
    is_compared = any(not row.other_data for row in comparisons)
    summary = f"{len(comparisons)} values of {sources}{'' if is_compared else ', measured on other data'}."
    return Section("published", "Published results", blocks, "Published results", summary=summary) if blocks else None


def build_axis_section(context: ReportContext) -> Section | None:
    """Return scores and costs by the numeric setting in which the variants differ."""
    blocks: list[Block] = make_table_blocks(build_axis_table(context.findings))
    if not blocks:
        return None
    if (chart := build_axis_chart(context.findings)) is not None:
        caption = f"{chart.title}. Line: mean over seeds; band: lowest to highest seed."
        blocks.insert(0, Figure(chart, caption))
    axis = context.findings.axis
    title = f"By {axis.setting.rpartition('.')[2] if axis else ''}"
    return Section("axis", title, blocks, title)


def build_context_length_section(context: ReportContext) -> Section | None:
    tables = build_context_length_table(context.findings), build_context_cost_table(context.findings)
    blocks = make_table_blocks(*tables)
    return Section("lengths", "Other context lengths", blocks, "Context lengths") if blocks else None
