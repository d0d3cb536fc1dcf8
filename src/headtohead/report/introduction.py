"""Introduce a report: the paragraph and the warnings that precede its sections in every format."""

from __future__ import annotations

from headtohead.distillation import tables as distillation_tables
from headtohead.experiment import findings_view
from headtohead.report.context import ReportContext
from headtohead.report.sections.pairing import list_unpaired_variants


def build_report_lead(context: ReportContext) -> str:
    """Return the lead paragraph of a report: what its verdicts are based on."""
    findings = context.findings
    if context.is_quick:
        return f"Based on {context.describe_primary_metric()}. A quick look is not judged."
    if findings.sweep is not None:
        return f"Based on {context.describe_primary_metric()}, in {len(findings.sweep.cells)} cells."
    has_interim_analyses = len(findings.interim_analyses) > 1
    if distillation_tables.build_rouge_verdict_cards(findings):
        distillation_note = (
            " Seeds were added until the verdicts by perplexity were settled; these intervals do not correct for it."
        )
        basis = distillation_tables.describe_rouge_evaluation(findings)
        return f"Based on {basis} counts as no practical difference.{distillation_note if has_interim_analyses else ''}"
    num_seeds = max((verdict.seeds for verdict in findings.verdicts), default=0)
    basis = context.describe_primary_metric() + (f", {num_seeds} seeds" if num_seeds else "")
    analysis_seeds = ", ".join(map(str, findings.interim_analyses))
    interim_note = f" The results were analyzed at {analysis_seeds} seeds, and the intervals account for that."
    has_margin = findings_view.get_equivalence_margin(findings) > 0
    margin_note = (
        f" Differences within {context.formatted_margin} count as no practical difference." if has_margin else ""
    )
    return f"Based on {basis}.{margin_note}{interim_note if has_interim_analyses else ''}"


def list_introduction_warnings(context: ReportContext) -> list[dict[str, str]]:
    """Return the warnings above a report's sections: lead-in, text and linked section of each, most general first."""
    findings, warnings = context.findings, []
    if context.experiment is not None and context.is_quick:
        reductions = "; ".join(context.experiment.left_out) or "fewer seeds and steps than the experiment specifies"
        text = f"not judged. It used {reductions}. Run the experiment without `--quick` for verdicts."
        warnings.append({"lead": "Quick look:", "text": text})
    if findings.rows == "unseen":
        text = "some test rows also occur in the training data."
        subject = "comparison" if context.is_quick else "verdict"
        warnings.append({"lead": f"The {subject} uses unseen rows only:", "text": text, "link": "data"})
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
    if unpaired_variants := list_unpaired_variants(findings):
        text = "initial weights or batches differ from the baseline’s."
        warnings.append(
            {"lead": f"Not paired: {', '.join(unpaired_variants)}.", "text": text.capitalize(), "link": "pairing"}
        )
    return warnings
