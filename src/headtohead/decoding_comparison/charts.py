"""Build the charts of a decoding report.

One chart shows all metrics with their intervals, one plots likelihood against diversity, and one per strategy shows
each step of a sample: the most likely tokens, those that the strategy kept, and the token that was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from headtohead.decoding_comparison import phrasing
from headtohead.decoding_comparison.results import (
    DecodingResults,
    GenerationMetric,
    StrategyTrace,
    SweepPointResult,
    TraceStep,
)
from headtohead.presentation import style
from headtohead.presentation.chart import (
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    Panel,
    PanelGrid,
    arrange_panels,
    build_chart_encodings,
    build_score_axis_labels,
    choose_log_ticks,
)

LIKELIHOOD_METRICS = ("perplexity", "scoring-bits")
DIVERSITY_METRICS = ("self-bleu", "distinct-2")
"""in order of preference; self-BLEU still separates strategies whose distinct-2 is close to 1"""
MIN_SELF_BLEU = 0.1
"""lower limit for self-BLEU on the logarithmic axis"""
SWEEP_FAMILIES = ("temperature", "top-k", "top-p")
TOKEN_STATUS_STYLES = {
    "sampled": (style.VARIANT_COLORS[5], 0.75),
    "kept": (style.VARIANT_COLORS[0], 0.4),
    "dropped": (style.BASELINE_COLOR, 0.18),
}
"""color and opacity; translucent, so that labels are legible on the bars in both the light and the dark theme"""
CHARACTER_WIDTHS = {"wide": 0.012, "narrow": 0.03}
"""fraction of a bar that one character takes up, by layout"""
LabelPlacement = tuple[Literal["left", "right"], Literal["top", "middle", "bottom"], int, int]
LABEL_PLACEMENTS: Sequence[LabelPlacement] = (
    ("right", "bottom", -6, -3),
    ("left", "middle", 8, 2),
    ("right", "top", -4, 5),
)
"""(align, baseline, dx, dy) for each family's labels"""
ChartRow = dict[str, Any]


def build_charts(results: DecodingResults) -> list[Chart]:
    """Return the charts of a decoding report for which `results` has data, in page order."""
    charts = [build_interval_chart(results)]
    if results.sweep.points:
        charts.append(build_tradeoff_chart(results))
    return charts + [build_trace_chart(trace) for trace in results.traces]


def build_interval_chart(results: DecodingResults) -> Chart:
    """Build one panel per metric, with each strategy's estimate and interval.

    A dashed line marks the estimate for human text, where it is known.
    """
    summaries = []
    for metric in results.metrics:
        estimate_texts = [
            f"{strategy} {phrasing.format_metric_estimate(metric, estimates.get(metric.name))}"
            for strategy, estimates in results.estimates.items()
        ]
        summaries.append(f"{metric.title}: {', '.join(estimate_texts)}")

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        panels = [_build_interval_panel(results, metric, datasets) for metric in results.metrics]
        return arrange_panels(panels, row_spacing=66, column_spacing=128)

    height = 24 * len(results.estimates) + 8
    sizes: dict[Layout, PanelGrid] = {"wide": PanelGrid(170, height, 3, 4), "narrow": PanelGrid(190, height, 1, 2)}
    alt_text = f"Estimates with intervals. {'; '.join(summaries)}."
    return Chart("metrics", "All metrics by strategy", alt_text, build, sizes)


