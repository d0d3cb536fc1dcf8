"""The pictures of a search: its history, each setting's effect, and all cells as lines across the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from headtohead.presentation import number_format, style
from headtohead.presentation.chart import Built, Chart, Layout, Panels, Sheets, value_words
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings
from headtohead.search import phrasing
from headtohead.search.phrasing import Row

FATES: dict[str, tuple[str, str, str]] = {
    "winner": ("winner", "diamond", "#0072b2"),
    "finished": ("all seeds", "circle", style.BASELINE_HUE),
    "pruned": ("given up early", "triangle-down", "#e69f00"),
    "unfinished": ("unfinished", "square", "#cc79a7"),
    "failed": ("failed", "cross", "#b4451f"),
}
"""what became of a cell: its words, shape and colour"""
DASHES = {"winner": [1, 0], "finished": [1, 0], "pruned": [5, 3], "unfinished": [2, 2], "failed": [1, 3]}
JITTER = 0.09
"""cells with the same value are drawn beside each other, over this share of an axis"""
MOST_VALUES = 7
WEAKEST = 0.25
"""how strongly the line of the worst cell is drawn"""


def search_charts(findings: Findings) -> list[Chart]:
    """Those for which there is something to draw."""
    search = phrasing.found(findings)
    if search is None or not any(number_format.is_number(cell["mean"]) for cell in search["cells"]):
        return []
    made = [history(findings, search), parallel(findings, search)]
    if search["effects"]:
        made.insert(1, effects(findings, search))
    return made


def _fate(search: Row, cell: Row) -> str:
    return "winner" if cell["cell"] == search["winner"] else str(cell["status"])


def _looks(fates: Sequence[str]) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape for the fates that occur."""
    there = [fate for fate in FATES if fate in fates]
    words, shapes, hues = zip(*(FATES[fate] for fate in there), strict=True)
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    return (
        alt.Color("fate:N", scale=alt.Scale(domain=words, range=hues), legend=legend),
        alt.Shape("fate:N", scale=alt.Scale(domain=words, range=shapes), legend=legend),
    )


def _tip(search: Row, cell: Row, metric: str) -> str:
    said = f"{cell['name']} ({phrasing.settings_words(cell['settings'])}): "
    if not number_format.is_number(cell["mean"]):
        return said + str(cell["message"] or cell["status"])
    seeds = len(cell["values"])
    return (
        said + f"{number_format.value(metric, cell['mean'])}, {seeds} seed{'s' if seeds != 1 else ''}, {cell['status']}"
    )


def history(findings: Findings, search: Row) -> Chart:
    """Each cell against the trials so far, the best so far, and where winner and baseline stand with fresh seeds."""
    metric, (low, high) = findings_view.metric(findings), phrasing.limits(findings)
    rows = [_history_row(search, at, metric, (low, high)) for at in search["history"]]
    lines = _levels(search, near=0.07 * (high - low))
    first, last = search["history"][0], search["history"][-1]
    said = (
        f"{metric.capitalize()} on validation data, cell by cell over {last['trials']} trials. Best so far: from "
        f"{number_format.value(metric, first['best'])} to {number_format.value(metric, last['best'])}. "
        + " ".join(f"{line['name']}, fresh seeds: {number_format.value(metric, line['value'])}." for line in lines)
    )

    def build(layout: Layout, sheets: Sheets) -> Built:
        wide = layout == "wide"
        width = 590 if wide else 270
        data = sheets.chart(rows)
        most = max(row["trials"] for row in rows)
        x = alt.X("trials:Q", scale=alt.Scale(domain=[0, most * 1.02], nice=False), axis=_trials_axis())
        axis = alt.Axis(title=f"{metric} on validation data", tickCount=5, labelExpr=value_words(metric))
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        hue, shape = _looks([row["kind"] for row in rows])
        levels = sheets.chart(lines)
        layers = [
            levels.mark_rule(aria=False, strokeDash=[4, 4], color=style.SOFT).encode(
                y=alt.Y("value:Q", scale=scale, axis=axis)
            ),
            levels.mark_text(
                aria=False, align="left", dy=0 if wide else -6, fontSize=11, color=style.SOFT, baseline="middle"
            ).encode(x=alt.value(width + 6 if wide else 2), y=alt.Y("value:Q", scale=scale, axis=axis), text="said:N"),
            data.mark_line(aria=False, interpolate="step-after", strokeWidth=2, color="#0072b2", clip=True).encode(
                x=x, y=alt.Y("best:Q", scale=scale, axis=axis)
            ),
            data.mark_point(size=70, filled=True, opacity=0.95).encode(
                x=x, y=alt.Y("at:Q", scale=scale, axis=axis), color=hue, shape=shape, description="tip:N"
            ),
        ]
        return alt.layer(*layers).properties(width=width, height=250 if wide else 220)

    return Chart("search-history", "The search, cell by cell", said, build)


