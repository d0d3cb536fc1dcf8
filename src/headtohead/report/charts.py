"""Every chart of the report, as altair describes it: one description gives SVG, PDF and PNG, offline.

A chart comes in two layouts, wide and narrow (a phone), and with its content in words. Each mark carries its figures
as a description, which the page shows when it is pointed at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import altair as alt

from . import figures, reading, style
from .reading import Findings, Paired, Point

Layout = Literal["wide", "narrow"]
Built = alt.TopLevelMixin
FAR = 6
"""an interval that reaches so many times further than the usual one is cut off, with an arrow"""
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


@dataclass(frozen=True)
class Chart:
    """A chart in both layouts, its title, and what it shows in words."""

    name: str
    title: str
    words: str
    build: Callable[[Layout], Built]

    def vega(self, layout: Layout = "wide", background: str | None = None) -> dict[str, Any]:
        """The Vega-Lite description."""
        built = self.build(layout)
        # Altair's check of the whole schema takes longer than drawing; the tests do it instead.
        described: dict[str, Any] = built.to_dict(validate=False)
        return {**described, "config": style.config(background), "description": self.words}

    def svg(self, layout: Layout = "wide", background: str | None = None) -> str:
        import vl_convert

        return str(vl_convert.vegalite_to_svg(self.vega(layout, background)))

    def pdf(self) -> bytes:
        import vl_convert

        return bytes(vl_convert.vegalite_to_pdf(self.vega(background="white")))

    def png(self) -> bytes:
        import vl_convert

        return bytes(vl_convert.vegalite_to_png(self.vega(background="white"), scale=2))


def charts(findings: Findings) -> list[Chart]:
    """Those for which there is something to draw, in the report's order."""
    found: list[Chart] = []
    metric = reading.metric(findings)
    if rows := reading.verdicts(findings):
        found.append(forest(rows, metric, reading.matters(findings)))
    if splits := [split for split in reading.splits_of(findings, "curves") if reading.curves(findings, split)]:
        found.append(learning_curves(findings, splits))
        if any(reading.differences(findings, split) for split in splits):
            found.append(difference_curves(findings, splits))
    if pairs := reading.paired(findings):
        found.append(paired_lines(pairs, metric))
    return found


def forest(rows: Sequence[dict[str, Any]], metric: str, matters: float) -> Chart:
    """Difference and interval of each variant; the band is what does not matter."""
    limits = _limits(rows, matters)
    shown = [_forest_row(row, metric, limits) for row in rows]
    words = [f"{row['variant']}: {row['label']}" for row in shown]
    title = f"Change of {metric} against the baseline"
    head = f"Forest plot. {title}, {'lower' if metric in figures.LOWER_IS_BETTER else 'higher'} is better. "
    said = head + "; ".join(words) + f". Shaded: {figures.band(metric, matters)}, too small to matter."

    def build(layout: Layout) -> Built:
        return _forest(shown, metric, matters, limits, layout)

    return Chart("forest", title, said, build)


