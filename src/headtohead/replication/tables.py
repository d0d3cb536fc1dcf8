"""Build the report's tables of a replication: published scores next to ours, and published claims."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ClaimResult, Findings, PublishedComparison
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns

ANSWER_SYMBOLS = {"holds": "✓", "does not hold": "✗", "cannot tell": "?", "cannot be tested": "–"}


def build_published_table(findings: Findings) -> Table:
    """Build the table of published scores: a row per source, a column per split and metric, sorted by variant and step.

    Our rows precede those compared with them.
    """
    comparisons = findings.published
    split_metrics = list(dict.fromkeys((row.split, row.metric) for row in comparisons))
    metrics = {metric for _, metric in split_metrics}
    titles = [split if len(metrics) == 1 else f"{split}, {metric}" for split, metric in split_metrics]
    columns = make_text_columns("source") + make_numeric_columns(*titles) + make_text_columns("note")
    rows: list[list[Any]] = []
    for variant, step in _list_compared_variants_and_steps(findings):
        step_comparisons = [row for row in comparisons if (row.variant, row.step) == (variant, step)]
        step_suffix = "" if step is None else f" at step {step:,}" if isinstance(step, int) else f" after {step}"
        by_split_metric = {(row.split, row.metric): row for row in reversed(step_comparisons)}
        cells = [_make_our_score_cell(by_split_metric.get(split_metric)) for split_metric in split_metrics]
        rows.append([f"ours, {variant}{step_suffix}", *cells, ""])
        for source, note in dict.fromkeys((row.source, _format_published_note(row)) for row in step_comparisons):
            source_rows = [
                row for row in step_comparisons if (row.source, _format_published_note(row)) == (source, note)
            ]
            by_split_metric = {(row.split, row.metric): row for row in reversed(source_rows)}
            cells = [_make_published_score_cell(by_split_metric.get(split_metric)) for split_metric in split_metrics]
            rows.append([f"{source}, {variant}{step_suffix}", *cells, note])
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    caption = "Ours: mean over seeds with its 95 % interval. Theirs: the published value and its difference to ours."
    table = make_table("published", "Published results", caption, columns, rows)
    return replace(table, long_form=build_long_published_table(findings))


def _list_compared_variants_and_steps(findings: Findings) -> list[tuple[str, int | str | None]]:
    """Return the compared variants and steps: variants in the order of the experiment, the final score first."""
    order = {name: index for index, name in enumerate(findings_view.list_variant_names(findings))}
    variants_and_steps = dict.fromkeys((row.variant, row.step) for row in findings.published)
    return sorted(variants_and_steps, key=lambda pair: (order.get(pair[0], len(order)), _get_step_number(pair[1])))


def _get_step_number(step: int | str | None) -> float:
    """Return the number in a step such as 300 or "6 epochs"; -1 for the end of training."""
    return -1.0 if step is None else float(str(step).partition(" ")[0])


def _make_our_score_cell(comparison: PublishedComparison | None) -> Cell:
    """Return the table cell of our mean over seeds, with its interval."""
    if comparison is None or not number_format.is_finite_number(comparison.ours):
        return Cell(number_format.MISSING_VALUE)
    text = number_format.format_score(comparison.metric, comparison.ours)
    if comparison.interval:
        interval = number_format.format_score_interval(comparison.metric, comparison.interval)
        text += f" ({interval.replace(' ', number_format.NO_BREAK_SPACE)})"
    return Cell(text, comparison.ours)


def _make_published_score_cell(comparison: PublishedComparison | None) -> Cell:
    """Return the table cell of a published value, with its difference to ours."""
    if comparison is None:
        return Cell("")
    difference = _compute_difference_from_ours(comparison)
    text = number_format.format_score(comparison.metric, comparison.value)
    if difference is not None:
        effect = number_format.format_effect(comparison.metric, difference)
        text += f" ({effect.replace(' ', number_format.NO_BREAK_SPACE)})"
    return Cell(text, comparison.value)


def _compute_difference_from_ours(comparison: PublishedComparison) -> float | None:
    """Return the difference to ours in the table of published scores, or None if measured on other data."""
    ours = comparison.ours
    if comparison.other_data or not ours or not number_format.is_finite_number(ours):
        return None
    return findings_view.compute_effect(comparison.metric, float(ours), comparison.value)


def _format_published_note(comparison: PublishedComparison) -> str:
    """Return the note of a published result, which says if it was measured on different data."""
    warnings = ["different data: not compared"] if comparison.other_data else []
    return "; ".join([*warnings, *([comparison.note] if comparison.note else [])])


def build_long_published_table(findings: Findings) -> Table:
    """Build the long form of the table, with one row per published value."""
    columns = make_text_columns("source", "variant", "split", "metric", "step")
    columns += make_numeric_columns("published", "ours", "interval", "difference") + make_text_columns("note")
    rows = [
        [
            *(row.source, row.variant, row.split, row.metric, row.step),
            *(row.value, row.ours, row.interval, _compute_difference_from_ours(row), _format_published_note(row)),
        ]
        for row in findings.published
    ]
    return make_table("published", "Published results", "", columns, rows)


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
    """Return the sentence in the table of claims that explains the answer to a claim."""
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
