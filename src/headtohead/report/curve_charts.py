"""Charts of learning curves and of their differences from the baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

import altair as alt

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import CurvePoint
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_effect_axis_labels,
    build_score_axis_labels,
    build_step_axis,
    choose_log_ticks,
    draw_curve,
)
from headtohead.report.forest import OUTLIER_FACTOR

STEEP_START_RATIO = 3
"""the first evaluation is omitted if it is more than this many times the second"""
CurvesBySplit = dict[str, list[CurvePoint]]
YEncoding = Callable[[list[CurvePoint], str], alt.Y]


def build_learning_curves(findings: Findings) -> Chart | None:
    """Return one panel per split: the mean across seeds, with a band from the lowest to the highest seed."""
    metric = findings_view.get_metric(findings)
    curves = {
        split: drop_steep_start(points, metric)
        for split in findings_view.list_curve_splits(findings)
        if (points := findings_view.compute_learning_curves(findings, split))
    }
    if not curves:
        return None

    def format_value(value: float) -> str:
        return number_format.format_score(metric, value)

    def y(points: list[CurvePoint], field: str) -> alt.Y:
        """Return the y encoding: logarithmic for perplexity, linear otherwise."""
        if metric != "perplexity":
            axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(metric))
            return alt.Y(field, scale=alt.Scale(zero=False, padding=6), axis=axis)
        low, high = min(point.low for point in points), max(point.high for point in points)
        scale = alt.Scale(type="log", domain=[low * 0.95, high * 1.05], nice=False)
        return alt.Y(field, scale=scale, axis=alt.Axis(title=None, values=choose_log_ticks(low, high), format=",~r"))

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _draw_panels(curves, findings_view.list_variant_names(findings), datasets, y, format_value)

    alt_text = f"Learning curves on {', '.join(curves)}. Final values: {_describe_final_values(curves, format_value)}."
    title = f"{metric.capitalize()} during training"
    return Chart("curves", title, alt_text, build, _size_panels(len(curves)))


def build_difference_curves(findings: Findings) -> Chart | None:
    """Return one panel per split with the difference from the baseline, paired by seed."""
    metric, margin = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    curves = {
        split: points
        for split in findings_view.list_curve_splits(findings)
        if (points := findings_view.compute_difference_curves(findings, split))
    }
    if not curves:
        return None

    def format_value(value: float) -> str:
        return number_format.format_effect(metric, value)

    def y(points: list[CurvePoint], field: str) -> alt.Y:
        scale = alt.Scale(domain=_compute_difference_limits(points, margin), nice=False)
        axis = alt.Axis(labelExpr=build_effect_axis_labels(metric), title=None, tickCount=4)
        return alt.Y(field, scale=scale, axis=axis)

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        names = findings_view.list_variant_names(findings)
        return _draw_panels(curves, names, datasets, y, format_value, equivalence_margin=margin)

    title = f"Difference from the baseline during training ({number_format.get_effect_unit(metric).strip() or metric})"
    alt_text = f"{title}, paired by seed. Final values: {_describe_final_values(curves, format_value)}."
    return Chart("differences", title, alt_text, build, _size_panels(len(curves)))


def drop_steep_start(points: list[CurvePoint], metric: str) -> list[CurvePoint]:
    """Drop the point at step 0 if its perplexity would flatten the rest of the curve.

    An untrained model's perplexity is close to the vocabulary size.
    """
    steps = sorted({point.step for point in points})
    if metric != "perplexity" or len(steps) < 4:
        return points
    first_score, second_score = (max(point.mean for point in points if point.step == step) for step in steps[:2])
    return (
        [point for point in points if point.step != steps[0]]
        if first_score > STEEP_START_RATIO * second_score
        else points
    )


def describe_omitted_start(findings: Findings) -> str:
    """Return a sentence about the evaluation that `drop_steep_start` drops, or an empty string."""
    metric = findings_view.get_metric(findings)
    for split in findings_view.list_curve_splits(findings)[:1]:
        points = findings_view.compute_learning_curves(findings, split)
        if len(drop_steep_start(points, metric)) < len(points):
            value = float(f"{points[0].mean:.2g}")
            return f"Step {points[0].step:,} is not shown: {metric} is about {value:,.0f} there."
    return ""


def _size_panels(num_panels: int) -> Mapping[Layout, PanelGrid]:
    wide = PanelGrid(372, 200, 2, 4) if num_panels > 1 else PanelGrid(700, 260, 1, 4)
    return {"wide": wide, "narrow": PanelGrid(286, 180, 1, 2)}


def _compute_difference_limits(points: Sequence[CurvePoint], equivalence_margin: float) -> list[float]:
    """Return the axis limits. Outliers are clipped so that they do not flatten the other curves."""
    bounds = [bound for point in points for bound in (point.low, point.high)]
    magnitudes = sorted(map(abs, bounds))
    limit = OUTLIER_FACTOR * max(magnitudes[len(magnitudes) // 2], equivalence_margin)
    inliers = [bound for bound in bounds if abs(bound) <= limit]
    return [1.08 * min(-1.6 * equivalence_margin, *inliers), 1.08 * max(1.6 * equivalence_margin, *inliers)]


def _describe_final_values(curves: CurvesBySplit, format_value: Callable[[float], str]) -> str:
    """Return each variant's final value on each split as text."""
    descriptions = []
    for split, points in curves.items():
        last_points = {point.variant: point for point in points}
        descriptions.append(
            f"{split}: " + ", ".join(f"{name} {format_value(point.mean)}" for name, point in last_points.items())
        )
    return "; ".join(descriptions)


