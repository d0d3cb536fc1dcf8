"""Variants judged among themselves: for each comparison of the file a forest plot, its verdicts and what it teaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format
from headtohead.presentation.chart import Chart
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell
from headtohead.report.forest import build_forest_plot


def list_judged_comparisons(findings: Findings) -> list[dict[str, Any]]:
    """Those that have a verdict."""
    return [one for one in findings.get("comparisons") or [] if one.get("verdicts")]


def format_chart_name(index: int) -> str:
    return f"comparison-{index + 1}"


def build_comparison_charts(findings: Findings) -> list[Chart]:
    """One forest plot for each."""
    metric, matters = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    made = []
    for at, one in enumerate(list_judged_comparisons(findings)):
        drawn = build_forest_plot(one["verdicts"], metric, matters)
        title = f"{one['title']}: change of {metric} against {one['baseline']}"
        made.append(replace(drawn, name=format_chart_name(at), title=title, words=f"{one['title']}. {drawn.words}"))
    return made


def build_comparison_table(findings: Findings) -> Table:
    """Every verdict of every comparison."""
    metric = findings_view.get_metric(findings)
    columns = [
        Column("comparison", "comparison"),
        Column("variant", "variant"),
        Column("against", "against"),
        Column("verdict", "verdict"),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
    ]
    rows = []
    for one in list_judged_comparisons(findings):
        for row in one["verdicts"]:
            places = number_format.choose_decimals(metric, row.get("interval"))
            rows.append(
                [
                    make_text_cell(one["title"]),
                    make_text_cell(row["variant"]),
                    make_text_cell(one["baseline"]),
                    make_text_cell(row["word"]),
                    Cell(number_format.format_effect(metric, row.get("effect"), places), row.get("effect")),
                    Cell(
                        number_format.format_effect_interval(metric, row.get("interval"), places), row.get("interval")
                    ),
                ]
            )
    said = "; ".join(f"{one['title']}: {one['says']}" for one in list_judged_comparisons(findings) if one.get("says"))
    return make_table("comparisons", "Among themselves", said, columns, rows)