def _trials_axis() -> alt.Axis:
    return alt.Axis(title="trials so far", grid=False, format=",~r", tickMinStep=1)


def _history_row(search: Row, at: Row, metric: str, limits: tuple[float, float]) -> Row:
    cell = search["cells"][at["cell"]]
    fate = _fate(search, cell)
    inside = min(max(at["mean"], limits[0]), limits[1])
    beyond = " (further off than the picture shows)" if inside != at["mean"] else ""
    row = {"trials": at["trials"], "at": inside, "best": at["best"], "kind": fate, "fate": FATES[fate][0]}
    return {**row, "tip": _tip(search, cell, metric) + beyond}


def _levels(search: Row, near: float) -> list[Row]:
    """Where winner and baseline stand with fresh seeds. Two lines that lie close together share their words."""
    found = search.get("luck")
    if not found:
        return []
    said = {"winner": "winner, fresh seeds", "baseline": "baseline, fresh seeds"}
    if abs(found["fresh"] - found["baseline"]) < near:
        said = {"winner": "both, fresh seeds", "baseline": ""}
    values = {"winner": found["fresh"], "baseline": found["baseline"]}
    return [{"name": name, "said": said[name], "value": value} for name, value in values.items()]


def effects(findings: Findings, search: Row) -> Chart:
    """Each setting by itself: what its values give on average over the others."""
    metric = findings_view.metric(findings)
    names = phrasing.short_names(list(search["space"]))
    panels = {
        names[setting]: [_effect_row(names[setting], row, metric) for row in rows]
        for setting, rows in search["effects"].items()
    }
    every = [row for rows in panels.values() for row in rows]
    low, high = _effect_limits(every)
    said = "; ".join(f"{name}: " + ", ".join(row["words"] for row in rows) for name, rows in panels.items())

    def build(layout: Layout, sheets: Sheets) -> Built:
        made = []
        for name, rows in panels.items():
            data = sheets.chart([{**row, "low": max(row["low"], low), "high": min(row["high"], high)} for row in rows])
            # A piece of a range is written on two lines.
            lines = "split(replace(datum.label, ' to ', ' to|'), '|')"
            label = alt.Axis(title=None, grid=False, labelAngle=0, labelOverlap=False, labelExpr=lines)
            x = alt.X("value:N", sort=[row["value"] for row in rows], axis=label)
            axis = alt.Axis(title=None, tickCount=5, labelExpr=value_words(metric))
            scale = alt.Scale(domain=[low, high], nice=False, zero=False)
            y = alt.Y("mean:Q", scale=scale, axis=axis)
            layers = [
                data.mark_rule(aria=False, strokeWidth=2, color=style.HUES[0]).encode(
                    x=x, y=alt.Y("low:Q", scale=scale, axis=axis), y2="high:Q"
                ),
                data.mark_point(size=70, filled=True, opacity=1, color=style.HUES[0]).encode(
                    x=x, y=y, description="tip:N"
                ),
            ]
            made.append(alt.layer(*layers).properties(title=name))
        return alt.concat(*made, bounds="flush", spacing=alt.RowColnumber(row=70, column=58))

    columns = {1: 1, 2: 2}.get(len(panels), 3)
    layouts: dict[Layout, Panels] = {
        "wide": Panels({1: 420, 2: 320}.get(columns, 205), 170, columns, 4),
        "narrow": Panels(270, 150, 1, 2),
    }
    title = f"{metric.capitalize()} on validation data for each setting"
    return Chart("search-effects", title, f"{title}, averaged over the other settings. {said}.", build, layouts)


