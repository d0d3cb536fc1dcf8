"""Charts of a search: its history, the effect of each setting, and parallel coordinates of all points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from headtohead.config.search import NumericRange
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, SearchFindings, SearchHistoryEntry, SearchPointResult, SettingEffect
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    FILLED_LEGEND,
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_score_axis_labels,
)
from headtohead.search import phrasing

STATUS_STYLES: dict[str, tuple[str, str, str, list[int]]] = {
    "winner": ("winner", "diamond", "#0072b2", [1, 0]),
    "finished": ("all seeds", "circle", style.BASELINE_COLOR, [1, 0]),
    "pruned": ("pruned", "triangle-down", "#e69f00", [5, 3]),
    "unfinished": ("unfinished", "square", "#cc79a7", [2, 2]),
    "failed": ("failed", "cross", "#b4451f", [1, 3]),
}
"""status of a point: label, shape, color and dash"""
ChartRow = dict[str, Any]
AXIS_JITTER = 0.09
"""points with the same value are spread over this fraction of an axis"""
MAX_AXIS_LABELS = 7
MIN_LINE_OPACITY = 0.25
"""opacity of the worst point's line"""


def build_search_charts(findings: Findings) -> list[Chart]:
    """Return the search charts that have data to show."""
    search = findings.search
    if search is None or not any(point.mean is not None for point in search.points):
        return []
    charts = [build_history_chart(findings, search), build_parallel_coordinates_chart(findings, search)]
    if search.effects:
        charts.insert(1, build_effects_chart(findings, search))
    return charts


def _get_point_status(search: SearchFindings, point: SearchPointResult) -> str:
    """Return the status of a point, or "winner"."""
    return "winner" if point.point == search.winner else str(point.status)


def _build_status_encodings(rows: Sequence[ChartRow]) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Return color, shape and dash encodings for the statuses that occur in `rows`."""
    present = [status for status in STATUS_STYLES if any(row["kind"] == status for row in rows)]
    labels, *styles = zip(*(STATUS_STYLES[status] for status in present), strict=True)
    shape, color, dash = (alt.Scale(domain=list(labels), range=list(values)) for values in styles)
    return (
        alt.Color("outcome:N", scale=color, legend=FILLED_LEGEND),
        alt.Shape("outcome:N", scale=shape, legend=FILLED_LEGEND),
        alt.StrokeDash("outcome:N", scale=dash, legend=None),
    )


def _format_tooltip(point: SearchPointResult, metric: str) -> str:
    """Return a point's tooltip: settings, score, number of seeds and status."""
    description = f"{point.name} ({phrasing.format_settings(point.settings)}): "
    if point.mean is None:
        return description + str(point.message or point.status)
    score, seeds = number_format.format_score(metric, point.mean), phrasing.format_seed_count(len(point.scores))
    return f"{description}{score}, {seeds}, {point.status}"


def build_history_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Plot each point and the best so far against trials, with the winner's and the baseline's fresh-seed means."""
    metric, (low, high) = findings_view.get_metric(findings), phrasing.compute_axis_limits(findings)
    rows = [_make_history_row(search, entry, metric, (low, high)) for entry in search.history]
    reference_levels = _make_reference_levels(search, merge_distance=0.07 * (high - low))
    first, last = (number_format.format_score(metric, search.history[index].best) for index in (0, -1))
    level_texts = [
        f" {level['name']}, fresh seeds: {number_format.format_score(metric, level['value'])}."
        for level in reference_levels
    ]
    description = (
        f"{metric.capitalize()} on validation data, point by point over {search.history[-1].trials} trials. Best so "
        f"far: from {first} to {last}.{''.join(level_texts)}"
    )

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw every point at the number of trials so far, the best mean, and the reference levels."""
        is_wide = layout == "wide"
        width = 590 if is_wide else 270
        data, levels = datasets.chart(rows), datasets.chart(reference_levels)
        trials_axis = alt.Axis(title="trials so far", grid=False, format=",~r", tickMinStep=1)
        x_scale = alt.Scale(domain=[0, 1.02 * max(row["trials"] for row in rows)], nice=False)
        x = alt.X("trials:Q", scale=x_scale, axis=trials_axis)
        axis = alt.Axis(title=f"{metric} on validation data", tickCount=5, labelExpr=build_score_axis_labels(metric))
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        value, best, position = (alt.Y(f"{field}:Q", scale=scale, axis=axis) for field in ("value", "best", "position"))
        color, shape, _ = _build_status_encodings(rows)
        muted = style.MUTED_TEXT_COLOR
        rules = levels.mark_rule(aria=False, strokeDash=[4, 4], color=muted)
        labels = levels.mark_text(
            aria=False, align="left", baseline="middle", dy=0 if is_wide else -6, fontSize=11, color=muted
        )
        line = data.mark_line(aria=False, interpolate="step-after", strokeWidth=2, color="#0072b2", clip=True)
        points = data.mark_point(size=70, filled=True, opacity=0.95)
        layers = [
            rules.encode(y=value),
            labels.encode(x=alt.value(width + 6 if is_wide else 2), y=value, text="label:N"),
            line.encode(x=x, y=best),
            points.encode(x=x, y=position, color=color, shape=shape, description="tip:N"),
        ]
        return alt.layer(*layers).properties(width=width, height=250 if is_wide else 220)

    return Chart("search-history", "Search history", description, build)