def _limits(rows: Sequence[dict[str, Any]], matters: float) -> tuple[float, float]:
    """Where the axis begins and ends; zero and the band are always well inside."""
    ends = [end for row in rows for end in (*(row.get("interval") or ()), row["effect"]) if _can_show(row, end)]
    sizes = sorted(map(abs, ends)) or [matters]
    far = FAR * max(sizes[(len(sizes) - 1) // 2], matters)
    low = max([1.6 * matters, *(-1.08 * end for end in ends if -far <= end < 0)])
    high = max([1.6 * matters, *(1.08 * end for end in ends if 0 < end <= far)])
    return -max(low, 0.3 * high), max(high, 0.3 * low)


def _can_show(row: dict[str, Any], end: Any) -> bool:
    return figures.is_number(end) and row["word"] != "not comparable"


def _forest_row(row: dict[str, Any], metric: str, limits: tuple[float, float]) -> dict[str, Any]:
    def cut(end: Any) -> float | None:
        return min(max(limits[0], end), limits[1]) if _can_show(row, end) else None

    interval, seeds = row.get("interval") or [None, None], row.get("interval_seeds") or [None, None]
    places = figures.decimals(metric, interval)
    label = f"{row['word']}"
    if row["word"] != "not comparable":
        label += f", {figures.change(metric, row['effect'], places)}"
        if figures.is_number(interval[0]):
            label += f" ({figures.interval(metric, interval, places)})"
    beyond = [end for end in interval if _can_show(row, end) and cut(end) != end]
    return {
        "variant": row["variant"],
        "word": row["word"],
        "sign": style.WORD_SIGNS.get(row["word"], ""),
        "label": label,
        "effect": cut(row["effect"]),
        "low": cut(interval[0]),
        "high": cut(interval[1]),
        "seeds_low": cut(seeds[0]),
        "seeds_high": cut(seeds[1]),
        "arrow": cut(beyond[0]) if beyond else None,
        "arrow_shape": "" if not beyond else "triangle-right" if beyond[0] > 0 else "triangle-left",
        "tip": f"{row['variant']}: {label}",
    }


def _forest(
    rows: list[dict[str, Any]], metric: str, matters: float, limits: tuple[float, float], layout: Layout
) -> Built:
    wide = layout == "wide"
    width, step = (_forest_width(rows), 46) if wide else (300, 70)
    # In the narrow layout the words stand above the line, so the line itself lies lower in its row.
    lower = 0 if wide else 18
    axis = alt.Axis(labelExpr=_axis_words(metric), tickCount=5, title=_axis_title(metric), grid=False)
    scale = alt.Scale(domain=list(limits), nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    y = alt.Y("variant:N", sort=[row["variant"] for row in rows], title=None, axis=_names_axis() if wide else None)
    words = list(style.WORD_HUES)
    hue = alt.Color("word:N", scale=alt.Scale(domain=words, range=list(style.WORD_HUES.values())), legend=None)
    shape = alt.Shape("word:N", scale=alt.Scale(domain=words, range=list(style.WORD_SHAPES.values())), legend=None)
    tip = alt.Description("tip:N")
    data = alt.Chart(alt.Data(values=[{**row, "from": -matters, "to": matters, "zero": 0} for row in rows]))
    high = step if wide else 30
    layers = [
        data.mark_bar(color=style.BAND, size=high, yOffset=lower).encode(x=x("from:Q"), x2="to:Q", y=y),
        data.mark_tick(color=style.ZERO, size=high, thickness=1, yOffset=lower).encode(x=x("zero:Q"), y=y),
        data.mark_rule(strokeWidth=2, yOffset=lower).encode(y=y, x=x("low:Q"), x2="high:Q", color=hue, description=tip),
        data.mark_bar(size=7, opacity=0.5, yOffset=lower).encode(
            y=y, x=x("seeds_low:Q"), x2="seeds_high:Q", color=hue, description=tip
        ),
        data.mark_point(size=120, filled=True, opacity=1, yOffset=lower).encode(
            y=y, x=x("effect:Q"), color=hue, shape=shape, description=tip
        ),
        *_arrows(rows, x, y, hue, lower),
        *(_wide_words(data, y, hue, width) if wide else _narrow_words(data, y, hue)),
        *_directions(metric, width),
    ]
    return alt.layer(*layers).properties(width=width, height=step * len(rows))


def _forest_width(rows: Sequence[dict[str, Any]]) -> int:
    """What the names on the left and the words on the right leave of the page."""
    longest = max(len(str(row["variant"])) for row in rows)
    said = max(len(row["label"]) for row in rows)
    return max(280, 850 - min(170, 8 * longest) - min(330, 7 * said))


def _names_axis() -> alt.Axis:
    return alt.Axis(labelFontSize=13, labelLimit=170, labelColor=style.INK, labelPadding=8, ticks=False, domain=False)


def _arrows(
    rows: Sequence[dict[str, Any]], x: Callable[[str], alt.X], y: alt.Y, hue: alt.Color, lower: int
) -> list[alt.Chart]:
    """Where an interval goes on beyond the axis."""
    made = []
    for shape in ("triangle-left", "triangle-right"):
        beyond = [row for row in rows if row["arrow_shape"] == shape]
        if beyond:
            mark = alt.Chart(alt.Data(values=beyond)).mark_point(shape=shape, size=70, filled=True, yOffset=lower)
            made.append(mark.encode(y=y, x=x("arrow:Q"), color=hue))
    return made


def _wide_words(data: alt.Chart, y: alt.Y, hue: alt.Color, width: int) -> list[alt.Chart]:
    text = data.mark_text(align="left", baseline="middle", fontSize=12.5, limit=330)
    return [text.encode(y=y, x=alt.value(width + 14), text="label:N", color=hue)]


def _narrow_words(data: alt.Chart, y: alt.Y, hue: alt.Color) -> list[alt.Chart]:
    name = data.mark_text(align="left", fontSize=13, fontWeight=600, limit=300, yOffset=-23)
    text = data.mark_text(align="left", fontSize=11.5, limit=300, yOffset=-7)
    at = alt.value(0)
    return [name.encode(y=y, x=at, text="variant:N"), text.encode(y=y, x=at, text="label:N", color=hue)]


def _directions(metric: str, width: int) -> list[alt.Chart]:
    left, right = ("better", "worse") if metric in figures.LOWER_IS_BETTER else ("worse", "better")
    made = []
    for said, at, align in ((f"← {left}", 0, "left"), (f"{right} →", width, "right")):
        mark = alt.Chart(alt.Data(values=[{"said": said}])).mark_text(
            align=align, baseline="bottom", color=style.SOFT, fontSize=12, fontStyle="italic"
        )
        made.append(mark.encode(x=alt.value(at), y=alt.value(-6), text="said:N"))
    return made


def learning_curves(findings: Findings, splits: Sequence[str]) -> Chart:
    """One small multiple a split: mean over seeds, and a band from the lowest to the highest seed."""
    metric = reading.metric(findings)
    points = {split: without_steep_start(reading.curves(findings, split), metric) for split in splits}
    title = f"{metric.capitalize()} while training"
    ends = [f"{split}: {_ends(found, lambda at: figures.value(metric, at))}" for split, found in points.items()]
    said = f"Learning curves, one picture for each of {', '.join(splits)}. At the end, " + "; ".join(ends) + "."

    def build(layout: Layout) -> Built:
        names = reading.names(findings)
        return _multiples(points, names, layout, _curve_axis(metric), lambda at: figures.value(metric, at))

    return Chart("curves", title, said, build)


def difference_curves(findings: Findings, splits: Sequence[str]) -> Chart:
    """The same as the difference to the baseline, seed by seed: where two curves lie too close to be told apart."""
    metric, matters = reading.metric(findings), reading.matters(findings)
    points = {split: found for split in splits if (found := reading.differences(findings, split))}
    title = f"Difference to the baseline while training ({figures.unit(metric).strip() or metric})"
    ends = [f"{split}: {_ends(found, lambda at: figures.change(metric, at))}" for split, found in points.items()]
    said = "The difference to the baseline along the way, paired by seed. At the end, " + "; ".join(ends) + "."

    def build(layout: Layout) -> Built:
        def y(field: str, points: list[Point]) -> alt.Y:
            return alt.Y(field, axis=alt.Axis(labelExpr=_axis_words(metric), title=None, tickCount=4))

        names = reading.names(findings)
        return _multiples(points, names, layout, y, lambda at: figures.change(metric, at), matters=matters)

    return Chart("differences", title, said, build)


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
            axis = alt.Axis(title=None, tickCount=5, labelExpr=_value_words(metric))
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
    layout: Layout,
    y: Callable[[str, list[Point]], alt.Y],
    say: Callable[[float], str],
    matters: float | None = None,
) -> Built:
    hues, shapes, dashes = style.scales(names)
    present = [name for name in names if any(p.variant == name for found in points.values() for p in found)]
    at = [names.index(name) for name in present]
    legend = alt.Legend(columns=4 if layout == "wide" else 2, symbolOpacity=1, symbolStrokeWidth=0)
    colours = alt.Scale(domain=present, range=[hues[i] for i in at])
    hue = alt.Color("variant:N", scale=colours, legend=legend)
    shape = alt.Shape("variant:N", scale=alt.Scale(domain=present, range=[shapes[i] for i in at]), legend=legend)
    dash = alt.StrokeDash("variant:N", scale=alt.Scale(domain=present, range=[dashes[i] for i in at]), legend=None)
    columns, width, height = (2, 372, 200) if layout == "wide" else (1, 286, 180)
    panels = []
    for split, found in points.items():
        rows = [{**asdict(point), "tip": _curve_tip(split, point, say)} for point in found]
        data = alt.Chart(alt.Data(values=rows))
        x = alt.X("at:Q", scale=alt.Scale(nice=False), axis=_step_axis(found))
        layers = [
            *_bands(matters, width),
            data.mark_area(opacity=0.16).encode(x=x, y=y("low:Q", found), y2="high:Q", color=hue),
            data.mark_line(strokeWidth=2).encode(x=x, y=y("mean:Q", found), color=hue, strokeDash=dash),
            data.mark_point(size=34, filled=True, opacity=1).encode(
                x=x, y=y("mean:Q", found), color=hue, shape=shape, description="tip:N"
            ),
        ]
        panels.append(alt.layer(*layers).properties(width=width, height=height, title=split))
    return alt.concat(*panels, columns=columns)


def _step_axis(points: Sequence[Point]) -> alt.Axis:
    """The steps that were evaluated, if they are few; round ones otherwise."""
    steps = sorted({point.at for point in points})
    if len(steps) <= MOST_TICKS:
        return alt.Axis(title="step", grid=False, format=",~r", values=steps)
    return alt.Axis(title="step", grid=False, format=",~r", tickCount=5)


def _bands(matters: float | None, width: int) -> list[alt.Chart]:
    if matters is None:
        return []
    data = alt.Chart(alt.Data(values=[{"from": -matters, "to": matters, "zero": 0}]))
    from_side, to_side = alt.value(0), alt.value(width)
    return [
        data.mark_rect(color=style.BAND).encode(x=from_side, x2=to_side, y=alt.Y("from:Q", title=None), y2="to:Q"),
        data.mark_rule(color=style.ZERO).encode(y=alt.Y("zero:Q", title=None)),
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
        better = sum(figures.is_better(metric, pair.effect) for pair in own)
        counts.append(f"{name} on {text}: better than the baseline with {better} of {len(own)} seeds")
    said = "Each seed's score, from the baseline to the variant. " + "; ".join(counts) + "."

    def build(layout: Layout) -> Built:
        return _slopes(pairs, panels, metric, layout)

    return Chart("pairs", f"{metric.capitalize()} seed by seed, from the baseline to the variant", said, build)


def _slopes(pairs: Sequence[Paired], panels: Sequence[tuple[str, str]], metric: str, layout: Layout) -> Built:
    looks = {"better": (style.WORD_HUES["helped"], [1, 0]), "worse": (style.WORD_HUES["hurt"], [5, 3])}
    looks["equal"] = (style.SOFT, [2, 2])
    outcomes = [outcome for outcome in looks if any(_outcome(pair, metric) == outcome for pair in pairs)]
    scale = alt.Scale(domain=outcomes, range=[looks[outcome][0] for outcome in outcomes])
    dashes = alt.Scale(domain=outcomes, range=[looks[outcome][1] for outcome in outcomes])
    legend = alt.Legend(symbolType="stroke", symbolSize=250)
    columns = min(len(panels), 4 if layout == "wide" else 2)
    width = {1: 300, 2: 280, 3: 210}.get(columns, 150) if layout == "wide" else {1: 260}.get(columns, 112)
    made = []
    for name, text in panels:
        own = [pair for pair in pairs if (pair.variant, pair.text) == (name, text)]
        rows = [row for pair in own for row in _slope_rows(pair, metric)]
        data = alt.Chart(alt.Data(values=rows))
        axis = alt.Axis(title=None, tickCount=5, labelExpr=_value_words(metric))
        x = alt.X(
            "side:N", sort=None, title=None, scale=alt.Scale(padding=0.35), axis=alt.Axis(labelAngle=0, grid=False)
        )
        y = alt.Y("value:Q", scale=alt.Scale(zero=False, padding=10, nice=False), axis=axis)
        hue = alt.Color("outcome:N", scale=scale, legend=legend)
        layers = [
            data.mark_line(strokeWidth=2).encode(
                x=x,
                y=y,
                detail="seed:N",
                color=hue,
                strokeDash=alt.StrokeDash("outcome:N", scale=dashes, legend=legend),
            ),
            data.mark_point(size=42, filled=True, opacity=1).encode(x=x, y=y, color=hue, description="tip:N"),
        ]
        title = alt.TitleParams(name, subtitle=text, limit=width + 30)
        made.append(alt.layer(*layers).properties(width=width, height=170, title=title))
    return alt.concat(*made, columns=columns)


def _outcome(pair: Paired, metric: str) -> str:
    if pair.effect == 0:
        return "equal"
    return "better" if figures.is_better(metric, pair.effect) else "worse"


def _slope_rows(pair: Paired, metric: str) -> list[dict[str, Any]]:
    outcome = _outcome(pair, metric)
    first, second = figures.value(metric, pair.baseline), figures.value(metric, pair.value)
    tip = f"seed {pair.seed}: baseline {first}, {pair.variant} {second} ({figures.change(metric, pair.effect)})"
    row = {"seed": pair.seed, "outcome": outcome, "tip": tip}
    return [{**row, "side": "baseline", "value": pair.baseline}, {**row, "side": "variant", "value": pair.value}]


def _axis_words(metric: str) -> str:
    """How an axis of differences is labelled: +5 %, 0, −5 %."""
    scale, unit = (100, "\u00a0%" if metric == "perplexity" else "") if figures.in_hundredths(metric) else (1, "")
    return f"(datum.value > 0 ? '+' : '') + format(datum.value * {scale}, ',~r') + (datum.value ? '{unit}' : '')"


def _value_words(metric: str) -> str:
    """How an axis of scores is labelled: 85 %, 1,200."""
    return "format(datum.value * 100, ',~r') + '\u00a0%'" if metric == "accuracy" else "format(datum.value, ',~r')"


def _axis_title(metric: str) -> str:
    points = " in points" if metric == "accuracy" else ""
    return f"change of {metric}{points} against the baseline"
