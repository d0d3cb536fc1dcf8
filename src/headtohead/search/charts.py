"""Charts of a search: its history, the main effect of each setting, and parallel coordinates of all points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from headtohead.config.tables.search import NumericRange
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
from headtohead.search.tables import rank_points

STATUS_STYLES: dict[str, tuple[str, str, str, list[int]]] = {
    "winner": ("winner", "diamond", "#0072b2", [1, 0]),
    "finished": ("all seeds", "circle", style.BASELINE_COLOR, [1, 0]),
    "pruned": ("pruned", "triangle-down", "#e69f00", [5, 3]),
    "unfinished": ("unfinished", "square", "#cc79a7", [2, 2]),
    "failed": ("failed", "cross", "#b4451f", [1, 3]),
}
"""label, shape, color and dash of each status of a point"""
ChartRow = dict[str, Any]
AXIS_JITTER = 0.09
"""points with the same value are spread over this fraction of an axis"""
MAX_AXIS_LABELS = 7
"""with more values, only the first and last value of a categorical axis are labeled"""
OUTLIER_FACTOR = 4
"""points farther from the best than this multiple of the median distance are drawn at the edge of the chart"""
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


def compute_score_axis_limits(findings: Findings) -> tuple[float, float]:
    """Return the lowest and highest scores shown in a search's charts, so that outliers do not stretch the axis."""
    search = findings.search
    assert search is not None
    means = [point.mean for point in search.points if point.mean is not None]
    reference_levels = [search.selection_bias.fresh, search.selection_bias.baseline] if search.selection_bias else []
    lower_is_better = findings_view.get_metric(findings) in number_format.LOWER_IS_BETTER_METRICS
    best, *_ = ranked_means = sorted(means, reverse=not lower_is_better)
    median_distance = abs(ranked_means[len(ranked_means) // 2] - best)
    max_distance = OUTLIER_FACTOR * median_distance if median_distance > 0 else abs(best)
    inliers = [score for score in [*means, *reference_levels] if abs(score - best) <= max_distance]
    low, high = min(inliers), max(inliers)
    margin = 0.06 * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def _get_point_status(search: SearchFindings, point: SearchPointResult) -> str:
    """Return the status of a point, or "winner"."""
    return "winner" if point.point == search.winner else str(point.status)


def _build_point_status_encodings(rows: Sequence[ChartRow]) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Return color, shape and dash encodings for the statuses of the search points in `rows`."""
    present_statuses = [status for status in STATUS_STYLES if any(row["kind"] == status for row in rows)]
    labels, *ranges = zip(*(STATUS_STYLES[status] for status in present_statuses), strict=True)
    shape, color, dash = (alt.Scale(domain=list(labels), range=list(values)) for values in ranges)
    return (
        alt.Color("outcome:N", scale=color, legend=FILLED_LEGEND),
        alt.Shape("outcome:N", scale=shape, legend=FILLED_LEGEND),
        alt.StrokeDash("outcome:N", scale=dash, legend=None),
    )


def _format_tooltip(point: SearchPointResult, metric: str) -> str:
    """Return the tooltip of a point in the search charts: settings, score, number of seeds and status."""
    tooltip = f"{point.name} ({phrasing.format_settings(point.settings)}): "
    if point.mean is None:
        return tooltip + str(point.message or point.status)
    score, seeds = number_format.format_score(metric, point.mean), phrasing.format_seed_count(len(point.scores))
    return f"{tooltip}{score}, {seeds}, {point.status}"


def build_history_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Plot each point and the best so far against trials, with the winner's and the baseline's fresh-seed means."""
    metric, (low, high) = findings_view.get_metric(findings), compute_score_axis_limits(findings)
    rows = [_make_history_row(search, entry, metric, (low, high)) for entry in search.history]
    reference_levels = _make_reference_levels(search, merge_distance=0.07 * (high - low))
    first_best, last_best = (number_format.format_score(metric, search.history[index].best) for index in (0, -1))
    level_sentences = [
        f" {level['name']}, fresh seeds: {number_format.format_score(metric, level['value'])}."
        for level in reference_levels
    ]
    alt_text = (
        f"{metric.capitalize()} on validation data, point by point over {search.history[-1].trials} trials. Best so "
        f"far: from {first_best} to {last_best}.{''.join(level_sentences)}"
    )

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw every point at the number of trials so far, the best mean, and the reference levels."""
        is_wide = layout == "wide"
        width = 590 if is_wide else 270
        data, levels = datasets.chart(rows), datasets.chart(reference_levels)
        trials_axis = alt.Axis(title="trials so far", grid=False, format=",~r", tickMinStep=1)
        x_scale = alt.Scale(domain=[0, 1.02 * max(row["trials"] for row in rows)], nice=False)
        x = alt.X("trials:Q", scale=x_scale, axis=trials_axis)
        axis = alt.Axis(title=f"{metric} on validation data", tickCount=5, labelExpr=build_score_axis_labels(metric))
        scale = alt.Scale(domain=[low, high], nice=False, zero=False)
        y_value, y_best, y_position = (
            alt.Y(f"{field}:Q", scale=scale, axis=axis) for field in ("value", "best", "position")
        )
        color, shape, _ = _build_point_status_encodings(rows)
        muted_color = style.MUTED_TEXT_COLOR
        rules = levels.mark_rule(aria=False, strokeDash=[4, 4], color=muted_color)
        labels = levels.mark_text(
            aria=False, align="left", baseline="middle", dy=0 if is_wide else -6, fontSize=11, color=muted_color
        )
        line = data.mark_line(aria=False, interpolate="step-after", strokeWidth=2, color="#0072b2", clip=True)
        points = data.mark_point(size=70, filled=True, opacity=0.95)
        layers = [
            rules.encode(y=y_value),
            labels.encode(x=alt.value(width + 6 if is_wide else 2), y=y_value, text="label:N"),
            line.encode(x=x, y=y_best),
            points.encode(x=x, y=y_position, color=color, shape=shape, description="tip:N"),
        ]
        return alt.layer(*layers).properties(width=width, height=250 if is_wide else 220)

    return Chart("search-history", "Search history", alt_text, build_altair_chart)


def _make_history_row(
    search: SearchFindings, history_entry: SearchHistoryEntry, metric: str, limits: tuple[float, float]
) -> ChartRow:
    """Return the row of a point in the history chart, clipped to the axis limits."""
    point = search.points[history_entry.point]
    status = _get_point_status(search, point)
    clipped_mean = min(max(history_entry.mean, limits[0]), limits[1])
    note = " (outside the axis limits)" if clipped_mean != history_entry.mean else ""
    return {
        "trials": history_entry.trials,
        "position": clipped_mean,
        "best": history_entry.best,
        "kind": status,
        "outcome": STATUS_STYLES[status][0],
        "tip": _format_tooltip(point, metric) + note,
    }


def _make_reference_levels(search: SearchFindings, merge_distance: float) -> list[ChartRow]:
    """Return the winner's and the baseline's fresh-seed means as lines of the history chart.

    Lines that are close together share a label.
    """
    bias = search.selection_bias
    if not bias:
        return []
    labels = {"winner": "winner, fresh seeds", "baseline": "baseline, fresh seeds"}
    if abs(bias.fresh - bias.baseline) < merge_distance:
        labels = {"winner": "both, fresh seeds", "baseline": ""}
    means = {"winner": bias.fresh, "baseline": bias.baseline}
    return [{"name": name, "label": labels[name], "value": mean} for name, mean in means.items()]


def build_effects_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Plot the main effect of each setting, one panel per setting."""
    metric = findings_view.get_metric(findings)
    short_names = phrasing.shorten_setting_names(list(search.space))
    rows_by_panel = {
        short_names[setting]: [_make_effect_row(short_names[setting], effect, metric) for effect in effects]
        for setting, effects in search.effects.items()
    }
    low, high = _compute_effect_axis_limits([row for rows in rows_by_panel.values() for row in rows])
    description = "; ".join(
        f"{name}: " + ", ".join(row["description"] for row in rows) for name, rows in rows_by_panel.items()
    )

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw one panel per setting with the effect of each value."""
        panel_charts = []
        for name, rows in rows_by_panel.items():
            clipped_rows = [{**row, "low": max(row["low"], low), "high": min(row["high"], high)} for row in rows]
            data = datasets.chart(clipped_rows)
            # Break a bin's label into two lines.
            label_lines = "split(replace(datum.label, ' to ', ' to|'), '|')"
            value_axis = alt.Axis(title=None, grid=False, labelAngle=0, labelOverlap=False, labelExpr=label_lines)
            x = alt.X("value:N", sort=[row["value"] for row in rows], axis=value_axis)
            axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(metric))
            scale = alt.Scale(domain=[low, high], nice=False, zero=False)
            y_low, y_mean = (alt.Y(f"{field}:Q", scale=scale, axis=axis) for field in ("low", "mean"))
            rules = data.mark_rule(aria=False, strokeWidth=2, color=style.VARIANT_COLORS[0])
            points = data.mark_point(size=70, filled=True, opacity=1, color=style.VARIANT_COLORS[0])
            layers = [rules.encode(x=x, y=y_low, y2="high:Q"), points.encode(x=x, y=y_mean, description="tip:N")]
            panel_charts.append(alt.layer(*layers).properties(title=name))
        return arrange_panels(panel_charts, row_spacing=70)

    num_columns = {1: 1, 2: 2}.get(len(rows_by_panel), 3)
    layouts: dict[Layout, PanelGrid] = {
        "wide": PanelGrid({1: 420, 2: 320}.get(num_columns, 205), 170, num_columns, 4),
        "narrow": PanelGrid(270, 150, 1, 2),
    }
    title = f"{metric.capitalize()} on validation data for each setting"
    alt_text = f"{title}, averaged over the other settings. {description}."
    return Chart("search-effects", title, alt_text, build_altair_chart, layouts)


def _make_effect_row(setting_name: str, effect: SettingEffect, metric: str) -> ChartRow:
    """Return the row of a setting's value in the effects chart."""
    low, high = effect.interval or (effect.mean, effect.mean)
    description = f"{effect.value} gives {number_format.format_score(metric, effect.mean)}"
    if effect.interval:
        interval = number_format.format_score_interval(metric, effect.interval)
        description += f" (95{number_format.NO_BREAK_SPACE}% interval {interval})"
    tooltip = f"{setting_name} {description}, {effect.points} point{'s' if effect.points != 1 else ''}"
    estimate = {"value": str(effect.value), "mean": effect.mean, "low": low, "high": high}
    return {**estimate, "description": description, "tip": tooltip}


def _compute_effect_axis_limits(rows: Sequence[ChartRow]) -> tuple[float, float]:
    """Return the score limits of the effects chart: all means, and intervals up to half their range beyond them."""
    means = [row["mean"] for row in rows]
    mean_range = max(max(means) - min(means), 1e-3 * abs(max(means, key=abs)))
    low = max(min(row["low"] for row in rows), min(means) - mean_range / 2)
    high = min(max(row["high"] for row in rows), max(means) + mean_range / 2)
    return low - 0.05 * mean_range, high + 0.05 * mean_range


def build_parallel_coordinates_chart(findings: Findings, search: SearchFindings) -> Chart:
    """Plot every point as a line across one axis per setting, with its score on the last axis."""
    metric, limits = findings_view.get_metric(findings), compute_score_axis_limits(findings)
    short_names = phrasing.shorten_setting_names(list(search.space))
    axes = [*short_names.values(), metric]
    ranked_points = rank_points(search, metric)
    marks, labels = _make_parallel_coordinates(search, ranked_points, short_names, metric, limits)
    best_points = [f"{point.name}, {phrasing.format_settings(point.settings)}" for point in ranked_points[:3]]
    alt_text = (
        f"One line for each of {len(ranked_points)} points across {', '.join(axes)}. "
        f"The best: {'; '.join(best_points)}."
    )

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw each point as a line across the axes of all settings, with the winner on top."""
        is_wide = layout == "wide"
        width = 640 if is_wide else 270
        header = alt.Axis(title=None, orient="top", labelAngle=0, ticks=False, domain=False, grid=False, labelPadding=8)
        x = alt.X("axis:N", sort=axes, scale=alt.Scale(type="point", padding=0.35), axis=header)
        y_scale = alt.Scale(domain=[-0.06, 1.06], nice=False)
        y, y_from = (alt.Y(f"{field}:Q", scale=y_scale, axis=None) for field in ("position", "from"))
        color, _, dash = _build_point_status_encodings(marks)
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
        for is_last, align, dx in alignments:  # scores are labeled on the right
            axis_labels = datasets.chart([row for row in labels if (row["axis"] == metric) == is_last])
            axis_labels = axis_labels.mark_text(aria=False, align=align, dx=dx, fontSize=11, color=style.TEXT_COLOR)
            layers.append(axis_labels.encode(x=x, y=y, text="label:N"))
        return alt.layer(*layers).properties(width=width, height=300 if is_wide else 260)

    return Chart("search-parallel", "All points across the settings", alt_text, build_altair_chart)


def _make_parallel_coordinates(
    search: SearchFindings,
    ranked_points: Sequence[SearchPointResult],
    setting_names: dict[str, str],
    metric: str,
    limits: tuple[float, float],
) -> tuple[list[ChartRow], list[ChartRow]]:
    """Return the positions of the points on each axis of the parallel coordinates, and the axis labels."""
    marks: list[ChartRow] = []
    labels: list[ChartRow] = []
    for setting, name in setting_names.items():
        to_position, axis_labels = _map_values_to_axis(search, setting)
        labels += [{"axis": name, "position": position, "label": label} for label, position in axis_labels.items()]
        for rank, point in enumerate(ranked_points):
            jitter = AXIS_JITTER * (0.5 - rank / max(1, len(ranked_points) - 1)) if len(ranked_points) > 1 else 0.0
            marks.append({"axis": name, "position": to_position(point.settings[setting]) + jitter, "rank": rank})
    lower_is_better = metric in number_format.LOWER_IS_BETTER_METRICS
    for rank, point in enumerate(ranked_points):
        if point.mean is not None:
            fraction = (min(max(point.mean, limits[0]), limits[1]) - limits[0]) / (limits[1] - limits[0])
            marks.append({"axis": metric, "position": 1 - fraction if lower_is_better else fraction, "rank": rank})
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        score = limits[0] + (1 - fraction if lower_is_better else fraction) * (limits[1] - limits[0])
        labels.append({"axis": metric, "position": fraction, "label": number_format.format_score(metric, score)})
    for mark in marks:
        rank = mark.pop("rank")
        point = ranked_points[rank]
        status = _get_point_status(search, point)
        mark["strong"] = round(MIN_LINE_OPACITY + (1 - MIN_LINE_OPACITY) * (1 - rank / len(ranked_points)), 3)
        mark |= {"point": point.name, "kind": status, "outcome": STATUS_STYLES[status][0]}
        mark["tip"] = _format_tooltip(point, metric)
    return marks, labels


def _map_values_to_axis(search: SearchFindings, setting: str) -> tuple[Any, dict[str, float]]:
    """Return a function from a setting's values to positions on an axis of the parallel coordinates, and its labels."""
    axis = search.space[setting]
    if isinstance(axis, NumericRange):
        scale = math.log if axis.log else float
        low, high = scale(axis.low), scale(axis.high)
        middle = math.sqrt(axis.low * axis.high) if axis.log else (axis.low + axis.high) / 2

        def to_position(value: Any) -> float:
            return (scale(value) - low) / (high - low)

        return to_position, {f"{value:.3g}": to_position(value) for value in (axis.low, middle, axis.high)}
    is_numeric = all(number_format.is_finite_number(value) for value in axis)
    choices = sorted(axis) if is_numeric else list(axis)
    max_index = max(1, len(choices) - 1)
    offset = 0.5 if len(choices) == 1 else 0.0
    positions = {
        number_format.format_setting(choice): offset + index / max_index for index, choice in enumerate(choices)
    }
    labeled_positions = list(positions.items())
    is_crowded = len(labeled_positions) > MAX_AXIS_LABELS
    axis_labels = dict([labeled_positions[0], labeled_positions[-1]]) if is_crowded else positions
    return (lambda value: positions[number_format.format_setting(value)]), axis_labels
