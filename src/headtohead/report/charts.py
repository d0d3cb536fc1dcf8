"""Every chart of the report, as altair describes it: one description gives SVG, PDF and PNG, offline.

A chart comes in two layouts, wide and narrow (a phone), and with its content in words. Each mark carries its figures
as a description, which the page shows when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import altair as alt

from headtohead.atomic_io import write_bytes
from headtohead.attention_analysis.head_chart import build_heads_chart
from headtohead.errors import RequestError
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import CurvePoint, Findings, PairedScore
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import (
    MAX_TICKS,
    AltairChart,
    Chart,
    ChartDatasets,
    Layout,
    PanelGrid,
    _choose_log_ticks,
    build_effect_label_expression,
    build_score_label_expression,
)
from headtohead.report.axis_chart import build_axis_chart
from headtohead.report.comparisons import build_comparison_charts
from headtohead.report.fit_chart import build_fit_chart
from headtohead.report.forest import OUTLIER_FACTOR, build_forest_plot
from headtohead.search.charts import build_search_charts

STEEP_START_RATIO = 3
"""a first point so many times above the second would press the rest of a curve flat: it is left out of the picture"""
MAX_PANELS = 24


def build_charts(findings: Findings) -> list[Chart]:
    """Those for which there is something to draw, in the report's order."""
    found: list[Chart] = []
    metric = findings_view.get_metric(findings)
    if rows := findings_view.get_verdicts(findings):
        found.append(build_forest_plot(rows, metric, findings_view.get_equivalence_margin(findings)))
    found += build_comparison_charts(findings)
    found += build_search_charts(findings)
    if splits := [
        split
        for split in findings_view.list_splits(findings, "curves")
        if findings_view.compute_learning_curves(findings, split)
    ]:
        found.append(build_learning_curves(findings, splits))
        if any(findings_view.compute_difference_curves(findings, split) for split in splits):
            found.append(build_difference_curves(findings, splits))
    if (fit := build_fit_chart(findings)) is not None:
        found.append(fit)
    if pairs := findings_view.pair_scores_by_seed(findings):
        found.append(build_paired_score_chart(pairs, metric))
    if (against := build_axis_chart(findings)) is not None:
        found.append(against)
    if (heads := build_heads_chart(findings)) is not None:
        found.append(heads)
    return found


def build_learning_curves(findings: Findings, splits: Sequence[str]) -> Chart:
    """One small multiple a split: mean over seeds, and a band from the lowest to the highest seed."""
    metric = findings_view.get_metric(findings)
    points = {
        split: drop_steep_start(findings_view.compute_learning_curves(findings, split), metric) for split in splits
    }
    title = f"{metric.capitalize()} while training"
    ends = [
        f"{split}: {_describe_final_values(found, lambda at: number_format.format_score(metric, at))}"
        for split, found in points.items()
    ]
    said = f"Learning curves, one picture for each of {', '.join(splits)}. At the end, " + "; ".join(ends) + "."

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        names = findings_view.list_variant_names(findings)
        return _draw_curve_panels(
            points, names, sheets, _build_curve_y_axis(metric), lambda at: number_format.format_score(metric, at)
        )

    return Chart("curves", title, said, build, _size_curve_panels(len(points)))


def _size_curve_panels(num_panels: int) -> Mapping[Layout, PanelGrid]:
    wide = PanelGrid(372, 200, 2, 4) if num_panels > 1 else PanelGrid(700, 260, 1, 4)
    return {"wide": wide, "narrow": PanelGrid(286, 180, 1, 2)}


def build_difference_curves(findings: Findings, splits: Sequence[str]) -> Chart:
    """The same as the difference to the baseline, seed by seed: where two curves lie too close to be told apart."""
    metric, matters = findings_view.get_metric(findings), findings_view.get_equivalence_margin(findings)
    points = {split: found for split in splits if (found := findings_view.compute_difference_curves(findings, split))}
    title = f"Difference to the baseline while training ({number_format.get_effect_unit(metric).strip() or metric})"
    ends = [
        f"{split}: {_describe_final_values(found, lambda at: number_format.format_effect(metric, at))}"
        for split, found in points.items()
    ]
    said = "The difference to the baseline along the way, paired by seed. At the end, " + "; ".join(ends) + "."

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        def y(field: str, points: list[CurvePoint]) -> alt.Y:
            scale = alt.Scale(domain=_compute_difference_limits(points, matters), nice=False)
            return alt.Y(
                field,
                scale=scale,
                axis=alt.Axis(labelExpr=build_effect_label_expression(metric), title=None, tickCount=4),
            )

        names = findings_view.list_variant_names(findings)
        return _draw_curve_panels(
            points, names, sheets, y, lambda at: number_format.format_effect(metric, at), equivalence_margin=matters
        )

    return Chart("differences", title, said, build, _size_curve_panels(len(points)))


