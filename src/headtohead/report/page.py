"""Render the report as one self-contained HTML file that needs no network access, fonts or libraries.

Charts are rendered to SVG in two layouts; the style sheet selects one of them, so the page is complete without
JavaScript and can be printed. The script only adds tooltips. jinja2 escapes all text from users and models, and a
content security policy forbids all requests and all scripts except the page's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.attention_analysis.thumbnails import TrainingMaps
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation.renderers import html
from headtohead.report.context import ReportContext
from headtohead.report.introduction import build_report_lead, list_introduction_warnings
from headtohead.report.sections import build_sections


def render_page(
    findings: Findings, attention_maps: Mapping[str, TrainingMaps] | None = None, folder: Path | None = None
) -> str:
    """Return the report as an HTML page.

    `attention_maps` maps variants to their maps; by default they are read from `folder`.
    """
    variables = _build_template_variables(ReportContext(findings, folder, attention_maps))
    return html.render_html_template("page.html", **variables)


def render_fragment(
    findings: Findings, attention_maps: Mapping[str, TrainingMaps] | None = None, folder: Path | None = None
) -> str:
    """Return the report as a fragment to embed in a page such as a notebook. Its styles do not affect that page."""
    variables = _build_template_variables(ReportContext(findings, folder, attention_maps))
    return html.render_html_template("fragment.html", **variables)


def _build_template_variables(context: ReportContext) -> dict[str, Any]:
    """Return the variables of the report page's template: question, lead, warnings, sections and data."""
    findings = context.findings
    return {
        "data": Markup(html.encode_script_json(findings.to_json())),
        "title": findings_view.get_question(findings),
        "lead": build_report_lead(context),
        "warnings": list_introduction_warnings(context),
        "sections": build_sections(context),
    }
