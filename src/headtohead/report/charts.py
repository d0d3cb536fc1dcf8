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
from headtohead.attention_analysis.head_chart import heads_chart
from headtohead.errors import RequestError
from headtohead.presentation import number_format, style
from headtohead.presentation.chart import Built, Chart, Layout, Panels, Sheets, change_words, value_words
from headtohead.report import findings_view
from headtohead.report.axis_chart import axis_chart
from headtohead.report.comparisons import comparison_charts
from headtohead.report.findings_view import Findings, Paired, Point
from headtohead.report.fit_chart import fit_chart
from headtohead.report.forest import FAR, forest
from headtohead.search.charts import search_charts

STEEP = 3
"""a first point so many times above the second would press the rest of a curve flat: it is left out of the picture"""
DIGITS = (
    (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 2, 3, 5, 7),
    (1, 2, 5),
    (1,),
)
MOST_TICKS = 6
MOST_PANELS = 24


def charts(findings: Findings) -> list[Chart]:
    """Those for which there is something to draw, in the report's order."""
    found: list[Chart] = []
    metric = findings_view.metric(findings)
    if rows := findings_view.verdicts(findings):
        found.append(forest(rows, metric, findings_view.matters(findings)))
    found += comparison_charts(findings)
    found += search_charts(findings)
    if splits := [
        split for split in findings_view.splits_of(findings, "curves") if findings_view.curves(findings, split)
    ]:
        found.append(learning_curves(findings, splits))
        if any(findings_view.differences(findings, split) for split in splits):
            found.append(difference_curves(findings, splits))
    if (fit := fit_chart(findings)) is not None:
        found.append(fit)
    if pairs := findings_view.paired(findings):
        found.append(paired_lines(pairs, metric))
    if (against := axis_chart(findings)) is not None:
        found.append(against)
    if (heads := heads_chart(findings)) is not None:
        found.append(heads)
    return found


def learning_curves(findings: Findings, splits: Sequence[str]) -> Chart:
    """One small multiple a split: mean over seeds, and a band from the lowest to the highest seed."""
    metric = findings_view.metric(findings)
    points = {split: without_steep_start(findings_view.curves(findings, split), metric) for split in splits}
    title = f"{metric.capitalize()} while training"
    ends = [f"{split}: {_ends(found, lambda at: number_format.value(metric, at))}" for split, found in points.items()]
    said = f"Learning curves, one picture for each of {', '.join(splits)}. At the end, " + "; ".join(ends) + "."

    def build(layout: Layout, sheets: Sheets) -> Built:
        names = findings_view.names(findings)
        return _multiples(points, names, sheets, _curve_axis(metric), lambda at: number_format.value(metric, at))

    return Chart("curves", title, said, build, _curve_panels(len(points)))


def _curve_panels(count: int) -> Mapping[Layout, Panels]:
    wide = Panels(372, 200, 2, 4) if count > 1 else Panels(700, 260, 1, 4)
    return {"wide": wide, "narrow": Panels(286, 180, 1, 2)}


def difference_curves(findings: Findings, splits: Sequence[str]) -> Chart:
    """The same as the difference to the baseline, seed by seed: where two curves lie too close to be told apart."""
    metric, matters = findings_view.metric(findings), findings_view.matters(findings)
    points = {split: found for split in splits if (found := findings_view.differences(findings, split))}
    title = f"Difference to the baseline while training ({number_format.unit(metric).strip() or metric})"
    ends = [f"{split}: {_ends(found, lambda at: number_format.change(metric, at))}" for split, found in points.items()]
    said = "The difference to the baseline along the way, paired by seed. At the end, " + "; ".join(ends) + "."

    def build(layout: Layout, sheets: Sheets) -> Built:
        def y(field: str, points: list[Point]) -> alt.Y:
            scale = alt.Scale(domain=_difference_limits(points, matters), nice=False)
            return alt.Y(field, scale=scale, axis=alt.Axis(labelExpr=change_words(metric), title=None, tickCount=4))

        names = findings_view.names(findings)
        return _multiples(points, names, sheets, y, lambda at: number_format.change(metric, at), matters=matters)

    return Chart("differences", title, said, build, _curve_panels(len(points)))


