"""Response curves of a tuned comparison: the validation scores of baseline and variants against each tuned setting."""

from __future__ import annotations

import math
from typing import Any

import altair as alt

from headtohead.experiment.schemas import SearchPointResult, TunedSide, TuningFindings
from headtohead.presentation import number_format
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_chart_encodings,
    build_score_axis_labels,
    draw_curve,
)
from headtohead.search.phrasing import shorten_setting_names

LOG_AXIS_RATIO = 5
"""positive values that span more than this factor are drawn on a logarithmic axis"""
ChartRow = dict[str, Any]


def build_response_chart(tuning: TuningFindings, metric: str) -> Chart | None:
    """Return one panel for each numeric setting, with a curve per variant; None without such a setting.

    A point of a curve is the best point of the search with this value.
    """
    short_names = shorten_setting_names(list(tuning.space))
    rows_by_setting = {short_names[setting]: _make_curve_rows(tuning, setting, metric) for setting in tuning.space}
    rows_by_panel = {name: rows for name, rows in rows_by_setting.items() if len({row["x"] for row in rows}) > 1}
    if not rows_by_panel:
        return None
    variants = [side.name for side in tuning.sides]
    optima = "; ".join(
        f"{side.name}: " + ", ".join(f"{short_names[setting]} {value}" for setting, value in side.settings.items())
        for side in tuning.sides
    )

    def build_altair_chart(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        """Draw the curves and intervals of all variants, and a ring around each chosen point."""
        panel_charts = []
        color, shape, dash = build_chart_encodings("side", variants)
        for name, rows in rows_by_panel.items():
            tried_values = [row["x"] for row in rows]
            is_log = min(tried_values) > 0 and max(tried_values) / min(tried_values) > LOG_AXIS_RATIO
            scale = alt.Scale(type="log" if is_log else "linear", nice=False, padding=12)
            ticks = sorted(set(tried_values))
            x = alt.X("x:Q", scale=scale, axis=alt.Axis(title=name, values=ticks, format="~g", grid=False))

            def encode_score(field: str) -> alt.Y:
                axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(metric))
                return alt.Y(field, scale=alt.Scale(zero=False, padding=8), axis=axis)

            curve = draw_curve(datasets.chart(rows), x, encode_score, color=color, shape=shape, strokeDash=dash)
            chosen_points = datasets.chart([row for row in rows if row["chosen"]])
            rings = chosen_points.mark_point(aria=False, size=220, filled=False, strokeWidth=2)
            panel_charts.append(alt.layer(*curve, rings.encode(x=x, y=encode_score("mean:Q"), color=color)))
        return arrange_panels(panel_charts)

    wide = PanelGrid(700, 260, 1, 4) if len(rows_by_panel) == 1 else PanelGrid(340, 220, 2, 4)
    layouts: dict[Layout, PanelGrid] = {"wide": wide, "narrow": PanelGrid(286, 200, 1, 2)}
    title = f"{metric.capitalize()} on validation data against the tuned settings"
    return Chart("responses", title, f"{title}. Chosen: {optima}.", build_altair_chart, layouts)


def _make_curve_rows(tuning: TuningFindings, setting: str, metric: str) -> list[ChartRow]:
    """Return the points of the response curves: for each variant and value of a setting, the best point."""
    rows = []
    for side in tuning.sides:
        best_points: dict[float, SearchPointResult] = {}
        for point in side.points:
            value = point.settings[setting]
            if point.mean is None or not number_format.is_finite_number(value):
                continue
            assert isinstance(value, int | float)
            if value not in best_points or _is_better_point(point, best_points[value], metric):
                best_points[value] = point
        rows += [_make_curve_row(side, point, setting, metric) for _, point in sorted(best_points.items())]
    return rows


def _is_better_point(point: SearchPointResult, reference: SearchPointResult, metric: str) -> bool:
    """Return whether a point has a better mean score than a reference point."""
    difference = (point.mean or 0.0) - (reference.mean or 0.0)
    return difference < 0 if metric in number_format.LOWER_IS_BETTER_METRICS else difference > 0


def _make_curve_row(side: TunedSide, point: SearchPointResult, setting: str, metric: str) -> ChartRow:
    """Return the row of a point of a response curve, with its interval and tooltip."""
    low, high = point.interval or (point.mean, point.mean)
    is_finite = low is not None and high is not None and math.isfinite(low) and math.isfinite(high)
    return {
        "side": side.name,
        "x": point.settings[setting],
        "mean": point.mean,
        "low": low if is_finite else point.mean,
        "high": high if is_finite else point.mean,
        "chosen": point.point == side.point,
        "tip": f"{side.name}, {setting} {point.settings[setting]}: {number_format.format_score(metric, point.mean)}",
    }
