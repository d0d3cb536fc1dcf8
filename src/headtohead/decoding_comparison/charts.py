"""The charts of the decoding comparison: every measure with its interval, likelihood against variety, and token by
token what the model offered, what a strategy kept of it and what was drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import altair as alt

from headtohead.decoding_comparison import phrasing as say
from headtohead.presentation import style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, PanelGrid, choose_log_ticks

DecodingResults = dict[str, Any]
Panel = alt.LayerChart | alt.FacetChart

HUMAN_LABEL = "people"
LIKELIHOOD_METRICS = ("perplexity", "second")
DIVERSITY_METRICS = ("self-bleu", "distinct-2")
"""the first that is known; BLEU tells apart what nearly all pairs of words being different cannot"""
MIN_SELF_BLEU = 0.1
"""a logarithm needs more than no BLEU at all"""
SWEEP_FAMILIES = {"temperature": "temperature", "top-k": "top-k", "top-p": "top-p"}
TOKEN_STATUS_COLORS = {
    "drawn": style.VARIANT_COLORS[5],
    "kept": style.VARIANT_COLORS[0],
    "dropped": style.BASELINE_COLOR,
}
CHARACTER_WIDTHS = {"wide": 0.012, "narrow": 0.03}
"""the share of a bar that a letter takes"""
LabelPlacement = tuple[Literal["left", "right"], Literal["top", "middle", "bottom"], int, int]
LABEL_PLACEMENTS: Sequence[LabelPlacement] = (
    ("right", "bottom", -6, -3),
    ("left", "middle", 8, 2),
    ("right", "top", -4, 5),
)
"""where the words stand beside a mark"""
PERCENT_LABEL_EXPR = "format(datum.value * 100, ',~r') + '\u00a0%'"


def build_charts(results: DecodingResults) -> list[Chart]:
    """Those for which there is something to draw, in the page's order."""
    made = [build_interval_chart(results)]
    if results["sweep"]["points"]:
        made.append(build_tradeoff_chart(results))
    return made + [build_trace_chart(one) for one in results["traces"]]


def build_interval_chart(results: DecodingResults) -> Chart:
    """A small multiple for each measure: every strategy's figure with its interval over prompts; people's as a line."""
    names = list(results["figures"])
    measures = [one for one in results["measures"] if any(one["name"] in results["figures"][name] for name in names)]
    said = "; ".join(
        f"{one['title']}: "
        + ", ".join(
            f"{name} {say.format_estimate(one['kind'], results['figures'][name].get(one['name']))}" for name in names
        )
        for one in measures
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        panels = [_build_interval_panel(results, one, names, sheets) for one in measures]
        return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=66, column=128))

    high = 24 * len(names) + 8
    sizes: dict[Layout, PanelGrid] = {"wide": PanelGrid(170, high, 3, 4), "narrow": PanelGrid(190, high, 1, 2)}
    return Chart("measures", "Every measure, strategy by strategy", f"Figures with intervals. {said}.", build, sizes)


