"""Build the report's table of published claims and whether they hold."""

from __future__ import annotations

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ClaimResult, Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns

ANSWER_SYMBOLS = {"holds": "✓", "does not hold": "✗", "cannot tell": "?", "cannot be tested": "–"}


def build_claims_table(findings: Findings) -> Table:
    """Return the published claims with their answers, effects and reasons."""
    metric = findings_view.get_metric(findings)
    columns = make_text_columns("source", "claim", "answer")
    columns += make_numeric_columns(effect="change", interval="interval") + make_text_columns("reason")
    rows = []
    for claim in findings.claims:
        decimals = number_format.choose_decimals(metric, claim.interval)
        rows.append(
            [
                *(claim.source, claim.statement),
                Cell(f"{ANSWER_SYMBOLS[claim.answer]} {claim.answer}", claim.answer),
                Cell(number_format.format_effect(metric, claim.effect, decimals), claim.effect),
                Cell(number_format.format_effect_interval(metric, claim.interval, decimals), claim.interval),
                _format_claim_reason(claim),
            ]
        )
    caption = (
        "A claim holds if the verdict has the outcome that it states, and does not hold if it has a different one. "
        "Without a verdict it cannot be tested. Exploratory answers do not share the error rate."
    )
    return make_table("claims", "Published claims", caption, columns, rows)


def _format_claim_reason(claim: ClaimResult) -> str:
    """Return the sentence that explains the answer to a claim."""
    reason = {
        None: claim.summary or "",
        "helped": "the variant is better",
        "hurt": "the variant is worse",
        "no practical difference": "the difference has no practical relevance",
        "cannot tell": "the noise of seeds and text is larger than the difference",
        "not comparable": claim.summary.rstrip("."),
    }.get(claim.outcome, str(claim.outcome))
    conditions = [f"on {claim.split}"] if claim.split else []
    conditions += [f"at {'step ' if isinstance(claim.step, int) else ''}{claim.step}"] if claim.step else []
    conditions += [f"at context length {claim.context} compared with that of training"] if claim.context else []
    conditions += ["exploratory"] if claim.is_exploratory else []
    condition_text = f" ({', '.join(conditions)})" if conditions else ""
    note = f" {claim.explanation}" if claim.explanation and claim.answer in ("holds", "does not hold") else ""
    return f"{reason[:1].upper()}{reason[1:]}{condition_text}.{note}"
