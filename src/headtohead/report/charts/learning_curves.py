"""Charts of training: learning curves, their differences from the baseline, and the fit of classifiers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import altair as alt

from headtohead.config.experiment import BASELINE
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    MAX_TICKS,
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    arrange_panels,
    build_effect_axis_labels,
    build_score_axis_labels,
    choose_log_ticks,
    draw_curve,
)
from headtohead.report.charts.forest_plot import OUTLIER_FACTOR

STEEP_START_RATIO = 3
"""the first evaluation is omitted if it is more than this many times the second"""
FIT_SPLITS = ("train", "validation")
FIT_SPLIT_STYLES = {"train": (style.MUTED_TEXT_COLOR, [4, 3]), "validation": (style.VERDICT_COLORS["helped"], [1, 0])}
"""color and dash of the curves in the fit chart"""
MAX_FIT_VARIANTS = 12
MAX_WIDE_FIT_VARIANTS = 2
"""the fit chart of more variants has smaller panels, of which two variants share a row"""


@dataclass(frozen=True)
class CurvePoint:
    """A point on a learning curve: the mean, minimum and maximum over seeds."""

    variant: str
    step: int
    mean: float
    low: float
    high: float
    seeds: int


CurvesBySplit = dict[str, list[CurvePoint]]
YEncoding = Callable[[list[CurvePoint], str], alt.Y]
"""function of the points of a panel and of a field, which returns the y encoding of the field"""


def compute_learning_curves(findings: Findings, split: str) -> list[CurvePoint]:
    """Return the mean and range over seeds at each step, for each variant."""
    metric = findings_view.get_metric(findings)
    points = []
    for name in findings_view.list_variant_names(findings):
        for step, scores_by_seed in sorted(_group_scores_by_step(findings, name, split).items()):
            scores = list(scores_by_seed.values())
            mean = average_over_seeds(metric, scores)
            points.append(CurvePoint(name, step, mean, min(scores), max(scores), len(scores)))
    return points


def compute_difference_curves(findings: Findings, split: str) -> list[CurvePoint]:
    """Return the difference from the baseline at each step, paired by seed."""
    metric = findings_view.get_metric(findings)
    baseline = _group_scores_by_step(findings, BASELINE, split)
    points = []
    for name in findings_view.list_variant_names(findings)[1:]:
        for step, scores in sorted(_group_scores_by_step(findings, name, split).items()):
            reference = baseline.get(step, {})
            pairs = [(reference[seed], score) for seed, score in scores.items() if seed in reference]
            if pairs:
                effects = [findings_view.compute_effect(metric, *pair) for pair in pairs]
                mean = _average_effect(metric, pairs)
                points.append(CurvePoint(name, step, mean, min(effects), max(effects), len(pairs)))
    return points


def _group_scores_by_step(findings: Findings, variant: str, split: str) -> dict[int, dict[str, float]]:
    """Return the points of a variant's learning curves as {step: {seed: score}}, finite scores only."""
    scores: dict[int, dict[str, float]] = {}
    for seed, curve in findings.curves.get(variant, {}).get(split, {}).items():
        for step, score in curve:
            if score is not None:
                scores.setdefault(step, {})[seed] = score
    return scores


