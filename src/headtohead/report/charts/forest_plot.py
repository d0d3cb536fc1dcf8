"""Forest plot: each variant's effect with its intervals, and the band of practical equivalence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import altair as alt

from headtohead.presentation import number_format, style
from headtohead.presentation.chart import AltairChart, Chart, ChartDatasets, Layout, build_effect_axis_labels
from headtohead.verdict.record import Verdict

OUTLIER_FACTOR = 15
"""intervals that extend this many times farther than the median are clipped and marked with an arrow"""


def build_forest_plot(verdicts: Sequence[Verdict], metric: str, equivalence_margin: float) -> Chart:
    """Return a chart of each variant's effect and confidence intervals, with a band of ±`equivalence_margin`."""
    limits = _compute_axis_limits(verdicts, equivalence_margin)
    rows = [_make_forest_row(verdict, metric, limits) for verdict in verdicts]
    labels = "; ".join(f"{row['variant']}: {row['label']}" for row in rows)
    title = f"Change in {metric} relative to the baseline"
    better = "lower" if metric in number_format.LOWER_IS_BETTER_METRICS else "higher"
    margin = number_format.format_margin(metric, equivalence_margin)
    shaded = f" Shaded: within {margin}." if equivalence_margin else ""
    alt_text = f"Forest plot. {title}, {better} is better. {labels}.{shaded}"

    def build(layout: Layout, datasets: ChartDatasets) -> AltairChart:
        return _draw_forest_plot(rows, metric, equivalence_margin, limits, layout, datasets)

    return Chart("forest", title, alt_text, build)


