"""Section on a sweep: the verdicts of all cells, the prediction for a new corpus, and trends."""

from __future__ import annotations

from dataclasses import replace

from headtohead.config.experiment import BASELINE
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, SweepCellResult, SweepFindings
from headtohead.presentation import number_format
from headtohead.presentation.chart import Chart
from headtohead.presentation.section import Block, BulletList, Figure, Paragraph, Section, Subheading, TableBlock
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.charts.forest_plot import build_forest_plot
from headtohead.report.context import ReportContext
from headtohead.report.sections.verdicts import EFFECT_COLUMN_TITLES, make_effect_cells, split_description
from headtohead.report.sweep_sentences import describe_sweep, format_cell_coordinates, shorten_axis_name

SWEEP_NOTE = (
    "Each cell is an experiment of its own: its intervals hold jointly for its variants and analyses, not for all "
    "cells together. Prediction intervals and trends are exploratory. `h2h report` writes the report of a cell from "
    "its folder in `cells`."
)


def build_sweep_section(context: ReportContext) -> Section | None:
    """Return the section on a sweep: a summary and a forest plot of the cells for each variant, and all numbers."""
    sweep = context.findings.sweep
    if sweep is None:
        return None
    blocks: list[Block] = []
    sentences = describe_sweep(sweep, context.metric)
    charts = build_sweep_charts(context.findings)
    for variant, variant_sentences in sentences.items():
        blocks += [Subheading(variant), BulletList(variant_sentences)]
        if variant in charts:
            caption = f"Change relative to the baseline in each cell. Shaded: within {context.formatted_margin}."
            blocks.append(Figure(charts[variant], caption))
    if unfinished_cells := [f"{cell.name}: {cell.message}" for cell in sweep.cells if cell.message]:
        blocks += [Paragraph("These cells have no result:", "warning"), BulletList(unfinished_cells)]
    blocks.append(Paragraph(SWEEP_NOTE, "notes"))
    blocks.append(TableBlock(build_sweep_cells_table(context.findings), summary="All cells"))
    if (trends := build_sweep_trends_table(context.findings)).rows:
        blocks.append(TableBlock(trends, summary=trends.title))
    blocks += [
        Paragraph(text, "about")
        for text in split_description(context.experiment.description if context.experiment else "")
    ]
    num_finished = sum(bool(cell.verdicts) for cell in sweep.cells)
    count = f"{num_finished} of {len(sweep.cells)} cells"
    return Section("sweep", "Verdicts in every cell", blocks, count=count, is_headline=True)


def build_sweep_charts(findings: Findings) -> dict[str, Chart]:
    """Return the charts of the section: a forest plot of a sweep's cells for each variant that has a verdict."""
    metric, margin = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    charts = {}
    for index, variant in enumerate(_list_sweep_variants(findings), start=1):
        cell_verdicts = [
            replace(verdict, variant=format_cell_coordinates(cell.coordinates))
            for cell in _sort_sweep_cells(findings.sweep)
            for verdict in cell.verdicts
            if verdict.variant == variant
        ]
        if cell_verdicts:
            chart = build_forest_plot(cell_verdicts, metric, margin)
            title = f"{variant}: change in {metric} relative to the baseline in each cell"
            charts[variant] = replace(
                chart, name=f"sweep-{index}", title=title, alt_text=f"{variant}. {chart.alt_text}"
            )
    return charts


def _list_sweep_variants(findings: Findings) -> list[str]:
    return [summary.variant for summary in findings.sweep.summaries] if findings.sweep else []


def _sort_sweep_cells(sweep: SweepFindings | None) -> list[SweepCellResult]:
    """Return the cells of a sweep in the order of the values in the experiment file, not that in which they run."""
    if sweep is None:
        return []
    orders = {axis.name: axis.values for axis in sweep.axes}
    return sorted(
        sweep.cells,
        key=lambda cell: [orders[axis].index(label) for axis, label in cell.coordinates.items()],
    )


def build_sweep_cells_table(findings: Findings) -> Table:
    """Return one row per variant and cell of a sweep, with the verdict of the cell."""
    metric, sweep = findings_view.get_metric(findings), findings.sweep
    axes = [axis.name for axis in sweep.axes] if sweep else []
    columns = make_text_columns("variant", {axis: shorten_axis_name(axis) for axis in axes})
    columns += [
        Column(name, title, True, name.endswith(("mean", BASELINE))) for name, title in EFFECT_COLUMN_TITLES.items()
    ]
    columns += [*make_text_columns("verdict"), Column("warnings", "warnings", is_optional=True)]
    rows = [
        [
            variant,
            *(cell.coordinates[axis] for axis in axes),
            *make_effect_cells(verdict, metric),
            verdict.outcome,
            ", ".join(cell.warnings),
        ]
        for variant in _list_sweep_variants(findings)
        for cell in _sort_sweep_cells(sweep)
        for verdict in cell.verdicts
        if verdict.variant == variant
    ]
    return make_table("cells", "All cells", "One row for each variant and cell.", columns, rows)


def build_sweep_trends_table(findings: Findings) -> Table:
    """Return one row per variant and numeric axis of a sweep, with the trend of the effect along it."""
    metric = findings_view.get_metric(findings)
    columns = make_text_columns("variant", "axis", "corpus")
    columns += make_numeric_columns(per_doubling="change per doubling", interval="95 % interval")
    columns += make_text_columns(direction="effect") + make_numeric_columns(unclear_from="unclear from")
    rows = [
        [
            summary.variant,
            shorten_axis_name(trend.axis),
            trend.corpus or ("all" if not trend.levels else number_format.MISSING_VALUE),
            Cell(number_format.format_effect(metric, trend.per_doubling), trend.per_doubling),
            Cell(number_format.format_effect_interval(metric, trend.interval), trend.interval),
            trend.direction,
            Cell(
                number_format.MISSING_VALUE
                if trend.unclear_from is None
                else f"{number_format.format_count(round(trend.unclear_from))} {trend.unit}"
                f"{' (extrapolated)' if trend.is_extrapolated else ''}",
                trend.unclear_from,
            ),
        ]
        for summary in (findings.sweep.summaries if findings.sweep else [])
        for trend in summary.trends
    ]
    caption = (
        "Slope of the change over the base-2 logarithm of steps or parameters, for new seeds and new text; over all "
        "corpora, for new corpora. Unclear from: where the interval of the change includes 0."
    )
    return make_table("trends", "Trends over sizes and budgets", caption, columns, rows)
