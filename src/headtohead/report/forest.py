"""The forest plot: each variant's difference to the baseline with its intervals, and the band that does not matter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import altair as alt

from headtohead.presentation import number_format, style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, build_effect_label_expression

OUTLIER_FACTOR = 15
"""an interval that reaches so many times further than the usual one is cut off, with an arrow"""


def build_forest_plot(verdicts: Sequence[dict[str, Any]], metric: str, equivalence_margin: float) -> Chart:
    """Difference and interval of each variant; the band is what does not matter."""
    limits = _compute_axis_limits(verdicts, equivalence_margin)
    shown = [_make_forest_row(row, metric, limits) for row in verdicts]
    words = [f"{row['variant']}: {row['label']}" for row in shown]
    title = f"Change of {metric} against the baseline"
    head = (
        f"Forest plot. {title}, {'lower' if metric in number_format.LOWER_IS_BETTER_METRICS else 'higher'} is better. "
    )
    said = (
        head
        + "; ".join(words)
        + f". Shaded: {number_format.format_margin(metric, equivalence_margin)}, too small to matter."
    )

    def build(layout: Layout, sheets: ChartDatasets) -> AltairChart:
        return _draw_forest_plot(shown, metric, equivalence_margin, limits, layout, sheets)

    return Chart("forest", title, said, build)


def _compute_axis_limits(verdicts: Sequence[dict[str, Any]], equivalence_margin: float) -> tuple[float, float]:
    """Where the axis begins and ends; zero and the band are always well inside."""
    ends = [end for row in verdicts for end in (*(row.get("interval") or ()), row["effect"]) if _is_plottable(row, end)]
    sizes = sorted(map(abs, ends)) or [equivalence_margin]
    far = OUTLIER_FACTOR * max(sizes[(len(sizes) - 1) // 2], equivalence_margin)
    low = max([1.6 * equivalence_margin, *(-1.08 * end for end in ends if -far <= end < 0)])
    high = max([1.6 * equivalence_margin, *(1.08 * end for end in ends if 0 < end <= far)])
    return -max(low, 0.3 * high), max(high, 0.3 * low)


def _is_plottable(row: dict[str, Any], value: Any) -> bool:
    return number_format.is_finite_number(value) and row["word"] != "not comparable"


def _make_forest_row(verdict: dict[str, Any], metric: str, limits: tuple[float, float]) -> dict[str, Any]:
    def cut(end: Any) -> float | None:
        return min(max(limits[0], end), limits[1]) if _is_plottable(verdict, end) else None

    interval, seeds = verdict.get("interval") or [None, None], verdict.get("interval_seeds") or [None, None]
    places = number_format.choose_decimals(metric, interval)
    label = str(verdict["word"])
    if verdict["word"] == "not comparable":
        label += f": {verdict['reason']}" if verdict.get("reason") else ""
    else:
        label += f", {number_format.format_effect(metric, verdict['effect'], places)}"
        if number_format.is_finite_number(interval[0]):
            label += f" ({number_format.format_effect_interval(metric, interval, places)})"
    beyond = [end for end in interval if _is_plottable(verdict, end) and cut(end) != end]
    return {
        "variant": verdict["variant"],
        "word": verdict["word"],
        "sign": style.VERDICT_SYMBOLS.get(verdict["word"], ""),
        "label": label,
        "effect": cut(verdict["effect"]),
        "low": cut(interval[0]),
        "high": cut(interval[1]),
        "seeds_low": cut(seeds[0]),
        "seeds_high": cut(seeds[1]),
        "arrow": cut(beyond[0]) if beyond else None,
        "arrow_shape": "" if not beyond else "triangle-right" if beyond[0] > 0 else "triangle-left",
        "tip": f"{verdict['variant']}: {label}",
    }


def _draw_forest_plot(
    rows: list[dict[str, Any]],
    metric: str,
    equivalence_margin: float,
    limits: tuple[float, float],
    layout: Layout,
    datasets: ChartDatasets,
) -> AltairChart:
    wide = layout == "wide"
    width, step = (_compute_plot_width(rows), 46) if wide else (300, 70)
    # In the narrow layout the words stand above the line, so the line itself lies lower in its row.
    lower = 0 if wide else 18
    axis = alt.Axis(
        labelExpr=build_effect_label_expression(metric), tickCount=5, title=_format_axis_title(metric), grid=False
    )
    scale = alt.Scale(domain=list(limits), nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    y = alt.Y(
        "variant:N", sort=[row["variant"] for row in rows], title=None, axis=_build_variant_axis() if wide else None
    )
    words = list(style.VERDICT_COLORS)
    hue = alt.Color("word:N", scale=alt.Scale(domain=words, range=list(style.VERDICT_COLORS.values())), legend=None)
    shape = alt.Shape("word:N", scale=alt.Scale(domain=words, range=list(style.VERDICT_SHAPES.values())), legend=None)
    tip = alt.Description("tip:N")
    data = datasets.chart([{**row, "from": -equivalence_margin, "to": equivalence_margin, "zero": 0} for row in rows])
    high = step if wide else 30
    layers = [
        data.mark_bar(aria=False, color=style.MARGIN_BAND_COLOR, size=high, yOffset=lower).encode(
            x=x("from:Q"), x2="to:Q", y=y
        ),
        data.mark_tick(aria=False, color=style.ZERO_LINE_COLOR, size=high, thickness=1, yOffset=lower).encode(
            x=x("zero:Q"), y=y
        ),
        data.mark_rule(strokeWidth=2, yOffset=lower).encode(y=y, x=x("low:Q"), x2="high:Q", color=hue, description=tip),
        data.mark_bar(size=7, opacity=0.5, yOffset=lower).encode(
            y=y, x=x("seeds_low:Q"), x2="seeds_high:Q", color=hue, description=tip
        ),
        data.mark_point(size=120, filled=True, opacity=1, yOffset=lower).encode(
            y=y, x=x("effect:Q"), color=hue, shape=shape, description=tip
        ),
        *_draw_overflow_arrows(rows, x, y, hue, lower, datasets),
        *(_draw_wide_labels(data, y, hue, width) if wide else _draw_narrow_labels(data, y, hue)),
        *_draw_direction_labels(metric, width, datasets),
    ]
    return alt.layer(*layers).properties(width=width, height=step * len(rows))


def _compute_plot_width(rows: Sequence[dict[str, Any]]) -> int:
    """What the names on the left and the words on the right leave of the page."""
    longest = max(len(str(row["variant"])) for row in rows)
    said = max(len(row["label"]) for row in rows)
    return max(280, 850 - min(170, 8 * longest) - min(330, 7 * said))


def _build_variant_axis() -> alt.Axis:
    return alt.Axis(
        labelFontSize=13, labelLimit=170, labelColor=style.TEXT_COLOR, labelPadding=8, ticks=False, domain=False
    )


def _draw_overflow_arrows(
    rows: Sequence[dict[str, Any]],
    x: Callable[[str], alt.X],
    y: alt.Y,
    color: alt.Color,
    y_offset: int,
    datasets: ChartDatasets,
) -> list[alt.Chart]:
    """Where an interval goes on beyond the axis."""
    made = []
    for shape in ("triangle-left", "triangle-right"):
        beyond = [row for row in rows if row["arrow_shape"] == shape]
        if beyond:
            mark = datasets.chart(beyond).mark_point(shape=shape, size=70, filled=True, yOffset=y_offset)
            made.append(mark.encode(y=y, x=x("arrow:Q"), color=color, description="tip:N"))
    return made


def _draw_wide_labels(data: alt.Chart, y: alt.Y, color: alt.Color, width: int) -> list[alt.Chart]:
    text = data.mark_text(aria=False, align="left", baseline="middle", fontSize=12.5, limit=330)
    return [text.encode(y=y, x=alt.value(width + 14), text="label:N", color=color)]


def _draw_narrow_labels(data: alt.Chart, y: alt.Y, color: alt.Color) -> list[alt.Chart]:
    name = data.mark_text(aria=False, align="left", fontSize=13, fontWeight=600, limit=300, yOffset=-23)
    text = data.mark_text(aria=False, align="left", fontSize=11.5, limit=300, yOffset=-7)
    at = alt.value(0)
    return [name.encode(y=y, x=at, text="variant:N"), text.encode(y=y, x=at, text="label:N", color=color)]


def _draw_direction_labels(metric: str, width: int, datasets: ChartDatasets) -> list[alt.Chart]:
    left, right = ("better", "worse") if metric in number_format.LOWER_IS_BETTER_METRICS else ("worse", "better")
    made = []
    sides: tuple[tuple[str, int, Literal["left", "right"]], ...] = (
        (f"← {left}", 0, "left"),
        (f"{right} →", width, "right"),
    )
    for said, at, align in sides:
        mark = datasets.chart([{"said": said}]).mark_text(
            aria=False, align=align, baseline="bottom", color=style.MUTED_TEXT_COLOR, fontSize=12, fontStyle="italic"
        )
        made.append(mark.encode(x=alt.value(at), y=alt.value(-6), text="said:N"))
    return made


def _format_axis_title(metric: str) -> str:
    points = " in points" if metric == "accuracy" else ""
    return f"change of {metric}{points} against the baseline"