def _effect_row(name: str, row: Row, metric: str) -> Row:
    low, high = row["interval"] or (row["mean"], row["mean"])
    words = f"{row['value']} gives {number_format.value(metric, row['mean'])}"
    span = (
        f" (95{number_format.SPACE}% interval {number_format.span(metric, row['interval'])})" if row["interval"] else ""
    )
    cells = f"{row['cells']} cell{'s' if row['cells'] != 1 else ''}"
    return {
        "value": str(row["value"]),
        "mean": row["mean"],
        "low": low,
        "high": high,
        "words": words + span,
        "tip": f"{name} {words}{span}, {cells}",
    }


def _effect_limits(rows: Sequence[Row]) -> tuple[float, float]:
    """All means, and of the intervals as much as goes half as far again."""
    means = [row["mean"] for row in rows]
    reach = max(max(means) - min(means), 1e-3 * abs(max(means, key=abs)))
    low = max(min(row["low"] for row in rows), min(means) - reach / 2)
    high = min(max(row["high"] for row in rows), max(means) + reach / 2)
    return low - 0.05 * reach, high + 0.05 * reach


def parallel(findings: Findings, search: Row) -> Chart:
    """Every cell as a line: its value on each setting's axis, and at the right what it reached."""
    metric, limits = findings_view.metric(findings), phrasing.limits(findings)
    names = phrasing.short_names(list(search["space"]))
    axes = [*names.values(), metric]
    ordered = phrasing.ranked(search, metric)
    points, labels = _parallel_points(search, ordered, names, metric, limits)
    best = [f"{cell['name']}, {phrasing.settings_words(cell['settings'])}" for cell in ordered[:3]]
    said = f"One line for each of {len(ordered)} cells across {', '.join(axes)}. The best: {'; '.join(best)}."

    def build(layout: Layout, sheets: Sheets) -> Built:
        wide = layout == "wide"
        width = 640 if wide else 270
        x = alt.X(
            "axis:N",
            sort=axes,
            scale=alt.Scale(type="point", padding=0.35),
            axis=alt.Axis(
                title=None, orient="top", labelAngle=0, ticks=False, domain=False, grid=False, labelPadding=8
            ),
        )
        y = alt.Y("at:Q", scale=alt.Scale(domain=[-0.06, 1.06], nice=False), axis=None)
        fates = [row["kind"] for row in points]
        hue, _ = _looks(fates)
        there = [fate for fate in FATES if fate in fates]
        words = [FATES[fate][0] for fate in there]
        dash = alt.StrokeDash(
            "fate:N", scale=alt.Scale(domain=words, range=[DASHES[fate] for fate in there]), legend=None
        )
        poles = sheets.chart([{"axis": axis, "from": -0.04, "to": 1.04} for axis in axes])
        others = sheets.chart([row for row in points if row["kind"] != "winner"])
        winner = sheets.chart([row for row in points if row["kind"] == "winner"])
        beside = [sheets.chart([row for row in labels if (row["axis"] == metric) == last]) for last in (False, True)]
        strong = alt.Opacity("strong:Q", scale=None, legend=None)
        layers = [
            poles.mark_rule(aria=False, color=style.GRID, strokeWidth=2).encode(
                x=x, y=alt.Y("from:Q", scale=alt.Scale(domain=[-0.06, 1.06], nice=False), axis=None), y2="to:Q"
            ),
            others.mark_line(aria=False, strokeWidth=1.5).encode(
                x=x, y=y, detail="cell:N", color=hue, strokeDash=dash, opacity=strong
            ),
            others.mark_point(size=18, filled=True).encode(x=x, y=y, color=hue, description="tip:N", opacity=strong),
            winner.mark_line(aria=False, strokeWidth=3.2).encode(x=x, y=y, detail="cell:N", color=hue),
            winner.mark_point(size=60, filled=True, opacity=1).encode(x=x, y=y, color=hue, description="tip:N"),
            beside[0]
            .mark_text(aria=False, align="right", dx=-9, fontSize=11, color=style.INK)
            .encode(x=x, y=y, text="said:N"),
            beside[1]
            .mark_text(aria=False, align="left", dx=9, fontSize=11, color=style.INK)
            .encode(x=x, y=y, text="said:N"),
        ]
        return alt.layer(*layers).properties(width=width, height=300 if wide else 260)

    return Chart("search-parallel", "Every cell across the settings", said, build)


