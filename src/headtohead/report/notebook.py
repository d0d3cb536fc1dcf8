"""Display reports and charts in notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation.renderers.notebook import NotebookChart
from headtohead.report import documents, page
from headtohead.report.context import ReportContext
from headtohead.report.sections import build_charts


def render_html(findings: Findings, folder: Path | None = None) -> str:
    """Return the report as an HTML fragment, with attention maps if the experiment's folder is given."""
    return page.render_fragment(findings, None, folder)


def render_text(findings: Findings) -> str:
    """Return the question and the verdicts as plain text."""
    sentences = [f"  {verdict.summary}" for verdict in findings.verdicts]
    return "\n".join([findings_view.get_question(findings), *sentences])


def build_notebook_charts(findings: Findings) -> dict[str, NotebookChart]:
    """Return every chart by name, as objects that display themselves in a notebook."""
    return {chart.name: NotebookChart(chart) for chart in build_charts(findings)}


class NotebookReportMixin:
    """Mixin that displays an object's report in a notebook. Subclasses implement `shown_findings`."""

    def shown_findings(self) -> Findings:
        """Return the findings to display."""
        raise NotImplementedError(f"{type(self).__name__} does not implement shown_findings()")

    def shown_folder(self) -> Path | None:
        """Return the experiment's folder, from which attention maps are read."""
        return None

    def _repr_html_(self) -> str:
        return render_html(self.shown_findings(), self.shown_folder())

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the report as HTML, Markdown and plain text; the notebook shows the richest format it supports."""
        findings = self.shown_findings()
        return {
            "text/html": render_html(findings, self.shown_folder()),
            "text/markdown": documents.render_markdown_document(ReportContext(findings), headlines_only=True),
            "text/plain": render_text(findings),
        }