def _build_interval_panel(results: DecodingResults, metric: GenerationMetric, datasets: ChartDatasets) -> Panel:
    """Build the panel for one metric, with one row per strategy."""
    strategies = list(results.estimates)
    rows = []
    for strategy, estimates in results.estimates.items():
        if estimate := estimates.get(metric.name):
            low, high = estimate.interval or (estimate.value, estimate.value)
            tip = f"{strategy}: {metric.title} {phrasing.format_metric_estimate(metric, estimate)}"
            rows.append({"strategy": strategy, "value": estimate.value, "low": low, "high": high, "tip": tip})
    color, shape, _ = build_chart_encodings("strategy", strategies, legend=None)
    data = datasets.chart(rows)
    labels = build_score_axis_labels("accuracy" if metric.kind == "share" else "")
    axis = alt.Axis(title=None, tickCount=4, labelExpr=labels)
    scale = alt.Scale(zero=False, padding=10, nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    label_style: ChartRow = {"labelFontSize": 11, "labelLimit": 120, "labelColor": style.TEXT_COLOR}
    strategy_axis = alt.Axis(ticks=False, domain=False, grid=True, **label_style)
    y = alt.Y("strategy:N", sort=strategies, title=None, axis=strategy_axis)
    points = data.mark_point(size=70, filled=True, opacity=1)
    layers = [
        data.mark_rule(strokeWidth=2).encode(x=x("low:Q"), x2="high:Q", y=y, color=color, description="tip:N"),
        points.encode(x=x("value:Q"), y=y, color=color, shape=shape, description="tip:N"),
    ]
    if human_row := _build_human_row(results, metric, "value"):
        layers.insert(0, _draw_human_rule(datasets.chart([human_row]), x=x("value:Q")))
    better = f"{metric.better} is better" if metric.better else ""
    return alt.layer(*layers).properties(title=alt.TitleParams(metric.title, subtitle=better))


def _build_human_row(results: DecodingResults, metric: GenerationMetric, field: str) -> ChartRow | None:
    """Return the chart data for the human-text estimate, or None if it is unknown."""
    estimate = results.human.get(metric.name)
    if estimate is None:
        return None
    tip = f"human text: {metric.title} {phrasing.format_metric_estimate(metric, estimate)}"
    return {field: estimate.value, "tip": tip}


def _draw_human_rule(data: alt.Chart, **position: Any) -> alt.Chart:
    """Draw the dashed line that marks the human-text estimate."""
    rule = data.mark_rule(color=style.ZERO_LINE_COLOR, strokeDash=[4, 3], strokeWidth=1.5)
    chart: alt.Chart = rule.encode(**position, description="tip:N")
    return chart


def build_tradeoff_chart(results: DecodingResults) -> Chart:
    """Plot likelihood against diversity along temperature, k and p."""
    points, metrics = results.sweep.points, results.metrics_by_name
    likelihoods = [metrics[name] for name in LIKELIHOOD_METRICS if any(name in point.estimates for point in points)]
    diversity = metrics[next(name for name in DIVERSITY_METRICS if name in metrics)]
    summaries = []
    for point in points:
        estimate_texts = [
            f"{metric.title} {phrasing.format_metric_value(metric.kind, estimate.value) if estimate else 'unknown'}"
            for metric in (diversity, *likelihoods)
            for estimate in [point.estimates.get(metric.name)]
        ]
        summaries.append(f"{point.family} {point.label}: {', '.join(estimate_texts)}")

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        panels = [_build_tradeoff_panel(results, diversity, metric, datasets) for metric in likelihoods]
        return arrange_panels(panels, row_spacing=80, column_spacing=70)

    wide_grid = PanelGrid(370, 320, 2, 4) if len(likelihoods) > 1 else PanelGrid(700, 340, 1, 4)
    sizes: dict[Layout, PanelGrid] = {"wide": wide_grid, "narrow": PanelGrid(270, 290, 1, 2)}
    return Chart("tradeoff", "Likelihood against diversity", f"The sweep. {'; '.join(summaries)}.", build, sizes)


def _build_tradeoff_panel(
    results: DecodingResults, diversity: GenerationMetric, likelihood: GenerationMetric, datasets: ChartDatasets
) -> Panel:
    """Build the panel that plots one likelihood metric against the diversity metric."""
    candidate_rows = (_build_point_row(point, diversity, likelihood) for point in results.sweep.points)
    rows = [row for row in candidate_rows if row is not None]
    families = [name for name in SWEEP_FAMILIES if any(row["family"] == name for row in rows)]
    color, shape, dash = build_chart_encodings("family", families, has_baseline=False)
    data = datasets.chart(rows)
    human_row = _build_human_row(results, likelihood, "y")
    x = _build_diversity_axis([row["x"] for row in rows], diversity)
    y = _build_likelihood_axis([row["y"] for row in (*rows, *([human_row] if human_row else []))], likelihood)
    lines = data.mark_line(aria=False, strokeWidth=1.5, opacity=0.8)
    marks = data.mark_point(size=46, filled=True, opacity=1)
    layers = [
        lines.encode(x=x, y=y, color=color, strokeDash=dash, order="order:Q", detail="family:N"),
        marks.encode(x=x, y=y, color=color, shape=shape, description="tip:N"),
        *_build_point_labels(rows, families, x, y, datasets),
    ]
    if human_row:
        middle = math.sqrt(min(row["x"] for row in rows) * max(row["x"] for row in rows))
        human_data = datasets.chart([{**human_row, "x": middle, "label": "human text"}])
        label_style: ChartRow = {"align": "center", "baseline": "bottom", "dy": -3, "color": style.MUTED_TEXT_COLOR}
        label = human_data.mark_text(aria=False, fontSize=11, **label_style).encode(x=x, y=y, text="label:N")
        layers = [_draw_human_rule(human_data, y=y), label, *layers]
    return alt.layer(*layers).properties(title=f"{likelihood.title} (likelier ↓)")


def _build_point_row(
    point: SweepPointResult, diversity: GenerationMetric, likelihood: GenerationMetric
) -> ChartRow | None:
    """Return the data of one point of the trade-off chart, or None if either of its two metrics is missing."""
    estimates = [point.estimates.get(metric.name) for metric in (diversity, likelihood)]
    if estimates[0] is None or estimates[1] is None:
        return None
    estimate_texts = [
        f"{metric.title} {phrasing.format_metric_estimate(metric, estimate)}"
        for metric, estimate in zip((diversity, likelihood), estimates, strict=True)
    ]
    x = estimates[0].value
    return {
        "family": point.family,
        "label": point.label,
        "order": point.order,
        "endpoint": point.endpoint,
        "x": x if diversity.kind == "share" else max(MIN_SELF_BLEU, x),
        "y": estimates[1].value,
        "tip": f"{point.family} {point.label}: {', '.join(estimate_texts)}",
    }


def _build_diversity_axis(values: Sequence[float], diversity: GenerationMetric) -> alt.X:
    """Build the x axis of the trade-off chart, with diversity increasing to the right.

    Self-BLEU decreases with diversity, so its axis is reversed; its scale is logarithmic.
    """
    title = f"{diversity.title} (more diverse →)"
    if diversity.kind == "share":
        scale = alt.Scale(zero=False, padding=22, nice=False)
        axis = alt.Axis(title=title, tickCount=5, labelExpr=build_score_axis_labels("accuracy"))
        return alt.X("x:Q", scale=scale, axis=axis)
    low, high = min(values), max(values)
    scale = alt.Scale(type="log", domain=[high * 2.1, low / 1.5], nice=False)
    return alt.X("x:Q", scale=scale, axis=alt.Axis(title=title, values=choose_log_ticks(low, high), format=",~r"))


def _build_likelihood_axis(values: Sequence[float], likelihood: GenerationMetric) -> alt.Y:
    """Build the y axis of the trade-off chart. Its scale is logarithmic for perplexity."""
    if likelihood.kind != "perplexity":
        return alt.Y("y:Q", scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(title=None, tickCount=5))
    low, high = min(values), max(values)
    scale = alt.Scale(type="log", domain=[low * 0.9, high * 1.12], nice=False)
    return alt.Y("y:Q", scale=scale, axis=alt.Axis(title=None, values=choose_log_ticks(low, high), format=",~r"))


def _build_point_labels(
    rows: Sequence[ChartRow], families: Sequence[str], x: alt.X, y: alt.Y, datasets: ChartDatasets
) -> list[alt.Chart]:
    """Label each point of the trade-off chart with its setting."""
    layers = []
    colors, _, _ = style.assign_variant_styles(["", *families])
    for family, color, (align, baseline, dx, dy) in zip(families, colors[1:], LABEL_PLACEMENTS, strict=False):
        data = datasets.chart([row for row in rows if row["family"] == family and not row["endpoint"]])
        labels = data.mark_text(aria=False, align=align, baseline=baseline, dx=dx, dy=dy, fontSize=10, color=color)
        layers.append(labels.encode(x=x, y=y, text="label:N"))
    if endpoint_rows := {row["endpoint"]: row for row in rows if row["endpoint"]}:
        data = datasets.chart(list(endpoint_rows.values()))
        labels = data.mark_text(aria=False, align="right", dx=-9, fontSize=11, fontWeight=600, color=style.TEXT_COLOR)
        layers.append(labels.encode(x=x, y=y, text="endpoint:N"))
    return layers


def build_trace_chart(trace: StrategyTrace) -> Chart:
    """Build one bar per step: the most likely tokens in order of probability, colored by their status."""
    summary = "; ".join(f"{step.step}: {phrasing.describe_trace_step(step)}" for step in trace.steps)

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _build_trace_layers(trace.steps, layout, datasets)

    title = f"{trace.strategy}, token by token"
    return Chart(f"trace-{trace.strategy}", title, f"{title}. {summary}.", build)


def _build_trace_layers(steps: Sequence[TraceStep], layout: Layout, datasets: ChartDatasets) -> AltairChart:
    """Build the bars of the trace chart and the token labels inside them."""
    is_wide = layout == "wide"
    rows = [row for step in steps for row in _build_bar_segments(step, CHARACTER_WIDTHS[layout])]
    statuses = [status for status in TOKEN_STATUS_STYLES if any(row["status"] == status for row in rows)]
    colors, opacities = zip(*(TOKEN_STATUS_STYLES[status] for status in statuses), strict=True)
    legend = alt.Legend(symbolType="square", symbolOpacity=0.6, symbolStrokeWidth=0)
    color = alt.Color("status:N", scale=alt.Scale(domain=statuses, range=list(colors)), legend=legend)
    opacity = alt.Opacity("status:N", scale=alt.Scale(domain=statuses, range=list(opacities)), legend=None)
    scale = alt.Scale(domain=[0, 1])
    axis = alt.Axis(title="probability", format="%", tickCount=5, grid=False)
    label_style: ChartRow = {"labelFontSize": 11, "labelLimit": 150 if is_wide else 84, "labelColor": style.TEXT_COLOR}
    step_axis = alt.Axis(ticks=False, domain=False, grid=False, **label_style)
    y = alt.Y("step:N", sort=[_format_step_label(step) for step in steps], title=None, axis=step_axis)
    bars = datasets.chart(rows).mark_bar(height=17, stroke=style.GRID_COLOR, strokeWidth=0.7)
    labeled_segments = datasets.chart([row for row in rows if row["text"]])
    token_labels = labeled_segments.mark_text(
        aria=False, align="center", baseline="middle", fontSize=10.5, color=style.TEXT_COLOR
    )
    x, middle = alt.X("from:Q", scale=scale, axis=axis), alt.X("middle:Q", scale=scale, axis=axis)
    layers = [
        bars.encode(x=x, x2="to:Q", y=y, color=color, opacity=opacity, description="tip:N"),
        token_labels.encode(x=middle, y=y, text="text:N"),
    ]
    return alt.layer(*layers).properties(width=640 if is_wide else 220, height=22 * len(steps))


def _format_step_label(step: TraceStep) -> str:
    """Return a step's axis label: its number and the sampled token."""
    return f"{step.step}  {phrasing.format_trace_token(step.token)}"


def _build_bar_segments(step: TraceStep, character_width: float) -> list[ChartRow]:
    """Return one row of chart data per segment of a bar of the trace chart.

    A token is printed in its segment only if it fits; `character_width` is the fraction of a bar that one character
    takes up.
    """
    rows, start = [], 0.0
    for entry in step.top:
        label = phrasing.format_trace_token(entry.token) if entry.token is not None else f"{entry.count:,} others"
        status = "sampled" if entry.drawn else "kept" if entry.kept else "dropped"
        tip = f"step {step.step}, {label}: {phrasing.format_trace_probability(entry.probability)}, {status}"
        if entry.kept and entry.after is not None:
            tip += f", {phrasing.format_trace_probability(entry.after)} after the strategy"
        rows.append(
            {
                "step": _format_step_label(step),
                "from": start,
                "to": min(start + entry.probability, 1.0),
                "middle": start + entry.probability / 2,
                "status": status,
                "text": label if entry.probability >= character_width * (len(label) + 1) else "",
                "tip": tip,
            }
        )
        start += entry.probability
    return rows
