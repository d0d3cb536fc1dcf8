"""The same in a notebook: results and charts display by themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headtohead.attention_analysis import thumbnails
from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation.notebook import NotebookChart
from headtohead.report import charts, markdown, page


def render_html(
    findings: Findings, folder: Path | None = None, attention_maps: Mapping[str, thumbnails.TrainingMaps] | None = None
) -> str:
    """The report as a piece of HTML; attention maps too, when the experiment's folder is given."""
    return page.render_fragment(findings, attention_maps, folder)


def render_text(findings: Findings) -> str:
    """The question and the verdicts, for places that show no HTML."""
    sentences = [f"  {row['sentence']}" for row in findings_view.get_verdicts(findings)]
    return "\n".join([findings_view.get_question(findings), *sentences])


def render_markdown(findings: Findings) -> str:
    return markdown.render_markdown_report(findings, [])


def build_notebook_charts(findings: Findings) -> dict[str, NotebookChart]:
    """Every chart by name, each of which displays by itself."""
    return {chart.name: NotebookChart(chart) for chart in charts.build_charts(findings)}


class NotebookReportMixin:
    """Mix this into a class and say what its findings are: a notebook then shows the report."""

    def shown_findings(self) -> Findings:
        raise NotImplementedError(f"{type(self).__name__} does not say what its findings are")

    def shown_folder(self) -> Path | None:
        """The experiment's folder, from which attention maps are read."""
        return None

    def _repr_html_(self) -> str:
        return render_html(self.shown_findings(), self.shown_folder())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        findings = self.shown_findings()
        return {
            "text/html": render_html(findings, self.shown_folder()),
            "text/markdown": render_markdown(findings),
            "text/plain": render_text(findings),
        }