def _compute_difference_limits(points: Sequence[CurvePoint], equivalence_margin: float) -> list[float]:
    """Where the axis begins and ends: a variant that is far from all others does not press them flat."""
    ends = [end for point in points for end in (point.low, point.high)]
    sizes = sorted(map(abs, ends))
    far = OUTLIER_FACTOR * max(sizes[len(sizes) // 2], equivalence_margin)
    near = [end for end in ends if abs(end) <= far]
    return [1.08 * min(-1.6 * equivalence_margin, *near), 1.08 * max(1.6 * equivalence_margin, *near)]


def _describe_final_values(points: Sequence[CurvePoint], format_value: Callable[[float], str]) -> str:
    last = {point.variant: point for point in points}
    return ", ".join(f"{name} {format_value(point.mean)}" for name, point in last.items())


def drop_steep_start(points: list[CurvePoint], metric: str) -> list[CurvePoint]:
    """Without the evaluation at step 0, where a language model's perplexity is about the size of its vocabulary."""
    steps = sorted({point.at for point in points})
    if metric != "perplexity" or len(steps) < 4:
        return points
    first, second = (max(point.mean for point in points if point.at == at) for at in steps[:2])
    return [point for point in points if point.at != steps[0]] if first > STEEP_START_RATIO * second else points


def _build_curve_y_axis(metric: str) -> Callable[[str, list[CurvePoint]], alt.Y]:
    def y(field: str, points: list[CurvePoint]) -> alt.Y:
        if metric != "perplexity":
            axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_label_expression(metric))
            return alt.Y(field, scale=alt.Scale(zero=False, padding=6), axis=axis)
        low, high = min(point.low for point in points), max(point.high for point in points)
        scale = alt.Scale(type="log", domain=[low * 0.95, high * 1.05], nice=False)
        return alt.Y(field, scale=scale, axis=alt.Axis(title=None, values=_choose_log_ticks(low, high), format=",~r"))

    return y


def _draw_curve_panels(
    points: dict[str, list[CurvePoint]],
    variant_names: list[str],
    datasets: ChartDatasets,
    y: Callable[[str, list[CurvePoint]], alt.Y],
    format_value: Callable[[float], str],
    equivalence_margin: float | None = None,
) -> AltairChart:
    hues, shapes, dashes = style.assign_variant_styles(variant_names)
    present = [name for name in variant_names if any(p.variant == name for found in points.values() for p in found)]
    at = [variant_names.index(name) for name in present]
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    colours = alt.Scale(domain=present, range=[hues[i] for i in at])
    hue = alt.Color("variant:N", scale=colours, legend=legend)
    shape = alt.Shape("variant:N", scale=alt.Scale(domain=present, range=[shapes[i] for i in at]), legend=legend)
    dash = alt.StrokeDash("variant:N", scale=alt.Scale(domain=present, range=[dashes[i] for i in at]), legend=None)
    panels = []
    for split, found in points.items():
        rows = [{**asdict(point), "tip": _format_curve_tooltip(split, point, format_value)} for point in found]
        data = datasets.chart(rows)
        x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=_build_step_axis(found))
        layers = [
            *_draw_margin_band(equivalence_margin, datasets),
            data.mark_area(aria=False, opacity=0.16, clip=True).encode(
                x=x, y=y("low:Q", found), y2="high:Q", color=hue
            ),
            data.mark_line(aria=False, strokeWidth=2, clip=True).encode(
                x=x, y=y("mean:Q", found), color=hue, strokeDash=dash
            ),
            data.mark_point(size=34, filled=True, opacity=1, clip=True).encode(
                x=x, y=y("mean:Q", found), color=hue, shape=shape, description="tip:N"
            ),
        ]
        panels.append(alt.layer(*layers).properties(title=split))
    return _arrange_panels(panels)


def _arrange_panels(panels: Sequence[alt.LayerChart | alt.FacetChart]) -> AltairChart:
    """Plot beside plot: what is written around one does not push its neighbour out of line."""
    return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=80, column=58))


def _build_step_axis(points: Sequence[CurvePoint]) -> alt.Axis:
    """The steps that were evaluated, if they are few; round ones otherwise."""
    steps = sorted({point.at for point in points})
    if len(steps) <= MAX_TICKS:
        return alt.Axis(title="step", grid=False, format=",d", values=steps)
    return alt.Axis(title="step", grid=False, format=",d", tickCount=5)


def _draw_margin_band(equivalence_margin: float | None, datasets: ChartDatasets) -> list[alt.Chart]:
    if equivalence_margin is None:
        return []
    data = datasets.chart([{"from": -equivalence_margin, "to": equivalence_margin, "zero": 0}])
    from_side, to_side = alt.value(0), alt.value("width")
    return [
        data.mark_rect(aria=False, color=style.MARGIN_BAND_COLOR).encode(
            x=from_side, x2=to_side, y=alt.Y("from:Q", title=None), y2="to:Q"
        ),
        data.mark_rule(aria=False, color=style.ZERO_LINE_COLOR).encode(y=alt.Y("zero:Q", title=None)),
    ]


def _format_curve_tooltip(split: str, point: CurvePoint, format_value: Callable[[float], str]) -> str:
    seeds = f"seeds from {format_value(point.low)} to {format_value(point.high)}" if point.seeds > 1 else "one seed"
    return f"{point.variant}, {split}, step {point.at:,}: {format_value(point.mean)} ({seeds})"


