"""The same in a notebook: results and charts display by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from . import charts, formats, images, page, reading
from .reading import Findings


def html_of(findings: Findings, folder: Path | None = None, maps: Mapping[str, images.Maps] | None = None) -> str:
    """The report as a piece of HTML; attention maps too, when the experiment's folder is given."""
    return page.fragment(findings, maps, folder)


def text_of(findings: Findings) -> str:
    """The question and the verdicts, for places that show no HTML."""
    sentences = [f"  {row['sentence']}" for row in reading.verdicts(findings)]
    return "\n".join([reading.question(findings), *sentences])


def markdown_of(findings: Findings) -> str:
    return formats.markdown_report(findings, [])


def charts_of(findings: Findings) -> dict[str, ShownChart]:
    """Every chart by name, each of which displays by itself."""
    return {chart.name: ShownChart(chart) for chart in charts.charts(findings)}


class HasFindings(Protocol):
    """What can be shown: something with findings, and perhaps a folder."""

    @property
    def findings(self) -> Findings: ...


class Shown:
    """Mix this into a class with `findings` (and, for attention maps, `folder`): a notebook then shows the report."""

    def _repr_html_(self: HasFindings) -> str:
        folder = getattr(self, "folder", None)
        return html_of(self.findings, folder if isinstance(folder, Path) else None)

    def _repr_mimebundle_(self: HasFindings, include: Any = None, exclude: Any = None) -> dict[str, str]:
        folder = getattr(self, "folder", None)
        return {
            "text/html": html_of(self.findings, folder if isinstance(folder, Path) else None),
            "text/markdown": markdown_of(self.findings),
            "text/plain": text_of(self.findings),
        }


class ShownChart:
    """A chart that a notebook draws as SVG, in its own words where it cannot."""

    def __init__(self, chart: charts.Chart) -> None:
        self.chart = chart

    def __repr__(self) -> str:
        return f"{self.chart.title}. {self.chart.words}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.chart.svg(background="white"), "text/plain": repr(self)}