def _make_history_row(
    search: SearchFindings, history_entry: SearchHistoryEntry, metric: str, limits: tuple[float, float]
) -> ChartRow:
    """Return a point's chart row, clipped to the axis limits."""
    point = search.points[history_entry.point]
    status = _get_point_status(search, point)
    clipped = min(max(history_entry.mean, limits[0]), limits[1])
    note = " (outside the axis limits)" if clipped != history_entry.mean else ""
    values = {"trials": history_entry.trials, "position": clipped, "best": history_entry.best}
    tip = _format_tooltip(point, metric) + note
    return {**values, "kind": status, "outcome": STATUS_STYLES[status][0], "tip": tip}


def _make_reference_levels(search: SearchFindings, merge_distance: float) -> list[ChartRow]:
    """Return the winner's and the baseline's fresh-seed means. Lines that are close together share a label."""
    bias = search.selection_bias
    if not bias:
        return []
    description = {"winner": "winner, fresh seeds", "baseline": "baseline, fresh seeds"}
    if abs(bias.fresh - bias.baseline) < merge_distance:
        description = {"winner": "both, fresh seeds", "baseline": ""}
    values = {"winner": bias.fresh, "baseline": bias.baseline}
    return [{"name": name, "label": description[name], "value": value} for name, value in values.items()]


def build_effects_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Plot the main effect of each setting, one panel per setting."""
    metric = findings_view.get_metric(findings)
    names = phrasing.shorten_setting_names(list(search.space))
    panels = {
        names[setting]: [_make_effect_row(names[setting], row, metric) for row in rows]
        for setting, rows in search.effects.items()
    }
    all_rows = [row for rows in panels.values() for row in rows]
    low, high = _compute_effect_limits(all_rows)
    description = "; ".join(
        f"{name}: " + ", ".join(row["description"] for row in rows) for name, rows in panels.items()
    )

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw one panel per setting with the effect of each value."""
        panel_charts = []
        for name, rows in panels.items():
            clipped = [{**row, "low": max(row["low"], low), "high": min(row["high"], high)} for row in rows]
            data = datasets.chart(clipped)
            # Break a bin's label into two lines.
            lines = "split(replace(datum.label, ' to ', ' to|'), '|')"
            label = alt.Axis(title=None, grid=False, labelAngle=0, labelOverlap=False, labelExpr=lines)
            x = alt.X("value:N", sort=[row["value"] for row in rows], axis=label)
            axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(metric))
            scale = alt.Scale(domain=[low, high], nice=False, zero=False)
            y_low, y_mean = (alt.Y(f"{field}:Q", scale=scale, axis=axis) for field in ("low", "mean"))
            rules = data.mark_rule(aria=False, strokeWidth=2, color=style.VARIANT_COLORS[0])
            points = data.mark_point(size=70, filled=True, opacity=1, color=style.VARIANT_COLORS[0])
            layers = [rules.encode(x=x, y=y_low, y2="high:Q"), points.encode(x=x, y=y_mean, description="tip:N")]
            panel_charts.append(alt.layer(*layers).properties(title=name))
        return arrange_panels(panel_charts, row_spacing=70)

    columns = {1: 1, 2: 2}.get(len(panels), 3)
    layouts: dict[Layout, PanelGrid] = {
        "wide": PanelGrid({1: 420, 2: 320}.get(columns, 205), 170, columns, 4),
        "narrow": PanelGrid(270, 150, 1, 2),
    }
    title = f"{metric.capitalize()} on validation data for each setting"
    return Chart("search-effects", title, f"{title}, averaged over the other settings. {description}.", build, layouts)