def build_paired_score_chart(pairs: Sequence[PairedScore], metric: str) -> Chart:
    """From the baseline's score to the variant's, a line for each seed."""
    panels = list(dict.fromkeys((pair.variant, pair.text) for pair in pairs))[:MAX_PANELS]
    counts = []
    for name, text in panels:
        own = [pair for pair in pairs if (pair.variant, pair.text) == (name, text)]
        better = sum(number_format.is_improvement(metric, pair.effect) for pair in own)
        counts.append(f"{name} on {text}: better than the baseline with {better} of {len(own)} seeds")
    said = "Each seed's score, from the baseline to the variant. " + "; ".join(counts) + "."

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        return _draw_slope_panels(pairs, panels, metric, sheets)

    return Chart(
        "pairs",
        f"{metric.capitalize()} seed by seed, from the baseline to the variant",
        said,
        build,
        _size_slope_panels(len(panels)),
    )


def _size_slope_panels(num_panels: int) -> Mapping[Layout, PanelGrid]:
    wide, narrow = min(num_panels, 4), min(num_panels, 2)
    return {
        "wide": PanelGrid({1: 300, 2: 280, 3: 210}.get(wide, 150), 170, wide, 3),
        "narrow": PanelGrid({1: 260}.get(narrow, 112), 170, narrow, 3),
    }


def _draw_slope_panels(
    pairs: Sequence[PairedScore], panels: Sequence[tuple[str, str]], metric: str, datasets: ChartDatasets
) -> AltairChart:
    looks = {"better": (style.VERDICT_COLORS["helped"], [1, 0]), "worse": (style.VERDICT_COLORS["hurt"], [5, 3])}
    looks["equal"] = (style.MUTED_TEXT_COLOR, [2, 2])
    outcomes = [outcome for outcome in looks if any(_classify_pair(pair, metric) == outcome for pair in pairs)]
    scale = alt.Scale(domain=outcomes, range=[looks[outcome][0] for outcome in outcomes])
    dashes = alt.Scale(domain=outcomes, range=[looks[outcome][1] for outcome in outcomes])
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    made = []
    for name, text in panels:
        own = [pair for pair in pairs if (pair.variant, pair.text) == (name, text)]
        rows = [row for pair in own for row in _make_slope_rows(pair, metric)]
        data = datasets.chart(rows)
        axis = alt.Axis(title=None, tickCount=5, labelExpr=build_score_label_expression(metric))
        x = alt.X(
            "side:N", sort=None, title=None, scale=alt.Scale(padding=0.35), axis=alt.Axis(labelAngle=0, grid=False)
        )
        y = alt.Y("value:Q", scale=alt.Scale(zero=False, padding=10, nice=False), axis=axis)
        hue = alt.Color("outcome:N", scale=scale, legend=legend)
        layers = [
            data.mark_line(aria=False, strokeWidth=2).encode(
                x=x,
                y=y,
                detail="seed:N",
                color=hue,
                strokeDash=alt.StrokeDash("outcome:N", scale=dashes, legend=legend),
            ),
            data.mark_point(size=42, filled=True, opacity=1).encode(x=x, y=y, color=hue, description="tip:N"),
        ]
        made.append(alt.layer(*layers).properties(title=alt.TitleParams(name, subtitle=text)))
    return _arrange_panels(made)


def _classify_pair(pair: PairedScore, metric: str) -> str:
    if pair.effect == 0:
        return "equal"
    return "better" if number_format.is_improvement(metric, pair.effect) else "worse"


def _make_slope_rows(pair: PairedScore, metric: str) -> list[dict[str, Any]]:
    outcome = _classify_pair(pair, metric)
    first, second = number_format.format_score(metric, pair.baseline), number_format.format_score(metric, pair.value)
    tip = f"seed {pair.seed}: baseline {first}, {pair.variant} {second} ({number_format.format_effect(metric, pair.effect)})"  # noqa: E501
    row = {"seed": pair.seed, "outcome": outcome, "tip": tip}
    return [{**row, "side": "baseline", "value": pair.baseline}, {**row, "side": "variant", "value": pair.value}]


def save_forest_plot(verdicts: Sequence[dict[str, Any]], path: Path) -> None:
    """Verdicts as a picture (.svg, .pdf, .png) or a page (.html): for scores that were brought from elsewhere."""
    from headtohead.report.page import render_page  # the page draws charts, so it knows this file already

    metric = str(verdicts[0]["metric"]) if verdicts else ""
    chart = build_forest_plot(verdicts, metric, findings_view.get_equivalence_margin({"verdicts": list(verdicts)}))
    makers: dict[str, Callable[[], bytes]] = {
        ".html": lambda: render_page({"verdicts": list(verdicts)}).encode(),
        ".svg": lambda: chart.svg(background="white").encode(),
        ".pdf": chart.to_pdf,
        ".png": chart.to_png,
    }
    if path.suffix not in makers:
        raise RequestError(f"{path}: the ending {path.suffix!r} is not known; allowed: {', '.join(makers)}")
    write_bytes(path, makers[path.suffix]())
