"""Variants judged among themselves: for each comparison of the file a forest plot, its verdicts and what it teaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headtohead.presentation import number_format
from headtohead.presentation.chart import Chart
from headtohead.presentation.table import Cell, Column, Table, table, words
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings
from headtohead.report.forest import forest


def comparisons(findings: Findings) -> list[dict[str, Any]]:
    """Those that have a verdict."""
    return [one for one in findings.get("comparisons") or [] if one.get("verdicts")]


def chart_name(at: int) -> str:
    return f"comparison-{at + 1}"


def comparison_charts(findings: Findings) -> list[Chart]:
    """One forest plot for each."""
    metric, matters = findings_view.metric(findings), findings_view.matters(findings)
    made = []
    for at, one in enumerate(comparisons(findings)):
        drawn = forest(one["verdicts"], metric, matters)
        title = f"{one['title']}: change of {metric} against {one['baseline']}"
        made.append(replace(drawn, name=chart_name(at), title=title, words=f"{one['title']}. {drawn.words}"))
    return made


def comparison_table(findings: Findings) -> Table:
    """Every verdict of every comparison."""
    metric = findings_view.metric(findings)
    columns = [
        Column("comparison", "comparison"),
        Column("variant", "variant"),
        Column("against", "against"),
        Column("verdict", "verdict"),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
    ]
    rows = []
    for one in comparisons(findings):
        for row in one["verdicts"]:
            places = number_format.decimals(metric, row.get("interval"))
            rows.append(
                [
                    words(one["title"]),
                    words(row["variant"]),
                    words(one["baseline"]),
                    words(row["word"]),
                    Cell(number_format.change(metric, row.get("effect"), places), row.get("effect")),
                    Cell(number_format.interval(metric, row.get("interval"), places), row.get("interval")),
                ]
            )
    said = "; ".join(f"{one['title']}: {one['says']}" for one in comparisons(findings) if one.get("says"))
    return table("comparisons", "Among themselves", said, columns, rows)