def _build_interval_panel(
    results: DecodingResults, metric: DecodingResults, strategies: Sequence[str], sheets: ChartDatasets
) -> Panel:
    rows = []
    for name in strategies:
        if figure := results["figures"][name].get(metric["name"]):
            low, high = figure["interval"] or (figure["value"], figure["value"])
            tip = f"{name}: {metric['title']} {say.format_estimate(metric['kind'], figure)}"
            rows.append({"strategy": name, "value": figure["value"], "low": low, "high": high, "tip": tip})
    hues, shapes, _ = style.assign_variant_styles(list(strategies))
    hue = alt.Color("strategy:N", scale=alt.Scale(domain=list(strategies), range=hues), legend=None)
    shape = alt.Shape("strategy:N", scale=alt.Scale(domain=list(strategies), range=shapes), legend=None)
    data = sheets.chart(rows)
    label = (
        "format(datum.value * 100, ',~r') + '\u00a0%'" if metric["kind"] == "share" else "format(datum.value, ',~r')"
    )
    axis = alt.Axis(title=None, tickCount=4, labelExpr=label)
    scale = alt.Scale(zero=False, padding=10, nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    named = alt.Axis(
        labelFontSize=11, labelLimit=120, labelColor=style.TEXT_COLOR, ticks=False, domain=False, grid=True
    )
    y = alt.Y("strategy:N", sort=list(strategies), title=None, axis=named)
    layers = [
        *_build_human_rule(results, metric, sheets, x),
        data.mark_rule(strokeWidth=2).encode(x=x("low:Q"), x2="high:Q", y=y, color=hue, description="tip:N"),
        data.mark_point(size=70, filled=True, opacity=1).encode(
            x=x("value:Q"), y=y, color=hue, shape=shape, description="tip:N"
        ),
    ]
    better = {"lower": "lower is better", "higher": "higher is better"}.get(metric["better"] or "", "")
    return alt.layer(*layers).properties(title=alt.TitleParams(metric["title"], subtitle=better))


def _build_human_rule(
    results: DecodingResults, metric: DecodingResults, sheets: ChartDatasets, build_x: Any
) -> list[alt.Chart]:
    figure = results["people"].get(metric["name"])
    if figure is None:
        return []
    tip = f"people: {metric['title']} {say.format_estimate(metric['kind'], figure)}"
    mark = sheets.chart([{"people": figure["value"], "tip": tip}]).mark_rule(
        color=style.ZERO_LINE_COLOR, strokeDash=[4, 3], strokeWidth=1.5
    )
    return [mark.encode(x=build_x("people:Q"), description="tip:N")]


def build_tradeoff_chart(results: DecodingResults) -> Chart:
    """How likely the text is against how varied, along temperature, k and p."""
    points = results["sweep"]["points"]
    likelihoods = [name for name in LIKELIHOOD_METRICS if any(name in point["figures"] for point in points)]
    titles = {one["name"]: one for one in results["measures"]}
    variety = titles[next(name for name in DIVERSITY_METRICS if name in titles)]
    said = "; ".join(
        f"{point['family']} {point['label']}: {variety['title']} {_format_point_value(point, variety)}, "
        + ", ".join(f"{titles[name]['title']} {_format_point_value(point, titles[name])}" for name in likelihoods)
        for point in points
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        panels = [_build_tradeoff_panel(results, variety, titles[name], sheets) for name in likelihoods]
        return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=80, column=70))

    wide = PanelGrid(370, 320, 2, 4) if len(likelihoods) > 1 else PanelGrid(700, 340, 1, 4)
    sizes: dict[Layout, PanelGrid] = {"wide": wide, "narrow": PanelGrid(270, 290, 1, 2)}
    return Chart("tradeoff", "Likelihood against variety", f"The sweep. {said}.", build, sizes)


def _format_point_value(point: DecodingResults, metric: DecodingResults) -> str:
    found = point["figures"].get(metric["name"])
    return say.format_value(metric["kind"], found["value"]) if found else "unknown"


def _build_tradeoff_panel(
    results: DecodingResults, diversity: DecodingResults, likelihood: DecodingResults, sheets: ChartDatasets
) -> Panel:
    made = (_build_point_row(point, diversity, likelihood) for point in results["sweep"]["points"])
    rows = [row for row in made if row is not None]
    families = [name for name in SWEEP_FAMILIES if any(row["family"] == name for row in rows)]
    hues, shapes, dashes = style.assign_variant_styles(["", *families])
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    hue = alt.Color("family:N", scale=alt.Scale(domain=families, range=hues[1:]), legend=legend)
    shape = alt.Shape("family:N", scale=alt.Scale(domain=families, range=shapes[1:]), legend=legend)
    dash = alt.StrokeDash("family:N", scale=alt.Scale(domain=families, range=dashes[1:]), legend=None)
    data = sheets.chart(rows)
    x, across = _build_diversity_axis(rows, diversity), [row["x"] for row in rows]
    y = _build_likelihood_axis(rows, results["people"].get(likelihood["name"]), likelihood)
    layers = [
        *_build_human_level(results, likelihood, x, y, math.sqrt(min(across) * max(across)), sheets),
        data.mark_line(aria=False, strokeWidth=1.5, opacity=0.8).encode(
            x=x, y=y, color=hue, strokeDash=dash, order="order:Q", detail="family:N"
        ),
        data.mark_point(size=46, filled=True, opacity=1).encode(x=x, y=y, color=hue, shape=shape, description="tip:N"),
        *_build_point_labels(rows, families, hues[1:], x, y, sheets),
    ]
    return alt.layer(*layers).properties(title=f"{likelihood['title']} (likelier ↓)")


