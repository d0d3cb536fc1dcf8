"""Section on a hyperparameter search: the winner, the selection bias, and every configuration tried."""

from __future__ import annotations

from headtohead.presentation.section import Block, Figure, Paragraph, Section, TableBlock
from headtohead.report.context import ReportContext
from headtohead.search import phrasing
from headtohead.search.charts import build_search_charts
from headtohead.search.tables import build_search_effects_table, build_search_points_table

CHART_CAPTIONS = {
    "search-history": "Each mark is the mean of a configuration over its seeds; the line is the best so far.",
    "search-effects": (
        "Averaged over all values of the other settings, with a 95 % interval. Intervals are wide where seeds vary or "
        "settings interact."
    ),
    "search-parallel": (
        "Each line is a configuration; the rightmost axis is its score. Better configurations are higher and darker."
    ),
}


def build_search_section(context: ReportContext) -> Section | None:
    """Return the section on a hyperparameter search: a summary, charts, and tables of points and effects."""
    sentences = phrasing.describe_search(context.findings)
    if not sentences:
        return None
    note = (
        "Selection bias is the difference between the winner’s score in the search and its mean with fresh seeds, on "
        "the same validation data. The search never read test data; the verdict above uses fresh seeds."
    )
    blocks: list[Block] = [*(Paragraph(sentence) for sentence in sentences), Paragraph(note, "notes")]
    blocks += [
        Figure(chart, f"{chart.title}. {CHART_CAPTIONS.get(chart.name, '')}".strip())
        for chart in build_search_charts(context.findings)
    ]
    blocks.append(TableBlock(build_search_points_table(context.findings), summary="All configurations"))
    if (effects := build_search_effects_table(context.findings)).rows:
        blocks.append(TableBlock(effects, summary=effects.title))
    return Section("search", "Search", blocks, "Search")
