"""Sections on distillation: ROUGE verdicts, teacher and student scores and costs, and example summaries."""

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


def build_distillation_verdicts_section(context: ReportContext) -> Section | None:
    """Return the section with the ROUGE-1 verdicts, which answer the question of a distillation experiment."""
    cards = distillation_tables.build_rouge_verdict_cards(context.findings)
    if not cards:
        return None
    note = "Intervals are simultaneous for all pairs. All pairs and the other metrics are under “Distillation”."
    title = "Verdict" if len(cards) == 1 else "Verdicts"
    return Section("headline", title, [VerdictList(cards), Paragraph(note, "notes")], is_headline=True)


def build_distillation_section(context: ReportContext) -> Section | None:
    """Return the section with the scores, costs, verdicts and example summaries of the teacher and its students."""
    findings = context.findings
    tables = {table.name: table for table in distillation_tables.build_distillation_tables(findings)}
    if not tables:
        return None
    blocks: list[Block] = []
    layouts = {"distilled": "broken", "distilled_pairs": "stack tight", "distilled_claims": "stack broken"}
    for name in ("teacher", "distilled", "distilled_pairs", "distilled_costs", "distilled_claims"):
        if name in tables:
            blocks += make_table_blocks(tables[name], layout=layouts.get(name, "stack"))
    if published := tables.get("distilled_reported"):
        blocks.append(TableBlock(published, summary=published.title, layout="broken"))
    if examples := distillation_tables.list_example_summaries(findings):
        blocks.append(HtmlBlock("summaries", {"examples": examples}))
    return Section("distilled", "Effect of distillation", blocks, "Distillation")