def _make_effect_row(setting_name: str, effect: SettingEffect, metric: str) -> ChartRow:
    """Return the chart row for one setting value."""
    low, high = effect.interval or (effect.mean, effect.mean)
    text = f"{effect.value} gives {number_format.format_score(metric, effect.mean)}"
    if effect.interval:
        interval = number_format.format_score_interval(metric, effect.interval)
        text += f" (95{number_format.NO_BREAK_SPACE}% interval {interval})"
    tip = f"{setting_name} {text}, {effect.points} point{'s' if effect.points != 1 else ''}"
    values = {"value": str(effect.value), "mean": effect.mean, "low": low, "high": high}
    return {**values, "description": text, "tip": tip}


def _compute_effect_limits(rows: Sequence[ChartRow]) -> tuple[float, float]:
    """Return axis limits that include all means, and intervals up to half the means' range beyond them."""
    means = [row["mean"] for row in rows]
    mean_range = max(max(means) - min(means), 1e-3 * abs(max(means, key=abs)))
    low = max(min(row["low"] for row in rows), min(means) - mean_range / 2)
    high = min(max(row["high"] for row in rows), max(means) + mean_range / 2)
    return low - 0.05 * mean_range, high + 0.05 * mean_range


def build_parallel_coordinates_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Plot every point as a line across one axis per setting, with its score on the last axis."""
    metric, limits = findings_view.get_metric(findings), phrasing.compute_axis_limits(findings)
    names = phrasing.shorten_setting_names(list(search.space))
    axes = [*names.values(), metric]
    ranked_points = phrasing.rank_points(search, metric)
    marks, labels = _make_parallel_coordinates(search, ranked_points, names, metric, limits)
    best_points = [f"{point.name}, {phrasing.format_settings(point.settings)}" for point in ranked_points[:3]]
    description = (
        f"One line for each of {len(ranked_points)} points across {', '.join(axes)}. "
        f"The best: {'; '.join(best_points)}."
    )

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw each point as a line across the axes of all settings, with the winner on top."""
        is_wide = layout == "wide"
        width = 640 if is_wide else 270
        header = alt.Axis(title=None, orient="top", labelAngle=0, ticks=False, domain=False, grid=False, labelPadding=8)
        x = alt.X("axis:N", sort=axes, scale=alt.Scale(type="point", padding=0.35), axis=header)
        y_scale = alt.Scale(domain=[-0.06, 1.06], nice=False)
        y, y_from = (alt.Y(f"{field}:Q", scale=y_scale, axis=None) for field in ("position", "from"))
        color, _, dash = _build_status_encodings(marks)
        axis_lines = datasets.chart([{"axis": axis, "from": -0.04, "to": 1.04} for axis in axes])
        axis_lines = axis_lines.mark_rule(aria=False, color=style.GRID_COLOR, strokeWidth=2)
        other_marks = datasets.chart([row for row in marks if row["kind"] != "winner"])
        other_lines, other_points = (
            other_marks.mark_line(aria=False, strokeWidth=1.5),
            other_marks.mark_point(size=18, filled=True),
        )
        winner = datasets.chart([row for row in marks if row["kind"] == "winner"])
        winner_line = winner.mark_line(aria=False, strokeWidth=3.2)
        winner_points = winner.mark_point(size=60, filled=True, opacity=1)
        opacity = alt.Opacity("strong:Q", scale=None, legend=None)
        layers = [
            axis_lines.encode(x=x, y=y_from, y2="to:Q"),
            other_lines.encode(x=x, y=y, detail="point:N", color=color, strokeDash=dash, opacity=opacity),
            other_points.encode(x=x, y=y, color=color, description="tip:N", opacity=opacity),
            winner_line.encode(x=x, y=y, detail="point:N", color=color),
            winner_points.encode(x=x, y=y, color=color, description="tip:N"),
        ]
        alignments: list[tuple[bool, Literal["left", "right"], int]] = [(False, "right", -9), (True, "left", 9)]
        for is_last, align, dx in alignments:  # scores are labelled on the right
            texts = datasets.chart([row for row in labels if (row["axis"] == metric) == is_last])
            texts = texts.mark_text(aria=False, align=align, dx=dx, fontSize=11, color=style.TEXT_COLOR)
            layers.append(texts.encode(x=x, y=y, text="label:N"))
        return alt.layer(*layers).properties(width=width, height=300 if is_wide else 260)

    return Chart("search-parallel", "All points across the settings", description, build)