def _difference_limits(points: Sequence[Point], matters: float) -> list[float]:
    """Where the axis begins and ends: a variant that is far from all others does not press them flat."""
    ends = [end for point in points for end in (point.low, point.high)]
    sizes = sorted(map(abs, ends))
    far = FAR * max(sizes[len(sizes) // 2], matters)
    near = [end for end in ends if abs(end) <= far]
    return [1.08 * min(-1.6 * matters, *near), 1.08 * max(1.6 * matters, *near)]


def _ends(points: Sequence[Point], say: Callable[[float], str]) -> str:
    last = {point.variant: point for point in points}
    return ", ".join(f"{name} {say(point.mean)}" for name, point in last.items())


def without_steep_start(points: list[Point], metric: str) -> list[Point]:
    """Without the evaluation at step 0, where a language model's perplexity is about the size of its vocabulary."""
    steps = sorted({point.at for point in points})
    if metric != "perplexity" or len(steps) < 4:
        return points
    first, second = (max(point.mean for point in points if point.at == at) for at in steps[:2])
    return [point for point in points if point.at != steps[0]] if first > STEEP * second else points


def _curve_axis(metric: str) -> Callable[[str, list[Point]], alt.Y]:
    def y(field: str, points: list[Point]) -> alt.Y:
        if metric != "perplexity":
            axis = alt.Axis(title=None, tickCount=5, labelExpr=value_words(metric))
            return alt.Y(field, scale=alt.Scale(zero=False, padding=6), axis=axis)
        low, high = min(point.low for point in points), max(point.high for point in points)
        scale = alt.Scale(type="log", domain=[low * 0.95, high * 1.05], nice=False)
        return alt.Y(field, scale=scale, axis=alt.Axis(title=None, values=_log_ticks(low, high), format=",~r"))

    return y


def _log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends, as many as there is room for."""
    for digits in DIGITS:
        ticks = [digit * 10.0**power for power in range(-1, 12) for digit in digits]
        ticks = [tick for tick in ticks if 0.95 * low <= tick <= 1.05 * high]
        if len(ticks) <= MOST_TICKS:
            break
    return ticks


def _multiples(
    points: dict[str, list[Point]],
    names: list[str],
    sheets: Sheets,
    y: Callable[[str, list[Point]], alt.Y],
    say: Callable[[float], str],
    matters: float | None = None,
) -> Built:
    hues, shapes, dashes = style.scales(names)
    present = [name for name in names if any(p.variant == name for found in points.values() for p in found)]
    at = [names.index(name) for name in present]
    legend = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
    colours = alt.Scale(domain=present, range=[hues[i] for i in at])
    hue = alt.Color("variant:N", scale=colours, legend=legend)
    shape = alt.Shape("variant:N", scale=alt.Scale(domain=present, range=[shapes[i] for i in at]), legend=legend)
    dash = alt.StrokeDash("variant:N", scale=alt.Scale(domain=present, range=[dashes[i] for i in at]), legend=None)
    panels = []
    for split, found in points.items():
        rows = [{**asdict(point), "tip": _curve_tip(split, point, say)} for point in found]
        data = sheets.chart(rows)
        x = alt.X("at:Q", scale=alt.Scale(nice=False, padding=7), axis=_step_axis(found))
        layers = [
            *_bands(matters, sheets),
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
    return _grid(panels)


def _grid(panels: Sequence[alt.LayerChart | alt.FacetChart]) -> Built:
    """Plot beside plot: what is written around one does not push its neighbour out of line."""
    return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=80, column=58))


def _step_axis(points: Sequence[Point]) -> alt.Axis:
    """The steps that were evaluated, if they are few; round ones otherwise."""
    steps = sorted({point.at for point in points})
    if len(steps) <= MOST_TICKS:
        return alt.Axis(title="step", grid=False, format=",d", values=steps)
    return alt.Axis(title="step", grid=False, format=",d", tickCount=5)


def _bands(matters: float | None, sheets: Sheets) -> list[alt.Chart]:
    if matters is None:
        return []
    data = sheets.chart([{"from": -matters, "to": matters, "zero": 0}])
    from_side, to_side = alt.value(0), alt.value("width")
    return [
        data.mark_rect(aria=False, color=style.BAND).encode(
            x=from_side, x2=to_side, y=alt.Y("from:Q", title=None), y2="to:Q"
        ),
        data.mark_rule(aria=False, color=style.ZERO).encode(y=alt.Y("zero:Q", title=None)),
    ]


def _curve_tip(split: str, point: Point, say: Callable[[float], str]) -> str:
    seeds = f"seeds from {say(point.low)} to {say(point.high)}" if point.seeds > 1 else "one seed"
    return f"{point.variant}, {split}, step {point.at:,}: {say(point.mean)} ({seeds})"


def paired_lines(pairs: Sequence[Paired], metric: str) -> Chart:
    """From the baseline's score to the variant's, a line for each seed."""
    panels = list(dict.fromkeys((pair.variant, pair.text) for pair in pairs))[:MOST_PANELS]
    counts = []
    for name, text in panels:
        own = [pair for pair in pairs if (pair.variant, pair.text) == (name, text)]
        better = sum(number_format.is_better(metric, pair.effect) for pair in own)
        counts.append(f"{name} on {text}: better than the baseline with {better} of {len(own)} seeds")
    said = "Each seed's score, from the baseline to the variant. " + "; ".join(counts) + "."

    def build(layout: Layout, sheets: Sheets) -> Built:
        return _slopes(pairs, panels, metric, sheets)

    return Chart(
        "pairs",
        f"{metric.capitalize()} seed by seed, from the baseline to the variant",
        said,
        build,
        _slope_panels(len(panels)),
    )


def _slope_panels(count: int) -> Mapping[Layout, Panels]:
    wide, narrow = min(count, 4), min(count, 2)
    return {
        "wide": Panels({1: 300, 2: 280, 3: 210}.get(wide, 150), 170, wide, 3),
        "narrow": Panels({1: 260}.get(narrow, 112), 170, narrow, 3),
    }


def _slopes(pairs: Sequence[Paired], panels: Sequence[tuple[str, str]], metric: str, sheets: Sheets) -> Built:
    looks = {"better": (style.WORD_HUES["helped"], [1, 0]), "worse": (style.WORD_HUES["hurt"], [5, 3])}
    looks["equal"] = (style.SOFT, [2, 2])
    outcomes = [outcome for outcome in looks if any(_outcome(pair, metric) == outcome for pair in pairs)]
    scale = alt.Scale(domain=outcomes, range=[looks[outcome][0] for outcome in outcomes])
    dashes = alt.Scale(domain=outcomes, range=[looks[outcome][1] for outcome in outcomes])
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    made = []
    for name, text in panels:
        own = [pair for pair in pairs if (pair.variant, pair.text) == (name, text)]
        rows = [row for pair in own for row in _slope_rows(pair, metric)]
        data = sheets.chart(rows)
        axis = alt.Axis(title=None, tickCount=5, labelExpr=value_words(metric))
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
    return _grid(made)


def _outcome(pair: Paired, metric: str) -> str:
    if pair.effect == 0:
        return "equal"
    return "better" if number_format.is_better(metric, pair.effect) else "worse"


def _slope_rows(pair: Paired, metric: str) -> list[dict[str, Any]]:
    outcome = _outcome(pair, metric)
    first, second = number_format.value(metric, pair.baseline), number_format.value(metric, pair.value)
    tip = f"seed {pair.seed}: baseline {first}, {pair.variant} {second} ({number_format.change(metric, pair.effect)})"
    row = {"seed": pair.seed, "outcome": outcome, "tip": tip}
    return [{**row, "side": "baseline", "value": pair.baseline}, {**row, "side": "variant", "value": pair.value}]


def save_forest(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Verdicts as a picture (.svg, .pdf, .png) or a page (.html): for scores that were brought from elsewhere."""
    from headtohead.report.page import render  # the page draws charts, so it knows this file already

    metric = str(rows[0]["metric"]) if rows else ""
    chart = forest(rows, metric, findings_view.matters({"verdicts": list(rows)}))
    makers: dict[str, Callable[[], bytes]] = {
        ".html": lambda: render({"verdicts": list(rows)}).encode(),
        ".svg": lambda: chart.svg(background="white").encode(),
        ".pdf": chart.pdf,
        ".png": chart.png,
    }
    if path.suffix not in makers:
        raise RequestError(f"{path}: the ending {path.suffix!r} is not known; allowed: {', '.join(makers)}")
    write_bytes(path, makers[path.suffix]())
