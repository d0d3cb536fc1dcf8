"""The pictures of a search: its history, each setting's effect, and all cells as lines across the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from headtohead.config.search import NumericRange
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, SearchFindings, SearchHistoryEntry, SearchPointResult, SettingEffect
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    build_score_label_expression,
)
from headtohead.search import phrasing

STATUS_STYLES: dict[str, tuple[str, str, str]] = {
    "winner": ("winner", "diamond", "#0072b2"),
    "finished": ("all seeds", "circle", style.BASELINE_COLOR),
    "pruned": ("given up early", "triangle-down", "#e69f00"),
    "unfinished": ("unfinished", "square", "#cc79a7"),
    "failed": ("failed", "cross", "#b4451f"),
}
"""what became of a cell: its words, shape and colour"""
STATUS_DASHES = {"winner": [1, 0], "finished": [1, 0], "pruned": [5, 3], "unfinished": [2, 2], "failed": [1, 3]}
ChartRow = dict[str, Any]
AXIS_JITTER = 0.09
"""cells with the same value are drawn beside each other, over this share of an axis"""
MAX_AXIS_LABELS = 7
MIN_LINE_OPACITY = 0.25
"""how strongly the line of the worst cell is drawn"""


def build_search_charts(findings: Findings) -> list[Chart]:
    """Those for which there is something to draw."""
    search = findings.search
    if search is None or not any(cell.mean is not None for cell in search.points):
        return []
    made = [build_history_chart(findings, search), build_parallel_coordinates_chart(findings, search)]
    if search.effects:
        made.insert(1, build_effects_chart(findings, search))
    return made


def _get_point_status(search: SearchFindings, point: SearchPointResult) -> str:
    return "winner" if point.point == search.winner else str(point.status)


def _build_status_encodings(statuses: Sequence[str]) -> tuple[alt.Color, alt.Shape]:
    """Colour and shape for the fates that occur."""
    there = [fate for fate in STATUS_STYLES if fate in statuses]
    words, shapes, hues = zip(*(STATUS_STYLES[fate] for fate in there), strict=True)
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    return (
        alt.Color("fate:N", scale=alt.Scale(domain=words, range=hues), legend=legend),
        alt.Shape("fate:N", scale=alt.Scale(domain=words, range=shapes), legend=legend),
    )


def _format_tooltip(point: SearchPointResult, metric: str) -> str:
    said = f"{point.name} ({phrasing.format_settings(point.settings)}): "
    if point.mean is None:
        return said + str(point.message or point.status)
    seeds = len(point.scores)
    return (
        said
        + f"{number_format.format_score(metric, point.mean)}, {seeds} seed{'s' if seeds != 1 else ''}, {point.status}"
    )


def build_history_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Each cell against the trials so far, the best so far, and where winner and baseline stand with fresh seeds."""
    metric, (low, high) = findings_view.get_metric(findings), phrasing.compute_axis_limits(findings)
    rows = [_make_history_row(search, at, metric, (low, high)) for at in search.history]
    lines = _make_reference_levels(search, merge_distance=0.07 * (high - low))
    first, last = search.history[0], search.history[-1]
    said = (
        f"{metric.capitalize()} on validation data, cell by cell over {last.trials} trials. Best so far: from "
        f"{number_format.format_score(metric, first.best)} to {number_format.format_score(metric, last.best)}. "
        + " ".join(
            f"{line['name']}, fresh seeds: {number_format.format_score(metric, line['value'])}." for line in lines
        )
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        wide = layout == "wide"
        width = 590 if wide else 270
        data = sheets.chart(rows)
        most = max(row["trials"] for row in rows)
        x = alt.X("trials:Q", scale=alt.Scale(domain=[0, most * 1.02], nice=False), axis=_build_trials_axis())
        axis = alt.Axis(
            title=f"{metric} on validation data", tickCount=5, labelExpr=build_score_label_expression(metric)
        )
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        hue, shape = _build_status_encodings([row["kind"] for row in rows])
        levels = sheets.chart(lines)
        layers = [
            levels.mark_rule(aria=False, strokeDash=[4, 4], color=style.MUTED_TEXT_COLOR).encode(
                y=alt.Y("value:Q", scale=scale, axis=axis)
            ),
            levels.mark_text(
                aria=False,
                align="left",
                dy=0 if wide else -6,
                fontSize=11,
                color=style.MUTED_TEXT_COLOR,
                baseline="middle",
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


def _build_trials_axis() -> alt.Axis:
    return alt.Axis(title="trials so far", grid=False, format=",~r", tickMinStep=1)


def _make_history_row(
    search: SearchFindings, history_entry: SearchHistoryEntry, metric: str, limits: tuple[float, float]
) -> ChartRow:
    cell = search.points[history_entry.point]
    fate = _get_point_status(search, cell)
    inside = min(max(history_entry.mean, limits[0]), limits[1])
    beyond = " (further off than the picture shows)" if inside != history_entry.mean else ""
    row = {
        "trials": history_entry.trials,
        "at": inside,
        "best": history_entry.best,
        "kind": fate,
        "fate": STATUS_STYLES[fate][0],
    }
    return {**row, "tip": _format_tooltip(cell, metric) + beyond}


def _make_reference_levels(search: SearchFindings, merge_distance: float) -> list[ChartRow]:
    """Where winner and baseline stand with fresh seeds. Two lines that lie close together share their words."""
    found = search.selection_bias
    if not found:
        return []
    said = {"winner": "winner, fresh seeds", "baseline": "baseline, fresh seeds"}
    if abs(found.fresh - found.baseline) < merge_distance:
        said = {"winner": "both, fresh seeds", "baseline": ""}
    values = {"winner": found.fresh, "baseline": found.baseline}
    return [{"name": name, "said": said[name], "value": value} for name, value in values.items()]


def build_effects_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Each setting by itself: what its values give on average over the others."""
    metric = findings_view.get_metric(findings)
    names = phrasing.shorten_setting_names(list(search.space))
    panels = {
        names[setting]: [_make_effect_row(names[setting], row, metric) for row in rows]
        for setting, rows in search.effects.items()
    }
    every = [row for rows in panels.values() for row in rows]
    low, high = _compute_effect_limits(every)
    said = "; ".join(f"{name}: " + ", ".join(row["words"] for row in rows) for name, rows in panels.items())

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        made = []
        for name, rows in panels.items():
            data = sheets.chart([{**row, "low": max(row["low"], low), "high": min(row["high"], high)} for row in rows])
            # A piece of a range is written on two lines.
            lines = "split(replace(datum.label, ' to ', ' to|'), '|')"
            label = alt.Axis(title=None, grid=False, labelAngle=0, labelOverlap=False, labelExpr=lines)
            x = alt.X("value:N", sort=[row["value"] for row in rows], axis=label)
            axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_label_expression(metric))
            scale = alt.Scale(domain=[low, high], nice=False, zero=False)
            y = alt.Y("mean:Q", scale=scale, axis=axis)
            layers = [
                data.mark_rule(aria=False, strokeWidth=2, color=style.VARIANT_COLORS[0]).encode(
                    x=x, y=alt.Y("low:Q", scale=scale, axis=axis), y2="high:Q"
                ),
                data.mark_point(size=70, filled=True, opacity=1, color=style.VARIANT_COLORS[0]).encode(
                    x=x, y=y, description="tip:N"
                ),
            ]
            made.append(alt.layer(*layers).properties(title=name))
        return alt.concat(*made, bounds="flush", spacing=alt.RowColnumber(row=70, column=58))

    columns = {1: 1, 2: 2}.get(len(panels), 3)
    layouts: dict[Layout, PanelGrid] = {
        "wide": PanelGrid({1: 420, 2: 320}.get(columns, 205), 170, columns, 4),
        "narrow": PanelGrid(270, 150, 1, 2),
    }
    title = f"{metric.capitalize()} on validation data for each setting"
    return Chart("search-effects", title, f"{title}, averaged over the other settings. {said}.", build, layouts)


def _make_effect_row(setting_name: str, row: SettingEffect, metric: str) -> ChartRow:
    low, high = row.interval or (row.mean, row.mean)
    words = f"{row.value} gives {number_format.format_score(metric, row.mean)}"
    span = (
        f" (95{number_format.NO_BREAK_SPACE}% interval {number_format.format_score_interval(metric, row.interval)})"
        if row.interval
        else ""
    )
    cells = f"{row.points} cell{'s' if row.points != 1 else ''}"
    return {
        "value": str(row.value),
        "mean": row.mean,
        "low": low,
        "high": high,
        "words": words + span,
        "tip": f"{setting_name} {words}{span}, {cells}",
    }


def _compute_effect_limits(rows: Sequence[ChartRow]) -> tuple[float, float]:
    """All means, and of the intervals as much as goes half as far again."""
    means = [row["mean"] for row in rows]
    reach = max(max(means) - min(means), 1e-3 * abs(max(means, key=abs)))
    low = max(min(row["low"] for row in rows), min(means) - reach / 2)
    high = min(max(row["high"] for row in rows), max(means) + reach / 2)
    return low - 0.05 * reach, high + 0.05 * reach


def build_parallel_coordinates_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Every cell as a line: its value on each setting's axis, and at the right what it reached."""
    metric, limits = findings_view.get_metric(findings), phrasing.compute_axis_limits(findings)
    names = phrasing.shorten_setting_names(list(search.space))
    axes = [*names.values(), metric]
    ordered = phrasing.rank_points(search, metric)
    points, labels = _make_parallel_coordinates(search, ordered, names, metric, limits)
    best = [f"{cell.name}, {phrasing.format_settings(cell.settings)}" for cell in ordered[:3]]
    said = f"One line for each of {len(ordered)} cells across {', '.join(axes)}. The best: {'; '.join(best)}."

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
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
        hue, _ = _build_status_encodings(fates)
        there = [fate for fate in STATUS_STYLES if fate in fates]
        words = [STATUS_STYLES[fate][0] for fate in there]
        dash = alt.StrokeDash(
            "fate:N", scale=alt.Scale(domain=words, range=[STATUS_DASHES[fate] for fate in there]), legend=None
        )
        poles = sheets.chart([{"axis": axis, "from": -0.04, "to": 1.04} for axis in axes])
        others = sheets.chart([row for row in points if row["kind"] != "winner"])
        winner = sheets.chart([row for row in points if row["kind"] == "winner"])
        beside = [sheets.chart([row for row in labels if (row["axis"] == metric) == last]) for last in (False, True)]
        strong = alt.Opacity("strong:Q", scale=None, legend=None)
        layers = [
            poles.mark_rule(aria=False, color=style.GRID_COLOR, strokeWidth=2).encode(
                x=x, y=alt.Y("from:Q", scale=alt.Scale(domain=[-0.06, 1.06], nice=False), axis=None), y2="to:Q"
            ),
            others.mark_line(aria=False, strokeWidth=1.5).encode(
                x=x, y=y, detail="cell:N", color=hue, strokeDash=dash, opacity=strong
            ),
            others.mark_point(size=18, filled=True).encode(x=x, y=y, color=hue, description="tip:N", opacity=strong),
            winner.mark_line(aria=False, strokeWidth=3.2).encode(x=x, y=y, detail="cell:N", color=hue),
            winner.mark_point(size=60, filled=True, opacity=1).encode(x=x, y=y, color=hue, description="tip:N"),
            beside[0]
            .mark_text(aria=False, align="right", dx=-9, fontSize=11, color=style.TEXT_COLOR)
            .encode(x=x, y=y, text="said:N"),
            beside[1]
            .mark_text(aria=False, align="left", dx=9, fontSize=11, color=style.TEXT_COLOR)
            .encode(x=x, y=y, text="said:N"),
        ]
        return alt.layer(*layers).properties(width=width, height=300 if wide else 260)

    return Chart("search-parallel", "Every cell across the settings", said, build)


def _make_parallel_coordinates(
    search: SearchFindings,
    ranked_points: Sequence[SearchPointResult],
    setting_names: dict[str, str],
    metric: str,
    limits: tuple[float, float],
) -> tuple[list[ChartRow], list[ChartRow]]:
    """Where each cell crosses each axis, and what is written beside the axes."""
    points: list[ChartRow] = []
    labels: list[ChartRow] = []
    for setting, name in setting_names.items():
        places, written = _map_values_to_axis(search, setting)
        labels += [{"axis": name, "at": at, "said": said} for said, at in written.items()]
        for rank, cell in enumerate(ranked_points):
            aside = AXIS_JITTER * (0.5 - rank / max(1, len(ranked_points) - 1)) if len(ranked_points) > 1 else 0.0
            points.append({"axis": name, "at": places(cell.settings[setting]) + aside, "rank": rank})
    is_low = metric in number_format.LOWER_IS_BETTER_METRICS
    for rank, cell in enumerate(ranked_points):
        if cell.mean is not None:
            share = (min(max(cell.mean, limits[0]), limits[1]) - limits[0]) / (limits[1] - limits[0])
            points.append({"axis": metric, "at": 1 - share if is_low else share, "rank": rank})
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = limits[0] + (1 - share if is_low else share) * (limits[1] - limits[0])
        labels.append({"axis": metric, "at": share, "said": number_format.format_score(metric, value)})
    for point in points:
        rank = point.pop("rank")
        cell = ranked_points[rank]
        fate = _get_point_status(search, cell)
        point["strong"] = round(MIN_LINE_OPACITY + (1 - MIN_LINE_OPACITY) * (1 - rank / len(ranked_points)), 3)
        point |= {
            "cell": cell.name,
            "kind": fate,
            "fate": STATUS_STYLES[fate][0],
            "tip": _format_tooltip(cell, metric),
        }
    return points, labels


def _map_values_to_axis(search: SearchFindings, setting: str) -> tuple[Any, dict[str, float]]:
    """From a value to its place on the axis, and the places of the words beside it."""
    axis = search.space[setting]
    if isinstance(axis, NumericRange):
        scale = math.log if axis.log else float
        low, high = scale(axis.low), scale(axis.high)
        marks = [
            axis.low,
            math.sqrt(axis.low * axis.high) if axis.log else (axis.low + axis.high) / 2,
        ]
        marks = [*marks, axis.high]
        return (
            lambda value: (scale(value) - low) / (high - low),
            {f"{mark:.3g}": (scale(mark) - low) / (high - low) for mark in marks},
        )
    values = sorted(axis) if all(number_format.is_finite_number(one) for one in axis) else list(axis)
    last = max(1, len(values) - 1)
    middle = 0.5 if len(values) == 1 else 0.0
    places = {number_format.format_setting(value): middle + at / last for at, value in enumerate(values)}
    written = (
        places if len(places) <= MAX_AXIS_LABELS else dict([*list(places.items())[:1], *list(places.items())[-1:]])
    )
    return (lambda value: places[number_format.format_setting(value)]), written
