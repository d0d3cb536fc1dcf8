"""Section on the variant comparisons defined in the experiment file, each with its own baseline."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ComparisonFindings, Findings
from headtohead.presentation.chart import Chart
from headtohead.presentation.section import Block, BulletList, Figure, Paragraph, Section, Subheading, TableBlock
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.charts.forest_plot import build_forest_plot
from headtohead.report.context import ReportContext
from headtohead.report.sections.verdicts import make_effect_cells


def list_judged_comparisons(findings: Findings) -> list[ComparisonFindings]:
    """Return the comparisons that have a verdict."""
    return [comparison for comparison in findings.comparisons if comparison.verdicts]


def build_comparisons_section(context: ReportContext) -> Section | None:
    """Return the section with the chart and verdicts for every comparison between variants."""
    findings = context.findings
    comparisons = list_judged_comparisons(findings)
    if not comparisons:
        return None
    blocks: list[Block] = []
    for comparison, chart in zip(comparisons, build_comparison_charts(findings), strict=True):
        blocks.append(Subheading(comparison.title))
        if comparison.description:
            blocks.append(Paragraph(comparison.description))
        if not context.is_quick and any(verdict.is_exploratory for verdict in comparison.verdicts):
            blocks.append(Paragraph("Exploratory: outside of the comparisons that share the error rate."))
        interval_note = "" if context.is_quick else ", with its interval"
        caption = f"Change relative to {comparison.baseline}{interval_note}. Shaded: within {context.formatted_margin}."
        blocks += [Figure(chart, caption), BulletList([verdict.summary for verdict in comparison.verdicts])]
    # The section has a paragraph with each description.
    table = replace(build_comparison_table(findings), caption="Not judged." if context.is_quick else "")
    blocks.append(TableBlock(table, summary="All numbers of these comparisons"))
    return Section("comparisons", "Comparisons between variants", blocks, "Comparisons")


def build_comparison_charts(findings: Findings) -> list[Chart]:
    """Return one forest plot per comparison."""
    metric, margin = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    charts = []
    for index, comparison in enumerate(list_judged_comparisons(findings)):
        chart = build_forest_plot(comparison.verdicts, metric, margin)
        title = f"{comparison.title}: change in {metric} relative to {comparison.baseline}"
        alt_text = f"{comparison.title}. {chart.alt_text}"
        charts.append(replace(chart, name=f"comparison-{index + 1}", title=title, alt_text=alt_text))
    return charts


def build_comparison_table(findings: Findings) -> Table:
    """Return a table of the verdicts from all comparisons; in a quick look, of the changes."""
    metric, is_quick = findings_view.get_metric(findings), ReportContext(findings).is_quick
    columns = make_text_columns(comparison="comparison", variant="variant", against="baseline")
    if not is_quick:
        columns += make_text_columns(verdict="verdict")
    columns += make_numeric_columns(effect="change")
    if not is_quick:
        columns += make_numeric_columns(interval="interval", confidence="confidence")
    rows: list[list[Any]] = []
    for comparison in list_judged_comparisons(findings):
        for verdict in comparison.verdicts:
            names = [comparison.title, verdict.variant, comparison.baseline]
            effect, interval = make_effect_cells(verdict, metric, with_means=False)
            confidence = Cell(f"{verdict.adjusted_confidence:.2%}", verdict.adjusted_confidence)
            rows.append([*names, effect] if is_quick else [*names, verdict.outcome, effect, interval, confidence])
    descriptions = [
        f"{comparison.title}: {comparison.description}"
        for comparison in list_judged_comparisons(findings)
        if comparison.description
    ]
    return make_table("comparisons", "Comparisons between variants", "; ".join(descriptions), columns, rows)