def _parallel_points(
    search: Row, ordered: Sequence[Row], names: dict[str, str], metric: str, limits: tuple[float, float]
) -> tuple[list[Row], list[Row]]:
    """Where each cell crosses each axis, and what is written beside the axes."""
    points: list[Row] = []
    labels: list[Row] = []
    for setting, name in names.items():
        places, written = _places(search, setting)
        labels += [{"axis": name, "at": at, "said": said} for said, at in written.items()]
        for rank, cell in enumerate(ordered):
            aside = JITTER * (0.5 - rank / max(1, len(ordered) - 1)) if len(ordered) > 1 else 0.0
            points.append({"axis": name, "at": places(cell["settings"][setting]) + aside, "rank": rank})
    is_low = metric in number_format.LOWER_IS_BETTER
    for rank, cell in enumerate(ordered):
        if number_format.is_number(cell["mean"]):
            share = (min(max(cell["mean"], limits[0]), limits[1]) - limits[0]) / (limits[1] - limits[0])
            points.append({"axis": metric, "at": 1 - share if is_low else share, "rank": rank})
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = limits[0] + (1 - share if is_low else share) * (limits[1] - limits[0])
        labels.append({"axis": metric, "at": share, "said": number_format.value(metric, value)})
    for point in points:
        rank = point.pop("rank")
        cell = ordered[rank]
        fate = _fate(search, cell)
        point["strong"] = round(WEAKEST + (1 - WEAKEST) * (1 - rank / len(ordered)), 3)
        point |= {"cell": cell["name"], "kind": fate, "fate": FATES[fate][0], "tip": _tip(search, cell, metric)}
    return points, labels


def _places(search: Row, setting: str) -> tuple[Any, dict[str, float]]:
    """From a value to its place on the axis, and the places of the words beside it."""
    axis = search["space"][setting]
    if isinstance(axis, dict):
        scale = math.log if axis["log"] else float
        low, high = scale(axis["low"]), scale(axis["high"])
        marks = [
            axis["low"],
            math.sqrt(axis["low"] * axis["high"]) if axis["log"] else (axis["low"] + axis["high"]) / 2,
        ]
        marks = [*marks, axis["high"]]
        return (
            lambda value: (scale(value) - low) / (high - low),
            {f"{mark:.3g}": (scale(mark) - low) / (high - low) for mark in marks},
        )
    values = sorted(axis) if all(number_format.is_number(one) for one in axis) else list(axis)
    last = max(1, len(values) - 1)
    middle = 0.5 if len(values) == 1 else 0.0
    places = {number_format.plain(value): middle + at / last for at, value in enumerate(values)}
    written = places if len(places) <= MOST_VALUES else dict([*list(places.items())[:1], *list(places.items())[-1:]])
    return (lambda value: places[number_format.plain(value)]), written