def _make_parallel_coordinates(
    search: SearchFindings,
    ranked_points: Sequence[SearchPointResult],
    setting_names: dict[str, str],
    metric: str,
    limits: tuple[float, float],
) -> tuple[list[ChartRow], list[ChartRow]]:
    """Return the positions of the points on each axis, and the axis labels."""
    marks: list[ChartRow] = []
    labels: list[ChartRow] = []
    for setting, name in setting_names.items():
        to_position, axis_labels = _map_values_to_axis(search, setting)
        labels += [{"axis": name, "position": position, "label": label} for label, position in axis_labels.items()]
        for rank, point in enumerate(ranked_points):
            jitter = AXIS_JITTER * (0.5 - rank / max(1, len(ranked_points) - 1)) if len(ranked_points) > 1 else 0.0
            marks.append({"axis": name, "position": to_position(point.settings[setting]) + jitter, "rank": rank})
    is_low = metric in number_format.LOWER_IS_BETTER_METRICS
    for rank, point in enumerate(ranked_points):
        if point.mean is not None:
            fraction = (min(max(point.mean, limits[0]), limits[1]) - limits[0]) / (limits[1] - limits[0])
            marks.append({"axis": metric, "position": 1 - fraction if is_low else fraction, "rank": rank})
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = limits[0] + (1 - fraction if is_low else fraction) * (limits[1] - limits[0])
        labels.append({"axis": metric, "position": fraction, "label": number_format.format_score(metric, value)})
    for mark in marks:
        rank = mark.pop("rank")
        point = ranked_points[rank]
        status = _get_point_status(search, point)
        mark["strong"] = round(MIN_LINE_OPACITY + (1 - MIN_LINE_OPACITY) * (1 - rank / len(ranked_points)), 3)
        mark |= {"point": point.name, "kind": status, "outcome": STATUS_STYLES[status][0]}
        mark["tip"] = _format_tooltip(point, metric)
    return marks, labels


def _map_values_to_axis(search: SearchFindings, setting: str) -> tuple[Any, dict[str, float]]:
    """Return a function that maps values to axis positions, and the positions of the axis labels."""
    axis = search.space[setting]
    if isinstance(axis, NumericRange):
        scale = math.log if axis.log else float
        low, high = scale(axis.low), scale(axis.high)
        middle = math.sqrt(axis.low * axis.high) if axis.log else (axis.low + axis.high) / 2

        def to_position(value: Any) -> float:
            return (scale(value) - low) / (high - low)

        return to_position, {f"{value:.3g}": to_position(value) for value in (axis.low, middle, axis.high)}
    values = sorted(axis) if all(number_format.is_finite_number(value) for value in axis) else list(axis)
    max_index = max(1, len(values) - 1)
    offset = 0.5 if len(values) == 1 else 0.0
    positions = {number_format.format_setting(value): offset + index / max_index for index, value in enumerate(values)}
    items = list(positions.items())
    axis_labels = positions if len(items) <= MAX_AXIS_LABELS else dict([items[0], items[-1]])
    return (lambda value: positions[number_format.format_setting(value)]), axis_labels
