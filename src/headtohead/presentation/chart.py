"""What every chart shares: two layouts, its content in words, and how it becomes SVG, PDF or PNG, offline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import altair as alt

from headtohead.presentation import number_format, style

Layout = Literal["wide", "narrow"]
AltairChart = alt.TopLevelMixin


class ChartDatasets:
    """The figures of a chart, kept beside its description: altair copies a description many times while it grows."""

    def __init__(self) -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}

    def chart(self, rows: Sequence[dict[str, Any]]) -> alt.Chart:
        name = f"sheet-{len(self.rows)}"
        self.rows[name] = list(rows)
        return alt.Chart(alt.NamedData(name))


@dataclass(frozen=True)
class PanelGrid:
    """The size of small multiples, and how many stand side by side."""

    width: int
    height: int
    columns: int
    legend_columns: int


@dataclass(frozen=True)
class Chart:
    """A chart, its title, and what it shows in words. With `panels` both layouts have the same description."""

    name: str
    title: str
    words: str
    build: Callable[[Layout, ChartDatasets], AltairChart]
    panels: Mapping[Layout, PanelGrid] | None = None

    def to_vega_lite(self, layout: Layout = "wide", background: str = "transparent") -> dict[str, Any]:
        """The Vega-Lite description."""
        config = style.build_vega_config(background)
        if self.panels is not None:
            one = self.panels[layout]
            config["view"] |= dict.fromkeys(("continuousWidth", "discreteWidth"), one.width)
            config["view"] |= dict.fromkeys(("continuousHeight", "discreteHeight"), one.height)
            config["concat"] |= {"columns": one.columns}
            config["legend"] |= {"columns": one.legend_columns}
            config["title"] |= {"limit": one.width + 30}
        described = self._shared_spec if self.panels is not None else self._build_spec(layout)
        return {**described, "config": config, "description": self.words}

    @cached_property
    def _shared_spec(self) -> dict[str, Any]:
        return self._build_spec("wide")

    def _build_spec(self, layout: Layout) -> dict[str, Any]:
        sheets = ChartDatasets()
        built = self.build(layout, sheets)
        # Altair's check of the whole schema takes longer than drawing; the tests do it instead.
        described: dict[str, Any] = built.to_dict(validate=False)
        return {**described, "datasets": sheets.rows}

    def svg(self, layout: Layout = "wide", background: str = "transparent") -> str:
        import vl_convert

        return str(vl_convert.vegalite_to_svg(self.to_vega_lite(layout, background)))

    def to_pdf(self) -> bytes:
        import vl_convert

        return bytes(vl_convert.vegalite_to_pdf(self.to_vega_lite(background="white")))

    def to_png(self) -> bytes:
        import vl_convert

        return bytes(vl_convert.vegalite_to_png(self.to_vega_lite(background="white"), scale=2))


def build_effect_label_expression(metric: str) -> str:
    """How an axis of differences is labelled: +5 %, 0, −5 %."""
    scale, unit = (
        (100, "\u00a0%" if metric == "perplexity" else "") if number_format.is_shown_in_percent(metric) else (1, "")
    )
    return f"(datum.value > 0 ? '+' : '') + format(datum.value * {scale}, ',~r') + (datum.value ? '{unit}' : '')"


def build_score_label_expression(metric: str) -> str:
    """How an axis of scores is labelled: 85 %, 1,200."""
    return "format(datum.value * 100, ',~r') + '\u00a0%'" if metric == "accuracy" else "format(datum.value, ',~r')"


def _choose_log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between the ends, as many as there is room for."""
    for digits in LOG_TICK_DIGITS:
        ticks = [digit * 10.0**power for power in range(-1, 12) for digit in digits]
        ticks = [tick for tick in ticks if 0.95 * low <= tick <= 1.05 * high]
        if len(ticks) <= MAX_TICKS:
            break
    return ticks


LOG_TICK_DIGITS = (
    (1, 1.2, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 9),
    (1, 1.5, 2, 3, 4, 5, 6, 8),
    (1, 2, 3, 5, 7),
    (1, 2, 5),
    (1,),
)


MAX_TICKS = 6
