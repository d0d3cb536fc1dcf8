"""Charts that display themselves in a notebook."""

from __future__ import annotations

from typing import Any

from headtohead.errors import ChartError
from headtohead.presentation.chart import Chart


class NotebookChart:
    """A chart that a notebook displays as SVG, or as its text alternative."""

    def __init__(self, chart: Chart) -> None:
        self.chart = chart

    def __repr__(self) -> str:
        return f"{self.chart.title}. {self.chart.alt_text}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        try:
            return {"image/svg+xml": self.chart.to_svg(background="white"), "text/plain": repr(self)}
        except ChartError as error:
            return {"text/plain": self.chart.warn_not_rendered(error)}
