"""Loss and accuracy along the way, train and validation in one picture: how well a classifier fits, and when it begins
to learn by heart."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import altair as alt

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import CurvePoint, Findings
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    build_score_label_expression,
)

SHOWN_SPLITS = ("train", "validation")
MAX_VARIANTS = 12
SPLIT_STYLES = {"train": (style.MUTED_TEXT_COLOR, [4, 3]), "validation": (style.VERDICT_COLORS["helped"], [1, 0])}


def build_fit_chart(findings: Findings) -> Chart | None:
    """A row for each variant: loss on the left, accuracy on the right; a rule where the weights were chosen."""
    if not findings.get("losses") or findings_view.get_metric(findings) != "accuracy":
        return None
    known = [name for name in findings_view.list_variant_names(findings) if _has_all_curves(findings, name)][
        :MAX_VARIANTS
    ]
    if not known:
        return None
    panels = [(name, kind) for name in known for kind in ("loss", "accuracy")]
    said = "Loss and accuracy of train and validation while training. " + " ".join(
        _describe_variant(findings, n) for n in known
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        made = [_draw_panel(findings, name, kind, sheets) for name, kind in panels]
        return alt.concat(*made, bounds="flush", spacing=alt.RowColnumber(row=80, column=58))

    sizes: dict[Layout, PanelGrid] = {"wide": PanelGrid(372, 170, 2, 2), "narrow": PanelGrid(286, 150, 1, 2)}
    return Chart("fit", "Loss and accuracy, train and validation", said, build, sizes)


def _has_all_curves(findings: Findings, variant: str) -> bool:
    return all((findings["losses"].get(variant) or {}).get(split) for split in SHOWN_SPLITS)


def compute_curve_points(findings: Findings, variant: str, quantity: str, split: str) -> list[CurvePoint]:
    """Mean, lowest and highest seed at each step."""
    lines = (findings["losses"] if quantity == "loss" else findings["curves"])[variant][split]
    by_step: dict[int, list[float]] = {}
    for line in lines.values():
        for at, value in line:
            if number_format.is_finite_number(value):
                by_step.setdefault(int(at), []).append(value)
    return [
        CurvePoint(split, at, statistics.fmean(values), min(values), max(values), len(values))
        for at, values in sorted(by_step.items())
    ]


def get_selected_step(findings: Findings, variant: str) -> float | None:
    """The step whose weights were tested: the middle one of the seeds."""
    pairs = (findings.get("chosen") or {}).get(variant) or []
    return statistics.median(step for _, step in pairs) if pairs else None


def _describe_variant(findings: Findings, variant: str) -> str:
    ends = [
        f"{split} {compute_curve_points(findings, variant, 'accuracy', split)[-1].mean:.1%}" for split in SHOWN_SPLITS
    ]
    at = get_selected_step(findings, variant)
    where = "" if at is None else f", weights of step {at:,.0f}"
    return f"{variant}: at the end {', '.join(ends)}{where}."


def _draw_panel(
    findings: Findings, variant: str, quantity: str, datasets: ChartDatasets
) -> alt.LayerChart | alt.FacetChart:
    found = {split: compute_curve_points(findings, variant, quantity, split) for split in SHOWN_SPLITS}
    rows: list[dict[str, Any]] = [
        {**asdict(one), "tip": _format_tooltip(variant, quantity, one)}
        for split in SHOWN_SPLITS
        for one in found[split]
    ]
    data = datasets.chart(rows)
    labels = build_score_label_expression("accuracy") if quantity == "accuracy" else "format(datum.value, ',~r')"
    y_axis = alt.Axis(title=None, tickCount=5, labelExpr=labels)
    steps = sorted({one.at for one in found["train"]})
    ticks: dict[str, Any] = {"values": steps} if len(steps) <= 6 else {"tickCount": 5}
    x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=alt.Axis(title="step", grid=False, **ticks))
    scale = alt.Scale(zero=False, padding=6)
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    hue = alt.Color(
        "variant:N",
        scale=alt.Scale(domain=list(SPLIT_STYLES), range=[look[0] for look in SPLIT_STYLES.values()]),
        legend=legend,
    )
    dashes = alt.Scale(domain=list(SPLIT_STYLES), range=[look[1] for look in SPLIT_STYLES.values()])
    layers = [
        data.mark_area(aria=False, opacity=0.16).encode(
            x=x, y=alt.Y("low:Q", scale=scale, axis=y_axis), y2="high:Q", color=hue
        ),
        data.mark_line(aria=False, strokeWidth=2).encode(
            x=x,
            y=alt.Y("mean:Q", scale=scale, axis=y_axis),
            color=hue,
            strokeDash=alt.StrokeDash("variant:N", scale=dashes, legend=legend),
        ),
        data.mark_point(size=30, filled=True, opacity=1).encode(
            x=x, y=alt.Y("mean:Q", scale=scale, axis=y_axis), color=hue, description="tip:N"
        ),
    ]
    if (at := get_selected_step(findings, variant)) is not None:
        rule = datasets.chart([{"at": at}]).mark_rule(aria=False, color=style.ZERO_LINE_COLOR, strokeDash=[2, 2])
        layers.append(rule.encode(x=x))
    return alt.layer(*layers).properties(title=alt.TitleParams(variant, subtitle=quantity))


def _format_tooltip(variant: str, quantity: str, point: CurvePoint) -> str:
    def say(value: float) -> str:
        return number_format.format_score("accuracy", value) if quantity == "accuracy" else f"{value:.3f}"

    seeds = f" (seeds from {say(point.low)} to {say(point.high)})" if point.seeds > 1 else ""
    return f"{variant}, {point.variant}, step {point.at:,}: {quantity} {say(point.mean)}{seeds}"