def _average_effect(metric: str, pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean difference of learning curves over (baseline, variant) pairs, geometric for perplexity."""
    if metric == "perplexity":
        return math.expm1(
            statistics.fmean(math.log(variant_score / baseline_score) for baseline_score, variant_score in pairs)
        )
    return statistics.fmean(variant_score - baseline_score for baseline_score, variant_score in pairs)


def build_learning_curves(findings: Findings) -> Chart | None:
    """Return a panel of learning curves per split: the mean across seeds, with a band from lowest to highest seed."""
    metric = findings_view.get_metric(findings)
    curves = {
        split: drop_steep_start(points, metric)
        for split in findings_view.list_curve_splits(findings)
        if (points := compute_learning_curves(findings, split))
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
        return _draw_curve_panels(curves, findings_view.list_variant_names(findings), datasets, y, format_value)

    alt_text = f"Learning curves on {', '.join(curves)}. Final values: {_describe_final_values(curves, format_value)}."
    title = f"{metric.capitalize()} during training"
    return Chart("curves", title, alt_text, build, _size_curve_panels(len(curves)))


def build_difference_curves(findings: Findings) -> Chart | None:
    """Return a panel per split with the difference of learning curves from the baseline, paired by seed."""
    metric, margin = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    curves = {
        split: points
        for split in findings_view.list_curve_splits(findings)
        if (points := compute_difference_curves(findings, split))
    }
    if not curves:
        return None

    def format_value(value: float) -> str:
        return number_format.format_effect(metric, value)

    def y(points: list[CurvePoint], field: str) -> alt.Y:
        """Return the y encoding of differences, limited so that outliers do not flatten the curves."""
        scale = alt.Scale(domain=_compute_difference_limits(points, margin), nice=False)
        axis = alt.Axis(labelExpr=build_effect_axis_labels(metric), title=None, tickCount=4)
        return alt.Y(field, scale=scale, axis=axis)

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        names = findings_view.list_variant_names(findings)
        return _draw_curve_panels(curves, names, datasets, y, format_value, equivalence_margin=margin)

    title = f"Difference from the baseline during training ({number_format.get_effect_unit(metric).strip() or metric})"
    alt_text = f"{title}, paired by seed. Final values: {_describe_final_values(curves, format_value)}."
    return Chart("differences", title, alt_text, build, _size_curve_panels(len(curves)))


def drop_steep_start(points: list[CurvePoint], metric: str) -> list[CurvePoint]:
    """Drop the point at step 0 if its perplexity would flatten the rest of the curve.

    An untrained model's perplexity is close to the vocabulary size.
    """
    eval_steps = sorted({point.step for point in points})
    if metric != "perplexity" or len(eval_steps) < 4:
        return points
    first_score, second_score = (max(point.mean for point in points if point.step == step) for step in eval_steps[:2])
    return (
        [point for point in points if point.step != eval_steps[0]]
        if first_score > STEEP_START_RATIO * second_score
        else points
    )


def describe_omitted_start(findings: Findings) -> str:
    """Return a sentence about the point of learning curves that `drop_steep_start` drops, or an empty string."""
    metric = findings_view.get_metric(findings)
    for split in findings_view.list_curve_splits(findings)[:1]:
        points = compute_learning_curves(findings, split)
        if len(drop_steep_start(points, metric)) < len(points):
            first_score = float(f"{points[0].mean:.2g}")
            return f"Step {points[0].step:,} is not shown: {metric} is about {first_score:,.0f} there."
    return ""


def _size_curve_panels(num_panels: int) -> Mapping[Layout, PanelGrid]:
    """Return the panel sizes and columns of learning curves for the wide and the narrow layout."""
    wide = PanelGrid(372, 200, 2, 4) if num_panels > 1 else PanelGrid(700, 260, 1, 4)
    return {"wide": wide, "narrow": PanelGrid(286, 180, 1, 2)}


def _compute_difference_limits(points: Sequence[CurvePoint], equivalence_margin: float) -> list[float]:
    """Return the y limits of difference curves, which clip outliers so that they do not flatten the other curves."""
    bounds = [bound for point in points for bound in (point.low, point.high)]
    magnitudes = sorted(map(abs, bounds))
    limit = OUTLIER_FACTOR * max(magnitudes[len(magnitudes) // 2], equivalence_margin)
    inliers = [bound for bound in bounds if abs(bound) <= limit]
    return [1.08 * min(-1.6 * equivalence_margin, *inliers), 1.08 * max(1.6 * equivalence_margin, *inliers)]


def _describe_final_values(curves: CurvesBySplit, format_value: Callable[[float], str]) -> str:
    """Return each variant's final value on each split, for the text alternative of a curve chart."""
    descriptions = []
    for split, points in curves.items():
        last_points = {point.variant: point for point in points}
        descriptions.append(
            f"{split}: " + ", ".join(f"{name} {format_value(point.mean)}" for name, point in last_points.items())
        )
    return "; ".join(descriptions)


def _draw_curve_panels(
    curves: CurvesBySplit,
    variant_names: list[str],
    datasets: ChartDatasets,
    y: YEncoding,
    format_value: Callable[[float], str],
    equivalence_margin: float | None = None,
) -> AltairChart:
    """Draw one panel per split with the learning curves, or their differences, of all variants."""
    colors, shapes, dashes = style.assign_variant_styles(variant_names)
    variants_with_curve = {point.variant for points in curves.values() for point in points}
    shown_variants = [name for name in variant_names if name in variants_with_curve]
    style_indices = [variant_names.index(name) for name in shown_variants]
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    color_scale, shape_scale, dash_scale = (
        alt.Scale(domain=shown_variants, range=[styles[index] for index in style_indices])
        for styles in (colors, shapes, dashes)
    )
    color = alt.Color("variant:N", scale=color_scale, legend=legend)
    shape = alt.Shape("variant:N", scale=shape_scale, legend=legend)
    dash = alt.StrokeDash("variant:N", scale=dash_scale, legend=None)
    panels = []
    for split, points in curves.items():
        rows = [{**asdict(point), "tip": _format_curve_tooltip(split, point, format_value)} for point in points]
        x = alt.X(
            "step:Q", scale=alt.Scale(nice=False, padding=7), axis=build_step_axis(point.step for point in points)
        )
        band = _draw_difference_margin_band(equivalence_margin, datasets)
        data = datasets.chart(rows)
        curve = draw_curve(data, x, partial(y, points), clip=True, color=color, shape=shape, strokeDash=dash)
        panels.append(alt.layer(*band, *curve).properties(title=split))
    return arrange_panels(panels)


def _draw_difference_margin_band(equivalence_margin: float | None, datasets: ChartDatasets) -> list[alt.Chart]:
    """Return the equivalence band and the zero line behind difference curves; an empty list without a margin."""
    if equivalence_margin is None:
        return []
    data = datasets.chart([{"from": -equivalence_margin, "to": equivalence_margin, "zero": 0}])
    band = data.mark_rect(aria=False, color=style.EQUIVALENCE_BAND_COLOR)
    return [
        band.encode(x=alt.value(0), x2=alt.value("width"), y=alt.Y("from:Q", title=None), y2="to:Q"),
        data.mark_rule(aria=False, color=style.ZERO_LINE_COLOR).encode(y=alt.Y("zero:Q", title=None)),
    ]


def _format_curve_tooltip(split: str, point: CurvePoint, format_value: Callable[[float], str]) -> str:
    seeds = f"seeds from {format_value(point.low)} to {format_value(point.high)}" if point.seeds > 1 else "one seed"
    return f"{point.variant}, {split}, step {point.step:,}: {format_value(point.mean)} ({seeds})"


def build_step_axis(steps: Iterable[int]) -> alt.Axis:
    """Return the x axis of learning curves, with a tick at every evaluation, or at round steps if there are many."""
    eval_steps = sorted(set(steps))
    if len(eval_steps) <= MAX_TICKS:
        return alt.Axis(title="step", grid=False, format=",d", values=eval_steps)
    return alt.Axis(title="step", grid=False, format=",d", tickCount=5)


def build_classifier_fit_chart(findings: Findings) -> Chart | None:
    """Return a classifier's learning curves on train and validation data, which show overfitting.

    A vertical line marks the step whose weights were tested. Returns None for language models and for experiments
    without validation losses.
    """
    if not findings.loss_curves or findings_view.get_metric(findings) != "accuracy":
        return None
    variants = [name for name in findings_view.list_variant_names(findings) if _has_fit_curves(findings, name)]
    variants = variants[:MAX_FIT_VARIANTS]
    if not variants:
        return None

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return arrange_panels(
            _draw_fit_panel(findings, name, quantity, datasets)
            for name in variants
            for quantity in ("loss", "accuracy")
        )

    alt_text = "Training and validation loss and accuracy during training. " + " ".join(
        _describe_variant_fit(findings, name) for name in variants
    )
    wide_grid = PanelGrid(372, 170, 2, 2) if len(variants) <= MAX_WIDE_FIT_VARIANTS else PanelGrid(150, 130, 4, 2)
    sizes: dict[Layout, PanelGrid] = {"wide": wide_grid, "narrow": PanelGrid(286, 150, 1, 2)}
    return Chart("fit", "Training and validation loss and accuracy", alt_text, build, sizes)


def _has_fit_curves(findings: Findings, variant: str) -> bool:
    return all(findings.loss_curves.get(variant, {}).get(split) for split in FIT_SPLITS)


def compute_fit_curve(findings: Findings, variant: str, quantity: str, split: str) -> list[CurvePoint]:
    """Return a curve of the fit chart: the mean, minimum and maximum across seeds at each step."""
    curves_by_seed = (findings.loss_curves if quantity == "loss" else findings.curves)[variant][split]
    scores_by_step: dict[int, list[float]] = {}
    for curve in curves_by_seed.values():
        for step, score in curve:
            if score is not None:
                scores_by_step.setdefault(step, []).append(score)
    return [
        CurvePoint(split, step, statistics.fmean(scores), min(scores), max(scores), len(scores))
        for step, scores in sorted(scores_by_step.items())
    ]


def get_median_selected_step(findings: Findings, variant: str) -> float | None:
    """Return the step whose weights were tested, as the median across seeds, or None if it is unknown."""
    seed_steps = findings.chosen_steps.get(variant) or []
    return statistics.median(step for _, step in seed_steps) if seed_steps else None


def _describe_variant_fit(findings: Findings, variant: str) -> str:
    """Return a variant's final accuracies and selected step, for the text alternative of the classifier-fit chart."""
    final_accuracies = {split: compute_fit_curve(findings, variant, "accuracy", split)[-1].mean for split in FIT_SPLITS}
    step = get_median_selected_step(findings, variant)
    selected_note = "" if step is None else f", weights of step {step:,.0f}"
    accuracies = ", ".join(
        f"{split} {number_format.format_percentage(value)}" for split, value in final_accuracies.items()
    )
    return f"{variant}: final accuracy {accuracies}{selected_note}."


def _draw_fit_panel(
    findings: Findings, variant: str, quantity: str, datasets: ChartDatasets
) -> alt.LayerChart | alt.FacetChart:
    """Draw a variant's training and validation curves of one quantity, with a rule at the selected step."""
    curves = {split: compute_fit_curve(findings, variant, quantity, split) for split in FIT_SPLITS}
    rows: list[dict[str, Any]] = [
        {**asdict(point), "tip": _format_fit_tooltip(variant, quantity, point)}
        for points in curves.values()
        for point in points
    ]
    axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(quantity))
    scale = alt.Scale(zero=False, padding=6)
    step_axis = build_step_axis(point.step for point in curves["train"])
    x = alt.X("step:Q", scale=alt.Scale(nice=False, padding=7), axis=step_axis)
    legend = alt.Legend(symbolType="stroke", symbolSize=250, symbolOpacity=1, symbolStrokeWidth=2)
    splits = list(FIT_SPLIT_STYLES)
    colors = alt.Scale(domain=splits, range=[FIT_SPLIT_STYLES[split][0] for split in splits])
    dashes = alt.Scale(domain=splits, range=[FIT_SPLIT_STYLES[split][1] for split in splits])
    layers = draw_curve(
        datasets.chart(rows),
        x,
        lambda field: alt.Y(field, scale=scale, axis=axis),
        point_size=30,
        color=alt.Color("variant:N", scale=colors, legend=legend),
        strokeDash=alt.StrokeDash("variant:N", scale=dashes, legend=legend),
    )
    if (step := get_median_selected_step(findings, variant)) is not None:
        rule = datasets.chart([{"step": step}]).mark_rule(aria=False, color=style.ZERO_LINE_COLOR, strokeDash=[2, 2])
        layers.append(rule.encode(x=x))
    return alt.layer(*layers).properties(title=alt.TitleParams(variant, subtitle=quantity))


def _format_fit_tooltip(variant: str, quantity: str, point: CurvePoint) -> str:
    mean, low, high = (number_format.format_score(quantity, value) for value in (point.mean, point.low, point.high))
    seeds = f" (seeds from {low} to {high})" if point.seeds > 1 else ""
    return f"{variant}, {point.variant}, step {point.step:,}: {quantity} {mean}{seeds}"
