"""Sections on distillation: ROUGE verdicts, teacher and student scores and costs, and summaries side by side."""

from __future__ import annotations

from headtohead.distillation import tables as distillation_tables
from headtohead.presentation.section import (
    Block,
    HtmlBlock,
    Paragraph,
    Section,
    TableBlock,
    VerdictList,
    make_table_blocks,
)
from headtohead.report.context import ReportContext


def build_headline_section(context: ReportContext) -> Section | None:
    """Return the ROUGE-1 verdicts that answer a distillation experiment's question."""
    rows = distillation_tables.build_headline_verdicts(context.findings)
    if not rows:
        return None
    note = "Intervals are simultaneous for all pairs. All pairs and the other measures are under “Distillation”."
    title = "Verdict" if len(rows) == 1 else "Verdicts"
    return Section("headline", title, [VerdictList(rows), Paragraph(note, "notes")], is_headline=True)


def build_distillation_section(context: ReportContext) -> Section | None:
    """Return the scores, costs, verdicts and sample summaries for the teacher and its students."""
    findings = context.findings
    tables = {table.name: table for table in distillation_tables.build_tables(findings)}
    if not tables:
        return None
    blocks: list[Block] = []
    layouts = {"distilled": "broken", "distilled_pairs": "stack tight", "distilled_claims": "stack broken"}
    for name in ("teacher", "distilled", "distilled_pairs", "distilled_costs", "distilled_claims"):
        if name in tables:
            blocks += make_table_blocks(tables[name], layout=layouts.get(name, "stack"))
    if published := tables.get("distilled_reported"):
        blocks.append(TableBlock(published, summary=published.title, layout="broken"))
    if samples := distillation_tables.list_sample_summaries(findings):
        blocks.append(HtmlBlock("summaries", {"samples": samples}))
    return Section("distilled", "Effect of distillation", blocks, "Distillation")
