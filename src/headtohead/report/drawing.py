"""What every chart shares: two layouts, its content in words, and how it becomes SVG, PDF or PNG, offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt

from . import figures, style

Layout = Literal["wide", "narrow"]
Built = alt.TopLevelMixin


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


def chart_of(rows: Sequence[dict[str, Any]]) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=list(rows)))


def change_words(metric: str) -> str:
    """How an axis of differences is labelled: +5 %, 0, −5 %."""
    scale, unit = (100, "\u00a0%" if metric == "perplexity" else "") if figures.in_hundredths(metric) else (1, "")
    return f"(datum.value > 0 ? '+' : '') + format(datum.value * {scale}, ',~r') + (datum.value ? '{unit}' : '')"


def value_words(metric: str) -> str:
    """How an axis of scores is labelled: 85 %, 1,200."""
    return "format(datum.value * 100, ',~r') + '\u00a0%'" if metric == "accuracy" else "format(datum.value, ',~r')"