def _build_point_row(
    point: DecodingResults, diversity: DecodingResults, likelihood: DecodingResults
) -> DecodingResults | None:
    across, up = point["figures"].get(diversity["name"]), point["figures"].get(likelihood["name"])
    if across is None or up is None:
        return None
    tip = (
        f"{point['family']} {point['label']}: {diversity['title']} {say.format_estimate(diversity['kind'], across)}, "
        f"{likelihood['title']} {say.format_estimate(likelihood['kind'], up)}"
    )
    return {
        "family": point["family"],
        "label": point["label"],
        "order": point["order"],
        "endpoint": point["endpoint"],
        "x": across["value"] if diversity["kind"] == "share" else max(MIN_SELF_BLEU, across["value"]),
        "y": up["value"],
        "tip": tip,
    }


def _build_diversity_axis(rows: Sequence[DecodingResults], diversity: DecodingResults) -> alt.X:
    """More varied to the right: for BLEU that is from 100 down, by its logarithm."""
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
    values = [row["y"] for row in rows] + ([human_estimate["value"]] if human_estimate else [])
    low, high = min(values), max(values)
    if likelihood["kind"] != "perplexity":
        return alt.Y("y:Q", scale=alt.Scale(zero=False, padding=14), axis=alt.Axis(title=None, tickCount=5))
    scale = alt.Scale(type="log", domain=[low * 0.9, high * 1.12], nice=False)
    return alt.Y("y:Q", scale=scale, axis=alt.Axis(title=None, values=choose_log_ticks(low, high), format=",~r"))


def _build_human_level(
    results: DecodingResults, likelihood: DecodingResults, x: alt.X, y: alt.Y, middle: float, sheets: ChartDatasets
) -> list[alt.Chart]:
    figure = results["people"].get(likelihood["name"])
    if figure is None:
        return []
    tip = f"people: {likelihood['title']} {say.format_estimate(likelihood['kind'], figure)}"
    data = sheets.chart([{"x": middle, "y": figure["value"], "said": "people", "tip": tip}])
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
    hues: Sequence[str],
    x: alt.X,
    y: alt.Y,
    sheets: ChartDatasets,
) -> list[alt.Chart]:
    """The setting beside its mark: one family above its line, the next below, so that they do not meet."""
    made = []
    for family, hue, (align, baseline, dx, dy) in zip(families, hues, LABEL_PLACEMENTS, strict=False):
        own = [row for row in rows if row["family"] == family and not row["endpoint"]]
        mark = sheets.chart(own).mark_text(
            aria=False, align=align, baseline=baseline, dx=dx, dy=dy, fontSize=10, color=hue
        )
        made.append(mark.encode(x=x, y=y, text="label:N"))
    ends = {row["endpoint"]: row for row in rows if row["endpoint"]}
    if ends:
        text = sheets.chart(list(ends.values())).mark_text(
            aria=False, align="right", dx=-9, fontSize=11, fontWeight=600, color=style.TEXT_COLOR
        )
        made.append(text.encode(x=x, y=y, text="endpoint:N"))
    return made


def build_trace_chart(strategy_trace: DecodingResults) -> Chart:
    """A bar for each token: the model's likeliest tokens in their order, coloured by what became of them."""
    steps = strategy_trace["steps"]
    said = "; ".join(f"{step['step']}: {describe_step(step)}" for step in steps)

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        return _build_trace_layers(steps, layout, sheets)

    title = f"{strategy_trace['strategy']}, token by token"
    return Chart(f"trace-{strategy_trace['strategy']}", title, f"{title}. {said}.", build)


