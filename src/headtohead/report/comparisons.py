"""Variants judged among themselves: for each comparison of the file a forest plot, its verdicts and what it teaches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from . import figures, reading
from .cells import Cell, Column, Table, table, words
from .drawing import Chart
from .forest import forest
from .reading import Findings


def comparisons(findings: Findings) -> list[dict[str, Any]]:
    """Those that have a verdict."""
    return [one for one in findings.get("comparisons") or [] if one.get("verdicts")]


def chart_name(at: int) -> str:
    return f"comparison-{at + 1}"


def comparison_charts(findings: Findings) -> list[Chart]:
    """One forest plot for each."""
    metric, matters = reading.metric(findings), reading.matters(findings)
    made = []
    for at, one in enumerate(comparisons(findings)):
        drawn = forest(one["verdicts"], metric, matters)
        title = f"{one['title']}: change of {metric} against {one['baseline']}"
        made.append(replace(drawn, name=chart_name(at), title=title, words=f"{one['title']}. {drawn.words}"))
    return made


def comparison_table(findings: Findings) -> Table:
    """Every verdict of every comparison."""
    metric = reading.metric(findings)
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
            places = figures.decimals(metric, row.get("interval"))
            rows.append(
                [
                    words(one["title"]),
                    words(row["variant"]),
                    words(one["baseline"]),
                    words(row["word"]),
                    Cell(figures.change(metric, row.get("effect"), places), row.get("effect")),
                    Cell(figures.interval(metric, row.get("interval"), places), row.get("interval")),
                ]
            )
    said = "; ".join(f"{one['title']}: {one['says']}" for one in comparisons(findings) if one.get("says"))
    return table("comparisons", "Among themselves", said, columns, rows)
