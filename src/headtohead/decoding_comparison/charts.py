"""Build the charts of a decoding comparison.

There is one chart of all metrics with their intervals, one of likelihood against diversity, and one per strategy that
shows each step of a sample: the most likely tokens, those that the strategy kept, and the token that was sampled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from headtohead.decoding_comparison import phrasing
from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, PanelGrid, choose_log_ticks

DecodingResults = dict[str, Any]
Panel = alt.LayerChart | alt.FacetChart

HUMAN_LABEL = "people"
LIKELIHOOD_METRICS = ("perplexity", "second")
DIVERSITY_METRICS = ("self-bleu", "distinct-2")
"""in order of preference; self-BLEU still separates strategies whose distinct-2 is close to 1"""
MIN_SELF_BLEU = 0.1
"""lower limit of self-BLEU on the logarithmic axis"""
SWEEP_FAMILIES = {"temperature": "temperature", "top-k": "top-k", "top-p": "top-p"}
TOKEN_STATUS_COLORS = {
    "drawn": style.VARIANT_COLORS[5],
    "kept": style.VARIANT_COLORS[0],
    "dropped": style.BASELINE_COLOR,
}
CHARACTER_WIDTHS = {"wide": 0.012, "narrow": 0.03}
"""fraction of a bar that a character takes, by layout"""
LabelPlacement = tuple[Literal["left", "right"], Literal["top", "middle", "bottom"], int, int]
LABEL_PLACEMENTS: Sequence[LabelPlacement] = (
    ("right", "bottom", -6, -3),
    ("left", "middle", 8, 2),
    ("right", "top", -4, 5),
)
"""(align, baseline, dx, dy) of the labels of each family"""
PERCENT_LABEL_EXPR = "format(datum.value * 100, ',~r') + '\u00a0%'"


def build_charts(results: DecodingResults) -> list[Chart]:
    """Return the charts for which `results` has data, in the order of the page."""
    charts = [build_interval_chart(results)]
    if results["sweep"]["points"]:
        charts.append(build_tradeoff_chart(results))
    return charts + [build_trace_chart(trace) for trace in results["traces"]]


def build_interval_chart(results: DecodingResults) -> Chart:
    """Build one panel per metric, with the estimate and interval of each strategy.

    A dashed line marks the estimate for human text, where it is known.
    """
    strategies = list(results["figures"])
    metrics = [
        metric
        for metric in results["measures"]
        if any(metric["name"] in results["figures"][strategy] for strategy in strategies)
    ]
    summary = "; ".join(
        f"{metric['title']}: "
        + ", ".join(
            f"{strategy} {phrasing.format_estimate(metric['kind'], results['figures'][strategy].get(metric['name']))}"
            for strategy in strategies
        )
        for metric in metrics
    )

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        panels = [_build_interval_panel(results, metric, strategies, datasets) for metric in metrics]
        return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=66, column=128))

    height = 24 * len(strategies) + 8
    sizes: dict[Layout, PanelGrid] = {"wide": PanelGrid(170, height, 3, 4), "narrow": PanelGrid(190, height, 1, 2)}
    return Chart("measures", "Every measure, strategy by strategy", f"Figures with intervals. {summary}.", build, sizes)


def _build_interval_panel(
    results: DecodingResults, metric: DecodingResults, strategies: Sequence[str], datasets: ChartDatasets
) -> Panel:
    """Build the panel of one metric, with one row per strategy."""
    rows = []
    for strategy in strategies:
        if estimate := results["figures"][strategy].get(metric["name"]):
            low, high = estimate["interval"] or (estimate["value"], estimate["value"])
            tip = f"{strategy}: {metric['title']} {phrasing.format_estimate(metric['kind'], estimate)}"
            rows.append({"strategy": strategy, "value": estimate["value"], "low": low, "high": high, "tip": tip})
    colors, shapes, _ = style.assign_variant_styles(list(strategies))
    color = alt.Color("strategy:N", scale=alt.Scale(domain=list(strategies), range=colors), legend=None)
    shape = alt.Shape("strategy:N", scale=alt.Scale(domain=list(strategies), range=shapes), legend=None)
    data = datasets.chart(rows)
    label_expr = (
        "format(datum.value * 100, ',~r') + '\u00a0%'" if metric["kind"] == "share" else "format(datum.value, ',~r')"
    )
    axis = alt.Axis(title=None, tickCount=4, labelExpr=label_expr)
    scale = alt.Scale(zero=False, padding=10, nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    strategy_axis = alt.Axis(
        labelFontSize=11, labelLimit=120, labelColor=style.TEXT_COLOR, ticks=False, domain=False, grid=True
    )
    y = alt.Y("strategy:N", sort=list(strategies), title=None, axis=strategy_axis)
    layers = [
        *_build_human_rule(results, metric, datasets, x),
        data.mark_rule(strokeWidth=2).encode(x=x("low:Q"), x2="high:Q", y=y, color=color, description="tip:N"),
        data.mark_point(size=70, filled=True, opacity=1).encode(
            x=x("value:Q"), y=y, color=color, shape=shape, description="tip:N"
        ),
    ]
    better = {"lower": "lower is better", "higher": "higher is better"}.get(metric["better"] or "", "")
    return alt.layer(*layers).properties(title=alt.TitleParams(metric["title"], subtitle=better))


def _build_human_rule(
    results: DecodingResults, metric: DecodingResults, datasets: ChartDatasets, build_x: Any
) -> list[alt.Chart]:
    """Build the line that marks the estimate for human text. `build_x` returns the x channel of a field."""
    estimate = results["people"].get(metric["name"])
    if estimate is None:
        return []
    tip = f"people: {metric['title']} {phrasing.format_estimate(metric['kind'], estimate)}"
    rule = datasets.chart([{"people": estimate["value"], "tip": tip}]).mark_rule(
        color=style.ZERO_LINE_COLOR, strokeDash=[4, 3], strokeWidth=1.5
    )
    return [rule.encode(x=build_x("people:Q"), description="tip:N")]


def build_tradeoff_chart(results: DecodingResults) -> Chart:
    """Build the chart of likelihood against diversity along temperature, k and p."""
    points = results["sweep"]["points"]
    likelihoods = [name for name in LIKELIHOOD_METRICS if any(name in point["figures"] for point in points)]
    metrics = {metric["name"]: metric for metric in results["measures"]}
    diversity = metrics[next(name for name in DIVERSITY_METRICS if name in metrics)]
    summary = "; ".join(
        f"{point['family']} {point['label']}: {diversity['title']} {_format_point_value(point, diversity)}, "
        + ", ".join(f"{metrics[name]['title']} {_format_point_value(point, metrics[name])}" for name in likelihoods)
        for point in points
    )

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        panels = [_build_tradeoff_panel(results, diversity, metrics[name], datasets) for name in likelihoods]
        return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=80, column=70))

    wide_grid = PanelGrid(370, 320, 2, 4) if len(likelihoods) > 1 else PanelGrid(700, 340, 1, 4)
    sizes: dict[Layout, PanelGrid] = {"wide": wide_grid, "narrow": PanelGrid(270, 290, 1, 2)}
    return Chart("tradeoff", "Likelihood against variety", f"The sweep. {summary}.", build, sizes)


def _format_point_value(point: DecodingResults, metric: DecodingResults) -> str:
    """Return the value of a metric at a point of the sweep, or "unknown"."""
    estimate = point["figures"].get(metric["name"])
    return phrasing.format_value(metric["kind"], estimate["value"]) if estimate else "unknown"


def _build_tradeoff_panel(
    results: DecodingResults, diversity: DecodingResults, likelihood: DecodingResults, datasets: ChartDatasets
) -> Panel:
    """Build the panel of one likelihood metric against the diversity metric."""
    candidate_rows = (_build_point_row(point, diversity, likelihood) for point in results["sweep"]["points"])
    rows = [row for row in candidate_rows if row is not None]
    families = [name for name in SWEEP_FAMILIES if any(row["family"] == name for row in rows)]
    colors, shapes, dashes = style.assign_variant_styles(["", *families])
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    color = alt.Color("family:N", scale=alt.Scale(domain=families, range=colors[1:]), legend=legend)
    shape = alt.Shape("family:N", scale=alt.Scale(domain=families, range=shapes[1:]), legend=legend)
    dash = alt.StrokeDash("family:N", scale=alt.Scale(domain=families, range=dashes[1:]), legend=None)
    data = datasets.chart(rows)
    x, x_values = _build_diversity_axis(rows, diversity), [row["x"] for row in rows]
    y = _build_likelihood_axis(rows, results["people"].get(likelihood["name"]), likelihood)
    layers = [
        *_build_human_level(results, likelihood, x, y, math.sqrt(min(x_values) * max(x_values)), datasets),
        data.mark_line(aria=False, strokeWidth=1.5, opacity=0.8).encode(
            x=x, y=y, color=color, strokeDash=dash, order="order:Q", detail="family:N"
        ),
        data.mark_point(size=46, filled=True, opacity=1).encode(
            x=x, y=y, color=color, shape=shape, description="tip:N"
        ),
        *_build_point_labels(rows, families, colors[1:], x, y, datasets),
    ]
    return alt.layer(*layers).properties(title=f"{likelihood['title']} (likelier ↓)")


def _build_point_row(
    point: DecodingResults, diversity: DecodingResults, likelihood: DecodingResults
) -> DecodingResults | None:
    """Return the chart data of one point, or None if one of its two metrics is missing."""
    diversity_estimate, likelihood_estimate = (
        point["figures"].get(diversity["name"]),
        point["figures"].get(likelihood["name"]),
    )
    if diversity_estimate is None or likelihood_estimate is None:
        return None
    tip = (
        f"{point['family']} {point['label']}: "
        f"{diversity['title']} {phrasing.format_estimate(diversity['kind'], diversity_estimate)}, "
        f"{likelihood['title']} {phrasing.format_estimate(likelihood['kind'], likelihood_estimate)}"
    )
    return {
        "family": point["family"],
        "label": point["label"],
        "order": point["order"],
        "endpoint": point["endpoint"],
        "x": diversity_estimate["value"]
        if diversity["kind"] == "share"
        else max(MIN_SELF_BLEU, diversity_estimate["value"]),
        "y": likelihood_estimate["value"],
        "tip": tip,
    }


def _build_diversity_axis(rows: Sequence[DecodingResults], diversity: DecodingResults) -> alt.X:
    """Build the x axis, with diversity increasing to the right.

    Self-BLEU decreases with diversity, so its axis is reversed; its scale is logarithmic.
    """
    title = f"{diversity['title']} (more varied →)"
    if diversity["kind"] == "share":
        scale = alt.Scale(zero=False, padding=22, nice=False)
        return alt.X("x:Q", scale=scale, axis=alt.Axis(title=title, tickCount=5, labelExpr=PERCENT_LABEL_EXPR))
    low, high = min(row["x"] for row in rows), max(row["x"] for row in rows)
    scale = alt.Scale(type="log", domain=[high * 2.1, low / 1.5], nice=False)
    return alt.X("x:Q", scale=scale, axis=alt.Axis(title=title, values=choose_log_ticks(low, high), format=",~r"))


def _build_likelihood_axis(
    rows: Sequence[DecodingResults], human_estimate: DecodingResults | None, likelihood: DecodingResults
) -> alt.Y:
    """Build the y axis. Its scale is logarithmic for perplexity, and its domain includes human text."""
    values = [row["y"] for row in rows] + ([human_estimate["value"]] if human_estimate else [])
    low, high = min(values), max(values)
    if likelihood["kind"] != "perplexity":
        return alt.Y("y:Q", scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(title=None, tickCount=5))
    scale = alt.Scale(type="log", domain=[low * 0.9, high * 1.12], nice=False)
    return alt.Y("y:Q", scale=scale, axis=alt.Axis(title=None, values=choose_log_ticks(low, high), format=",~r"))


def _build_human_level(
    results: DecodingResults, likelihood: DecodingResults, x: alt.X, y: alt.Y, middle: float, datasets: ChartDatasets
) -> list[alt.Chart]:
    """Build the labelled line at the likelihood of human text. `middle` is the x position of the label."""
    estimate = results["people"].get(likelihood["name"])
    if estimate is None:
        return []
    tip = f"people: {likelihood['title']} {phrasing.format_estimate(likelihood['kind'], estimate)}"
    data = datasets.chart([{"x": middle, "y": estimate["value"], "said": "people", "tip": tip}])
    rule = data.mark_rule(color=style.ZERO_LINE_COLOR, strokeDash=[4, 3], strokeWidth=1.5).encode(
        y=y, description="tip:N"
    )
    text = data.mark_text(
        aria=False, align="center", baseline="bottom", dy=-3, fontSize=11, color=style.MUTED_TEXT_COLOR
    )
    return [rule, text.encode(x=x, y=y, text="said:N")]


def _build_point_labels(
    rows: Sequence[DecodingResults],
    families: Sequence[str],
    colors: Sequence[str],
    x: alt.X,
    y: alt.Y,
    datasets: ChartDatasets,
) -> list[alt.Chart]:
    """Label each point with its setting. Families use different sides of their line so that labels do not overlap."""
    layers = []
    for family, color, (align, baseline, dx, dy) in zip(families, colors, LABEL_PLACEMENTS, strict=False):
        family_rows = [row for row in rows if row["family"] == family and not row["endpoint"]]
        text = datasets.chart(family_rows).mark_text(
            aria=False, align=align, baseline=baseline, dx=dx, dy=dy, fontSize=10, color=color
        )
        layers.append(text.encode(x=x, y=y, text="label:N"))
    endpoint_rows = {row["endpoint"]: row for row in rows if row["endpoint"]}
    if endpoint_rows:
        text = datasets.chart(list(endpoint_rows.values())).mark_text(
            aria=False, align="right", dx=-9, fontSize=11, fontWeight=600, color=style.TEXT_COLOR
        )
        layers.append(text.encode(x=x, y=y, text="endpoint:N"))
    return layers


def build_trace_chart(strategy_trace: DecodingResults) -> Chart:
    """Build one bar per step: the most likely tokens in order of probability, coloured by their status."""
    steps = strategy_trace["steps"]
    summary = "; ".join(f"{step['step']}: {describe_step(step)}" for step in steps)

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _build_trace_layers(steps, layout, datasets)

    title = f"{strategy_trace['strategy']}, token by token"
    return Chart(f"trace-{strategy_trace['strategy']}", title, f"{title}. {summary}.", build)


def describe_step(step: DecodingResults) -> str:
    """Describe a step in words: the sampled token, its rank and probability, and the number of tokens kept."""
    description = f"drew {phrasing.format_token(step['token'])}, rank {step['rank']:,}, {phrasing.format_percent(step['probability'])} of the model's"  # noqa: E501
    if step["kept"] is None:
        return description
    noun = "token" if step["kept"] == 1 else "tokens"
    return f"{description}; kept {step['kept']:,} {noun} with {phrasing.format_percent(step['mass'])}"


def _build_trace_layers(steps: Sequence[DecodingResults], layout: Layout, datasets: ChartDatasets) -> AltairChart:
    """Build the bars and the token labels inside them."""
    is_wide = layout == "wide"
    width = 640 if is_wide else 220
    rows = [row for step in steps for row in _build_bar_segments(step, CHARACTER_WIDTHS[layout])]
    step_labels = [_format_step_label(step) for step in steps]
    statuses = [status for status in TOKEN_STATUS_COLORS if any(row["fate"] == status for row in rows)]
    color = alt.Color(
        "fate:N",
        scale=alt.Scale(domain=statuses, range=[TOKEN_STATUS_COLORS[status] for status in statuses]),
        legend=alt.Legend(symbolType="square", symbolOpacity=0.6, symbolStrokeWidth=0),
    )
    data = datasets.chart(rows)
    axis = alt.Axis(title="the model’s probability", format="%", tickCount=5, grid=False)
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    step_axis = alt.Axis(
        labelFontSize=11,
        labelLimit=150 if is_wide else 84,
        labelColor=style.TEXT_COLOR,
        ticks=False,
        domain=False,
        grid=False,
    )
    y = alt.Y("step:N", sort=step_labels, title=None, axis=step_axis)
    # Translucent, so that labels are legible on the bars in both the light and the dark theme.
    opacity = alt.Opacity(
        "fate:N",
        scale=alt.Scale(domain=statuses, range=[{"drawn": 0.75, "kept": 0.4}.get(status, 0.18) for status in statuses]),
    ).legend(None)
    layers = [
        data.mark_bar(height=17, stroke=style.GRID_COLOR, strokeWidth=0.7).encode(
            x=x, x2="to:Q", y=y, color=color, opacity=opacity, description="tip:N"
        ),
        datasets.chart([row for row in rows if row["shown"]])
        .mark_text(aria=False, align="center", baseline="middle", fontSize=10.5, color=style.TEXT_COLOR)
        .encode(x=alt.X("middle:Q", scale=alt.Scale(domain=[0, 1]), axis=axis), y=y, text="shown:N"),
    ]
    return alt.layer(*layers).properties(width=width, height=22 * len(steps))


def _format_step_label(step: DecodingResults) -> str:
    """Return the axis label of a step: its number and the sampled token."""
    return f"{step['step']}  {phrasing.format_token(step['token'])}"


def _build_bar_segments(step: DecodingResults, character_width: float) -> list[DecodingResults]:
    """Return one row of chart data per segment of a bar.

    A token is printed in its segment only if it fits; `character_width` is the fraction of a bar that a character
    takes.
    """
    rows, start = [], 0.0
    for entry in step["top"]:
        text = phrasing.format_token(entry["token"]) if entry["token"] is not None else f"{entry['count']:,} others"
        status = "drawn" if entry["drawn"] else "kept" if entry["kept"] else "dropped"
        strategy_note = (
            f", {phrasing.format_percent(entry['after'])} after the strategy"
            if entry["kept"] and entry["after"] is not None
            else ""
        )
        rows.append(
            {
                "step": _format_step_label(step),
                "from": start,
                "to": min(start + entry["probability"], 1.0),
                "middle": start + entry["probability"] / 2,
                "fate": status,
                "shown": text if entry["probability"] >= character_width * (len(text) + 1) else "",
                "tip": f"step {step['step']}, {text}: {phrasing.format_percent(entry['probability'])} of the model’s, {status}{strategy_note}",  # noqa: E501
            }
        )
        start += entry["probability"]
    return rows
