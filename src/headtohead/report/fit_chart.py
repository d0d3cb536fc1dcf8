"""Charts of classifiers' training and validation loss and accuracy, side by side to show overfitting."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

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
    build_score_axis_labels,
    build_step_axis,
    draw_curve,
)

SHOWN_SPLITS = ("train", "validation")
MAX_VARIANTS = 12
SPLIT_STYLES = {"train": (style.MUTED_TEXT_COLOR, [4, 3]), "validation": (style.VERDICT_COLORS["helped"], [1, 0])}


def build_fit_chart(findings: Findings) -> Chart | None:
    """Return two panels per variant, loss and accuracy, with a vertical line at the step whose weights were tested.

    Returns None for language models and for experiments without validation losses.
    """
    if not findings.loss_curves or findings_view.get_metric(findings) != "accuracy":
        return None
    variants = [name for name in findings_view.list_variant_names(findings) if _has_all_curves(findings, name)]
    variants = variants[:MAX_VARIANTS]
    if not variants:
        return None

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return arrange_panels(
            _draw_panel(findings, name, quantity, datasets) for name in variants for quantity in ("loss", "accuracy")
        )

    alt_text = "Training and validation loss and accuracy during training. " + " ".join(
        _describe_variant(findings, name) for name in variants
    )
    sizes: dict[Layout, PanelGrid] = {"wide": PanelGrid(372, 170, 2, 2), "narrow": PanelGrid(286, 150, 1, 2)}
    return Chart("fit", "Training and validation loss and accuracy", alt_text, build, sizes)


def _has_all_curves(findings: Findings, variant: str) -> bool:
    return all(findings.loss_curves.get(variant, {}).get(split) for split in SHOWN_SPLITS)


def compute_curve_points(findings: Findings, variant: str, quantity: str, split: str) -> list[CurvePoint]:
    """Return the mean, minimum and maximum across seeds at each step."""
    curves_by_seed = (findings.loss_curves if quantity == "loss" else findings.curves)[variant][split]
    values_by_step: dict[int, list[float]] = {}
    for curve in curves_by_seed.values():
        for step, value in curve:
            if value is not None:
                values_by_step.setdefault(step, []).append(value)
    return [
        CurvePoint(split, step, statistics.fmean(values), min(values), max(values), len(values))
        for step, values in sorted(values_by_step.items())
    ]


def get_selected_step(findings: Findings, variant: str) -> float | None:
    """Return the step whose weights were kept, as the median across seeds, or None if it is unknown."""
    pairs = findings.chosen_steps.get(variant) or []
    return statistics.median(step for _, step in pairs) if pairs else None


def _describe_variant(findings: Findings, variant: str) -> str:
    """Describe a variant's final accuracy on each split and the step whose weights were selected."""
    final_accuracies = {
        split: compute_curve_points(findings, variant, "accuracy", split)[-1].mean for split in SHOWN_SPLITS
    }
    step = get_selected_step(findings, variant)
    selected_note = "" if step is None else f", weights of step {step:,.0f}"
    accuracies = ", ".join(
        f"{split} {number_format.format_percentage(value)}" for split, value in final_accuracies.items()
    )
    return f"{variant}: final accuracy {accuracies}{selected_note}."


def _draw_panel(
    findings: Findings, variant: str, quantity: str, datasets: ChartDatasets
) -> alt.LayerChart | alt.FacetChart:
    """Draw one quantity's training and validation curves, with a rule at the selected step."""
    curves = {split: compute_curve_points(findings, variant, quantity, split) for split in SHOWN_SPLITS}
    rows: list[dict[str, Any]] = [
        {**asdict(point), "tip": _format_tooltip(variant, quantity, point)}
        for points in curves.values()
        for point in points
    ]
    axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_axis_labels(quantity))
    scale = alt.Scale(zero=False, padding=6)
    step_axis = build_step_axis(point.step for point in curves["train"])
    x = alt.X("step:Q", scale=alt.Scale(nice=False, padding=7), axis=step_axis)
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    splits = list(SPLIT_STYLES)
    colors = alt.Scale(domain=splits, range=[SPLIT_STYLES[split][0] for split in splits])
    dashes = alt.Scale(domain=splits, range=[SPLIT_STYLES[split][1] for split in splits])
    layers = draw_curve(
        datasets.chart(rows),
        x,
        lambda field: alt.Y(field, scale=scale, axis=axis),
        point_size=30,
        color=alt.Color("variant:N", scale=colors, legend=legend),
        strokeDash=alt.StrokeDash("variant:N", scale=dashes, legend=legend),
    )
    if (step := get_selected_step(findings, variant)) is not None:
        rule = datasets.chart([{"step": step}]).mark_rule(aria=False, color=style.ZERO_LINE_COLOR, strokeDash=[2, 2])
        layers.append(rule.encode(x=x))
    return alt.layer(*layers).properties(title=alt.TitleParams(variant, subtitle=quantity))


def _format_tooltip(variant: str, quantity: str, point: CurvePoint) -> str:
    mean, low, high = (number_format.format_score(quantity, value) for value in (point.mean, point.low, point.high))
    seeds = f" (seeds from {low} to {high})" if point.seeds > 1 else ""
    return f"{variant}, {point.variant}, step {point.step:,}: {quantity} {mean}{seeds}"
