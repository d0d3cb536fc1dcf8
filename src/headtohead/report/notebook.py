"""The same in a notebook: results and charts display by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headtohead.attention_analysis import thumbnails
from headtohead.presentation import chart, exports
from headtohead.report import charts, findings_view, page
from headtohead.report.findings_view import Findings


def html_of(findings: Findings, folder: Path | None = None, maps: Mapping[str, thumbnails.Maps] | None = None) -> str:
    """The report as a piece of HTML; attention maps too, when the experiment's folder is given."""
    return page.fragment(findings, maps, folder)


def text_of(findings: Findings) -> str:
    """The question and the verdicts, for places that show no HTML."""
    sentences = [f"  {row['sentence']}" for row in findings_view.verdicts(findings)]
    return "\n".join([findings_view.question(findings), *sentences])


def markdown_of(findings: Findings) -> str:
    return exports.markdown_report(findings, [])


def charts_of(findings: Findings) -> dict[str, ShownChart]:
    """Every chart by name, each of which displays by itself."""
    return {chart.name: ShownChart(chart) for chart in charts.charts(findings)}


class Shown:
    """Mix this into a class and say what its findings are: a notebook then shows the report."""

    def shown_findings(self) -> Findings:
        raise NotImplementedError(f"{type(self).__name__} does not say what its findings are")

    def shown_folder(self) -> Path | None:
        """The experiment's folder, from which attention maps are read."""
        return None

    def _repr_html_(self) -> str:
        return html_of(self.shown_findings(), self.shown_folder())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        findings = self.shown_findings()
        return {
            "text/html": html_of(findings, self.shown_folder()),
            "text/markdown": markdown_of(findings),
            "text/plain": text_of(findings),
        }


class ShownChart:
    """A chart that a notebook draws as SVG, in its own words where it cannot."""

    def __init__(self, chart: chart.Chart) -> None:
        self.chart = chart

    def __repr__(self) -> str:
        return f"{self.chart.title}. {self.chart.words}"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"image/svg+xml": self.chart.svg(background="white"), "text/plain": repr(self)}
