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
from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation.renderers import html
from headtohead.report.context import ReportContext
from headtohead.report.sections import build_sections
from headtohead.report.sections.pairing import list_unpaired_variants


def render_page(
    findings: Findings, attention_maps: Mapping[str, TrainingMaps] | None = None, folder: Path | None = None
) -> str:
    """Return the HTML page. `attention_maps` maps variants to their maps; by default they are read from `folder`."""
    variables = _build_template_variables(ReportContext(findings, folder, attention_maps))
    return html.render_document("page.html", **variables)


def render_fragment(
    findings: Findings, attention_maps: Mapping[str, TrainingMaps] | None = None, folder: Path | None = None
) -> str:
    """Return the report as a fragment to embed in a page such as a notebook. Its styles do not affect that page."""
    variables = _build_template_variables(ReportContext(findings, folder, attention_maps))
    return html.render_document("fragment.html", **variables)


def _build_template_variables(context: ReportContext) -> dict[str, Any]:
    """Return the report template's variables."""
    findings = context.findings
    return {
        "data": Markup(html.encode_script_json(findings.to_json())),
        "title": findings_view.get_question(findings),
        "lead": describe_basis(context),
        "warnings": list_warnings(context),
        "sections": build_sections(context),
    }


def describe_basis(context: ReportContext) -> str:
    """Return one paragraph about what the verdicts are based on."""
    findings = context.findings
    if context.is_quick:
        return f"Based on {context.describe_primary_metric()}. A quick look is not judged."
    analysis_seeds = ", ".join(map(str, findings.interim_analyses))
    has_interim_analyses = len(findings.interim_analyses) > 1
    if distillation_tables.build_headline_verdicts(findings):
        stopping_note = (
            " Seeds were added until the verdicts by perplexity were settled; these intervals do not correct for it."
        )
        basis = distillation_tables.describe_evaluation_set(findings)
        return f"Based on {basis} counts as no practical difference.{stopping_note if has_interim_analyses else ''}"
    seeds = max((verdict.seeds for verdict in findings.verdicts), default=0)
    basis = context.describe_primary_metric() + (f", {seeds} seeds" if seeds else "")
    stopping_note = f" The results were analysed at {analysis_seeds} seeds, and the intervals account for that."
    has_margin = findings_view.get_equivalence_margin(findings) > 0
    margin = f" Differences within {context.margin} count as no practical difference." if has_margin else ""
    return f"Based on {basis}.{margin}{stopping_note if has_interim_analyses else ''}"


def list_warnings(context: ReportContext) -> list[dict[str, str]]:
    """Return each warning's lead-in, text and linked section, most general first."""
    findings, warnings = context.findings, []
    if context.experiment is not None and context.is_quick:
        reductions = "; ".join(context.experiment.left_out) or "fewer seeds and steps than the experiment specifies"
        text = f"not judged. It used {reductions}. Run the experiment without `--quick` for verdicts."
        warnings.append({"lead": "Quick look:", "text": text})
    if findings.rows == "unseen":
        text = "some test rows also occur in the training data."
        warnings.append({"lead": "The verdict uses unseen rows only:", "text": text, "link": "data"})
    warnings += [
        {"lead": f"{warning.kind.capitalize()}:", "text": f"{warning.message} {warning.advice}"}
        for warning in findings.warnings
    ]
    if num_lost := sum(failure.is_lost for failure in findings.failures):
        lead = "1 run was lost:" if num_lost == 1 else f"{num_lost} runs were lost:"
        text = "training diverged or learned nothing, which counts as the worst result."
        warnings.append({"lead": lead, "text": text, "link": "failures"})
    if num_failures := sum(not failure.is_lost for failure in findings.failures):
        lead = "1 trial has no result" if num_failures == 1 else f"{num_failures} trials have no result"
        text = f"and {'is' if num_failures == 1 else 'are'} excluded from all statistics."
        warnings.append({"lead": lead, "text": text, "link": "failures"})
    if unpaired := list_unpaired_variants(findings):
        text = "initial weights or batches differ from the baseline’s."
        warnings.append({"lead": f"Not paired: {', '.join(unpaired)}.", "text": text.capitalize(), "link": "pairing"})
    return warnings
