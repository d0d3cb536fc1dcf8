"""The `Chart` of a report: a Vega-Lite specification with a text alternative, rendered offline to SVG, PDF or PNG.

Every chart has a wide layout and a narrow one for phones. This module also holds the axes, encodings and marks that the
charts of several packages share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import altair as alt

from headtohead.errors import ChartError
from headtohead.presentation import chart_renderer, number_format, style

Layout = Literal["wide", "narrow"]
AltairChart = alt.TopLevelMixin
Panel = alt.LayerChart | alt.FacetChart
FILLED_LEGEND = alt.Legend(symbolOpacity=1, symbolStrokeWidth=0)
MAX_TICKS = 6
LOG_TICK_DIGITS: tuple[tuple[float, ...], ...] = (
    (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 2, 3, 5, 7),
    (1, 2, 5),
    (1,),
)
"""leading digits of the ticks on a logarithmic axis, from dense to sparse; the first that gives few enough is used"""


class ChartWarning(UserWarning):
    """A document was written without a chart because the chart could not be rendered."""


class ChartDatasets:
    """A chart's rows by dataset name, kept out of the specification because altair copies it many times."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def chart(self, rows: Sequence[dict[str, Any]]) -> alt.Chart:
        """Register `rows` as a named dataset and return an empty chart that uses it."""
        name = f"dataset-{len(self.rows)}"
        self.rows[name] = list(rows)
        return alt.Chart(alt.NamedData(name))


@dataclass(frozen=True)
class PanelGrid:
    """A panel's size in pixels, and the number of panels and legend entries per row."""

    width: int
    height: int
    columns: int
    legend_columns: int


@dataclass(frozen=True)
class Chart:
    """A chart with a title and a text alternative.

    `build` returns the altair chart for a given layout. If `panels` is set, both layouts share one specification and
    differ only in panel size.
    """

    name: str
    title: str
    alt_text: str
    build: Callable[[Layout, ChartDatasets], AltairChart]
    panels: Mapping[Layout, PanelGrid] | None = None

    def to_vega_lite(self, layout: Layout = "wide", background: str = "transparent") -> dict[str, Any]:
        """Return the Vega-Lite specification for a layout, including the data."""
        config = style.build_vega_config(background)
        if self.panels is not None:
            grid = self.panels[layout]
            config["view"] |= dict.fromkeys(("continuousWidth", "discreteWidth"), grid.width)
            config["view"] |= dict.fromkeys(("continuousHeight", "discreteHeight"), grid.height)
            config["concat"] |= {"columns": grid.columns}
            config["legend"] |= {"columns": grid.legend_columns}
            config["title"] |= {"limit": grid.width + 30}
        spec = self._shared_spec if self.panels is not None else self._build_spec(layout)
        return {**spec, "config": config, "description": self.alt_text}

    @cached_property
    def _shared_spec(self) -> dict[str, Any]:
        return self._build_spec("wide")

    def _build_spec(self, layout: Layout) -> dict[str, Any]:
        datasets = ChartDatasets()
        # Schema validation takes longer than rendering, so it is left to the tests.
        spec: dict[str, Any] = self.build(layout, datasets).to_dict(validate=False)
        return {**spec, "datasets": datasets.rows}

    def to_svg(self, layout: Layout = "wide", background: str = "transparent") -> str:
        """Render the chart as SVG."""
        return chart_renderer.render("vegalite_to_svg", self.to_vega_lite(layout, background)).decode()

    def render(self, image_format: str) -> bytes:
        """Render the wide layout on a white background as "svg", "pdf" or "png"."""
        return chart_renderer.render(f"vegalite_to_{image_format}", self.to_vega_lite(background="white"))

    def warn_not_rendered(self, error: ChartError) -> str:
        """Warn that a document lacks this chart, and return the text that replaces it."""
        message = f"chart {self.name!r} could not be rendered: {error}"
        warnings.warn(message, ChartWarning, stacklevel=3)
        return f"This {message}. {self.title}: {self.alt_text}"


def build_effect_axis_labels(metric: str) -> str:
    """Return the Vega expression for the labels on an axis of differences from the baseline: +5 %, 0, −5 %."""
    scale = 100 if number_format.is_shown_in_percent(metric) else 1
    unit = "\u00a0%" if metric == "perplexity" else ""
    return f"(datum.value > 0 ? '+' : '') + format(datum.value * {scale}, ',~r') + (datum.value ? '{unit}' : '')"


def build_score_axis_labels(metric: str) -> str:
    """Return the Vega expression for the labels on a score axis: 85 %, 1,200."""
    return "format(datum.value * 100, ',~r') + '\u00a0%'" if metric == "accuracy" else "format(datum.value, ',~r')"


def choose_log_ticks(low: float, high: float) -> list[float]:
    """Return at most `MAX_TICKS` round numbers for a chart's logarithmic axis from `low` to `high`."""
    for digits in LOG_TICK_DIGITS:
        ticks = [digit * 10.0**power for power in range(-1, 12) for digit in digits]
        ticks = [tick for tick in ticks if 0.95 * low <= tick <= 1.05 * high]
        if len(ticks) <= MAX_TICKS:
            break
    return ticks


def draw_curve(
    data: alt.Chart, x: alt.X, y: Callable[[str], alt.Y], *, point_size: int = 34, clip: bool = False, **encoding: Any
) -> list[alt.Chart]:
    """Return the marks with which charts draw a curve: a band from low to high, a line through the means, and points.

    The data rows have the fields `low`, `high`, `mean` and `tip` (the tooltip). `y` maps a field to its encoding;
    `encoding` may contain `color`, `strokeDash` (for the line) and `shape` (for the points).
    """
    color = {"color": encoding["color"]} if "color" in encoding else {"color": alt.value(style.BASELINE_COLOR)}
    dash = {"strokeDash": encoding["strokeDash"]} if "strokeDash" in encoding else {}
    shape = {"shape": encoding["shape"]} if "shape" in encoding else {}
    band = data.mark_area(aria=False, opacity=0.16, clip=clip)
    line = data.mark_line(aria=False, strokeWidth=2, clip=clip)
    points = data.mark_point(size=point_size, filled=True, opacity=1, clip=clip)
    return [
        band.encode(x=x, y=y("low:Q"), y2="high:Q", **color),
        line.encode(x=x, y=y("mean:Q"), **color, **dash),
        points.encode(x=x, y=y("mean:Q"), description="tip:N", **color, **shape),
    ]


def build_chart_encodings(
    field: str, names: Sequence[str], *, legend: alt.Legend | None = FILLED_LEGEND, has_baseline: bool = True
) -> tuple[alt.Color, alt.Shape, alt.StrokeDash]:
    """Return the Altair encodings of color, shape and dash by which a chart distinguishes a field's values.

    `names` are the values, such as variants; `has_baseline` states whether the first one is the baseline.
    """
    first = 0 if has_baseline else 1
    styles = style.assign_variant_styles([*[""] * first, *names])
    color_scale, shape_scale, dash_scale = (alt.Scale(domain=list(names), range=values[first:]) for values in styles)
    return (
        alt.Color(f"{field}:N", scale=color_scale, legend=legend),
        alt.Shape(f"{field}:N", scale=shape_scale, legend=legend),
        alt.StrokeDash(f"{field}:N", scale=dash_scale, legend=None),
    )


def arrange_panels(panels: Iterable[Panel], *, row_spacing: int = 80, column_spacing: int = 58) -> AltairChart:
    """Return small multiples whose plots are aligned regardless of their surrounding labels."""
    return alt.concat(*panels, bounds="flush", spacing=alt.RowColnumber(row=row_spacing, column=column_spacing))
