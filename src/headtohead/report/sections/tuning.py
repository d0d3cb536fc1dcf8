"""Section on a tuned comparison: response curves, optima, and how much of each effect is due to tuning."""

from __future__ import annotations

from headtohead.presentation.section import Block, BulletList, Figure, Paragraph, Section, TableBlock
from headtohead.report.context import ReportContext
from headtohead.search.phrasing import describe_tuning
from headtohead.search.tables import build_tuning_table
from headtohead.search.tuning_chart import build_response_chart


def build_tuning_section(context: ReportContext) -> Section | None:
    """Return the section with the optimum of the baseline and of each variant, response curves, and all points."""
    tuning = context.findings.tuning
    if tuning is None:
        return None
    budget_sentence, *sentences = describe_tuning(tuning, context.metric)
    blocks: list[Block] = [Paragraph(budget_sentence), BulletList(sentences)]
    if (chart := build_response_chart(tuning, context.metric)) is not None:
        caption = (
            f"{chart.title}. Mean over tuning seeds with its 95 % interval; the ring marks the chosen point. With "
            "several settings, each mark is the best point with this value."
        )
        blocks.append(Figure(chart, caption))
    blocks.append(TableBlock(build_tuning_table(tuning, context.metric), summary="All points"))
    return Section("tuning", "Tuning", blocks, "Tuning")