def describe_step(step: DecodingResults) -> str:
    """What happened at a step, in words."""
    drawn = f"drew {say.format_token(step['token'])}, rank {step['rank']:,}, {say.format_percent(step['probability'])} of the model's"  # noqa: E501
    if step["kept"] is None:
        return drawn
    tokens = "token" if step["kept"] == 1 else "tokens"
    return f"{drawn}; kept {step['kept']:,} {tokens} with {say.format_percent(step['mass'])}"


def _build_trace_layers(steps: Sequence[DecodingResults], layout: Layout, sheets: ChartDatasets) -> AltairChart:
    wide = layout == "wide"
    width = 640 if wide else 220
    rows = [row for step in steps for row in _build_bar_segments(step, CHARACTER_WIDTHS[layout])]
    order = [_format_step_label(step) for step in steps]
    fates = [fate for fate in TOKEN_STATUS_COLORS if any(row["fate"] == fate for row in rows)]
    hue = alt.Color(
        "fate:N",
        scale=alt.Scale(domain=fates, range=[TOKEN_STATUS_COLORS[fate] for fate in fates]),
        legend=alt.Legend(symbolType="square", symbolOpacity=0.6, symbolStrokeWidth=0),
    )
    data = sheets.chart(rows)
    axis = alt.Axis(title="the model’s probability", format="%", tickCount=5, grid=False)
    x = alt.X("from:Q", scale=alt.Scale(domain=[0, 1]), axis=axis)
    names = alt.Axis(
        labelFontSize=11,
        labelLimit=150 if wide else 84,
        labelColor=style.TEXT_COLOR,
        ticks=False,
        domain=False,
        grid=False,
    )
    y = alt.Y("step:N", sort=order, title=None, axis=names)
    # Half see-through, so that dark words stand on light colours by day and light words on dark ones by night.
    opacity = alt.Opacity(
        "fate:N", scale=alt.Scale(domain=fates, range=[{"drawn": 0.75, "kept": 0.4}.get(f, 0.18) for f in fates])
    ).legend(None)
    layers = [
        data.mark_bar(height=17, stroke=style.GRID_COLOR, strokeWidth=0.7).encode(
            x=x, x2="to:Q", y=y, color=hue, opacity=opacity, description="tip:N"
        ),
        sheets.chart([row for row in rows if row["shown"]])
        .mark_text(aria=False, align="center", baseline="middle", fontSize=10.5, color=style.TEXT_COLOR)
        .encode(x=alt.X("middle:Q", scale=alt.Scale(domain=[0, 1]), axis=axis), y=y, text="shown:N"),
    ]
    return alt.layer(*layers).properties(width=width, height=22 * len(steps))


def _format_step_label(step: DecodingResults) -> str:
    return f"{step['step']}  {say.format_token(step['token'])}"


def _build_bar_segments(step: DecodingResults, character_width: float) -> list[DecodingResults]:
    rows, at = [], 0.0
    for one in step["top"]:
        text = say.format_token(one["token"]) if one["token"] is not None else f"{one['count']:,} others"
        fate = "drawn" if one["drawn"] else "kept" if one["kept"] else "dropped"
        after = (
            f", {say.format_percent(one['after'])} after the strategy"
            if one["kept"] and one["after"] is not None
            else ""
        )
        rows.append(
            {
                "step": _format_step_label(step),
                "from": at,
                "to": min(at + one["probability"], 1.0),
                "middle": at + one["probability"] / 2,
                "fate": fate,
                "shown": text if one["probability"] >= character_width * (len(text) + 1) else "",
                "tip": f"step {step['step']}, {text}: {say.format_percent(one['probability'])} of the model’s, {fate}{after}",  # noqa: E501
            }
        )
        at += one["probability"]
    return rows