def _draw_panels(
    curves: CurvesBySplit,
    variant_names: list[str],
    datasets: ChartDatasets,
    y: YEncoding,
    format_value: Callable[[float], str],
    equivalence_margin: float | None = None,
) -> AltairChart:
    """Draw one panel per split with all variants' curves."""
    colors, shapes, dashes = style.assign_variant_styles(variant_names)
    variants_with_curve = {point.variant for points in curves.values() for point in points}
    shown_variants = [name for name in variant_names if name in variants_with_curve]
    indices = [variant_names.index(name) for name in shown_variants]
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    color_scale, shape_scale, dash_scale = (
        alt.Scale(domain=shown_variants, range=[values[index] for index in indices])
        for values in (colors, shapes, dashes)
    )
    color = alt.Color("variant:N", scale=color_scale, legend=legend)
    shape = alt.Shape("variant:N", scale=shape_scale, legend=legend)
    dash = alt.StrokeDash("variant:N", scale=dash_scale, legend=None)
    panels = []
    for split, points in curves.items():
        rows = [{**asdict(point), "tip": _format_tooltip(split, point, format_value)} for point in points]
        x = alt.X(
            "step:Q", scale=alt.Scale(nice=False, padding=7), axis=build_step_axis(point.step for point in points)
        )
        band = _draw_margin_band(equivalence_margin, datasets)
        data = datasets.chart(rows)
        curve = draw_curve(data, x, partial(y, points), clip=True, color=color, shape=shape, strokeDash=dash)
        panels.append(alt.layer(*band, *curve).properties(title=split))
    return arrange_panels(panels)


def _draw_margin_band(equivalence_margin: float | None, datasets: ChartDatasets) -> list[alt.Chart]:
    """Return the chart layers for the equivalence band and the zero line; an empty list without a margin."""
    if equivalence_margin is None:
        return []
    data = datasets.chart([{"from": -equivalence_margin, "to": equivalence_margin, "zero": 0}])
    band = data.mark_rect(aria=False, color=style.MARGIN_BAND_COLOR)
    return [
        band.encode(x=alt.value(0), x2=alt.value("width"), y=alt.Y("from:Q", title=None), y2="to:Q"),
        data.mark_rule(aria=False, color=style.ZERO_LINE_COLOR).encode(y=alt.Y("zero:Q", title=None)),
    ]


def _format_tooltip(split: str, point: CurvePoint, format_value: Callable[[float], str]) -> str:
    seeds = f"seeds from {format_value(point.low)} to {format_value(point.high)}" if point.seeds > 1 else "one seed"
    return f"{point.variant}, {split}, step {point.step:,}: {format_value(point.mean)} ({seeds})"