def _compute_axis_limits(verdicts: Sequence[Verdict], equivalence_margin: float) -> tuple[float, float]:
    """Return a forest plot's effect axis limits. Zero and the equivalence band always lie well inside."""
    values = [
        value for verdict in verdicts for value in (*verdict.interval, verdict.effect) if _is_plottable(verdict, value)
    ]
    magnitudes = sorted(map(abs, values)) or [equivalence_margin]
    limit = OUTLIER_FACTOR * max(magnitudes[(len(magnitudes) - 1) // 2], equivalence_margin)
    low = max([1.6 * equivalence_margin, *(-1.08 * value for value in values if -limit <= value < 0)])
    high = max([1.6 * equivalence_margin, *(1.08 * value for value in values if 0 < value <= limit)])
    return -max(low, 0.3 * high), max(high, 0.3 * low)


def _is_plottable(verdict: Verdict, value: float) -> bool:
    """Return whether one of the verdict's values is finite and may be drawn."""
    return number_format.is_finite_number(value) and verdict.outcome != "not comparable"


def _make_forest_row(verdict: Verdict, metric: str, limits: tuple[float, float]) -> dict[str, Any]:
    """Return one variant's row of the forest plot, with values clipped to the axis limits."""

    def clip(value: float) -> float | None:
        return min(max(limits[0], value), limits[1]) if _is_plottable(verdict, value) else None

    interval, seed_interval = verdict.interval, verdict.seed_interval
    decimals = number_format.choose_decimals(metric, interval)
    label: str = verdict.outcome
    if verdict.outcome == "not comparable":
        label += f": {verdict.reason}" if verdict.reason else ""
    else:
        label += f", {number_format.format_effect(metric, verdict.effect, decimals)}"
        if number_format.is_finite_number(interval[0]):
            label += f" ({number_format.format_effect_interval(metric, interval, decimals)})"
    clipped_bounds = [value for value in interval if _is_plottable(verdict, value) and clip(value) != value]
    return {
        "variant": verdict.variant,
        "outcome": verdict.outcome,
        "label": label,
        "effect": clip(verdict.effect),
        "low": clip(interval[0]),
        "high": clip(interval[1]),
        "seeds_low": clip(seed_interval[0]),
        "seeds_high": clip(seed_interval[1]),
        "arrow": clip(clipped_bounds[0]) if clipped_bounds else None,
        "arrow_shape": "" if not clipped_bounds else "triangle-right" if clipped_bounds[0] > 0 else "triangle-left",
        "tip": f"{verdict.variant}: {label}",
    }


def _draw_forest_plot(
    rows: list[dict[str, Any]],
    metric: str,
    equivalence_margin: float,
    limits: tuple[float, float],
    layout: Layout,
    datasets: ChartDatasets,
) -> AltairChart:
    """Draw the effects with their intervals, the equivalence margin as a band, and labels suited to the layout."""
    is_wide = layout == "wide"
    width = _compute_plot_width(rows) if is_wide else 300
    row_height = 46 if is_wide else 70
    # In the narrow layout, labels are above the interval, which is moved down to make room for them.
    y_offset = 0 if is_wide else 18
    axis = alt.Axis(
        labelExpr=build_effect_axis_labels(metric), tickCount=5, title=_format_effect_axis_title(metric), grid=False
    )
    scale = alt.Scale(domain=list(limits), nice=False)

    def x(field: str) -> alt.X:
        return alt.X(field, scale=scale, axis=axis)

    y = alt.Y(
        "variant:N", sort=[row["variant"] for row in rows], title=None, axis=_build_variant_axis() if is_wide else None
    )
    outcomes = list(style.VERDICT_COLORS)
    colors, shapes = list(style.VERDICT_COLORS.values()), list(style.VERDICT_SHAPES.values())
    color = alt.Color("outcome:N", scale=alt.Scale(domain=outcomes, range=colors), legend=None)
    shape = alt.Shape("outcome:N", scale=alt.Scale(domain=outcomes, range=shapes), legend=None)
    tip = alt.Description("tip:N")
    data = datasets.chart([{**row, "from": -equivalence_margin, "to": equivalence_margin, "zero": 0} for row in rows])
    band_height = row_height if is_wide else 30
    layers = [
        data.mark_bar(aria=False, color=style.EQUIVALENCE_BAND_COLOR, size=band_height, yOffset=y_offset).encode(
            x=x("from:Q"), x2="to:Q", y=y
        ),
        data.mark_tick(aria=False, color=style.ZERO_LINE_COLOR, size=band_height, thickness=1, yOffset=y_offset).encode(
            x=x("zero:Q"), y=y
        ),
        data.mark_rule(strokeWidth=2, yOffset=y_offset).encode(
            y=y, x=x("low:Q"), x2="high:Q", color=color, description=tip
        ),
        data.mark_bar(size=7, opacity=0.5, yOffset=y_offset).encode(
            y=y, x=x("seeds_low:Q"), x2="seeds_high:Q", color=color, description=tip
        ),
        data.mark_point(size=120, filled=True, opacity=1, yOffset=y_offset).encode(
            y=y, x=x("effect:Q"), color=color, shape=shape, description=tip
        ),
        *_draw_overflow_arrows(rows, x, y, color, y_offset, datasets),
        *(_draw_wide_labels(data, y, color, width) if is_wide else _draw_narrow_labels(data, y, color)),
        *_draw_direction_labels(metric, width, datasets),
    ]
    padding = {"padding": _compute_plot_padding(rows)} if is_wide else {}
    return alt.layer(*layers).properties(width=width, height=row_height * len(rows), **padding)


def _compute_plot_width(rows: Sequence[dict[str, Any]]) -> int:
    """Return the width of a wide forest plot between the variant names on the left and the labels on the right."""
    name_length, label_length = _measure_label_lengths(rows)
    return max(280, 850 - min(170, 8 * name_length) - min(330, 7 * label_length))


def _compute_plot_padding(rows: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Return margins for fonts wider than the one that the renderer measures, by up to a pixel per character."""
    name_length, label_length = _measure_label_lengths(rows)
    return {"top": 4, "bottom": 4, "left": 4 + min(20, name_length), "right": 4 + min(50, label_length)}


def _measure_label_lengths(rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Return the number of characters in the longest variant name and in the longest label."""
    return max(len(str(row["variant"])) for row in rows), max(len(row["label"]) for row in rows)


def _build_variant_axis() -> alt.Axis:
    """Return the y axis of a wide forest plot, with the variant names."""
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
    """Return arrows for intervals that extend beyond the axis limits of the forest plot."""
    arrows = []
    for shape in ("triangle-left", "triangle-right"):
        overflowing_rows = [row for row in rows if row["arrow_shape"] == shape]
        if overflowing_rows:
            mark = datasets.chart(overflowing_rows).mark_point(shape=shape, size=70, filled=True, yOffset=y_offset)
            arrows.append(mark.encode(y=y, x=x("arrow:Q"), color=color, description="tip:N"))
    return arrows


def _draw_wide_labels(data: alt.Chart, y: alt.Y, color: alt.Color, width: int) -> list[alt.Chart]:
    """Return the labels to the right of a wide forest plot."""
    text = data.mark_text(aria=False, align="left", baseline="middle", fontSize=12.5, limit=330)
    return [text.encode(y=y, x=alt.value(width + 14), text="label:N", color=color)]


def _draw_narrow_labels(data: alt.Chart, y: alt.Y, color: alt.Color) -> list[alt.Chart]:
    """Return the variant names and labels above each interval in a narrow forest plot."""
    name = data.mark_text(aria=False, align="left", fontSize=13, fontWeight=600, limit=300, yOffset=-23)
    text = data.mark_text(aria=False, align="left", fontSize=11.5, limit=300, yOffset=-7)
    x = alt.value(0)
    return [name.encode(y=y, x=x, text="variant:N"), text.encode(y=y, x=x, text="label:N", color=color)]


def _draw_direction_labels(metric: str, width: int, datasets: ChartDatasets) -> list[alt.Chart]:
    """Return the labels above a forest plot that mark in which direction a variant is better."""
    left_label, right_label = (
        ("better", "worse") if metric in number_format.LOWER_IS_BETTER_METRICS else ("worse", "better")
    )
    labels = []
    placed_labels: tuple[tuple[str, int, Literal["left", "right"]], ...] = (
        (f"← {left_label}", 0, "left"),
        (f"{right_label} →", width, "right"),
    )
    for label, x_position, align in placed_labels:
        mark = datasets.chart([{"direction": label}]).mark_text(
            aria=False, align=align, baseline="bottom", color=style.MUTED_TEXT_COLOR, fontSize=12, fontStyle="italic"
        )
        labels.append(mark.encode(x=alt.value(x_position), y=alt.value(-6), text="direction:N"))
    return labels


def _format_effect_axis_title(metric: str) -> str:
    """Return the title of the x axis of a forest plot."""
    points = " in points" if metric == "accuracy" else ""
    return f"change in {metric}{points} relative to the baseline"
