"""Report tables of replications: claims, context lengths, simple baselines, attribution of lines, and axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ClaimResult, Findings, LengthCost, LengthSummary
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns

LengthT = TypeVar("LengthT", bound=LengthSummary | LengthCost)
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
        "A claim holds if the verdict has the outcome that it states, and does not hold if it has another one. "
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


def build_context_length_table(findings: Findings) -> Table:
    """Return scores by context length; a note marks lengths that a model does not support."""
    metric = findings_view.get_metric(findings)
    trained = findings.experiment.model.context if findings.experiment else None
    joining_note = " Rows of one class are joined to texts of that length." if metric == "accuracy" else ""
    caption = (
        f"{metric.capitalize()} on all held-out text in blocks of this length, with the 95 % interval over seeds; "
        f"trained at {trained}.{joining_note}"
    )
    results = {name: summary.contexts for name, summary in findings.length_generalization.items()}
    return _build_length_table(
        "contexts", "Other context lengths", caption, results, partial(_make_context_cell, metric)
    )


def _make_context_cell(metric: str, result: LengthSummary) -> Cell:
    if result.error:
        return Cell("not supported", result.error)
    text = _format_score_with_interval(metric, result.value, result.interval)
    return Cell(text.replace(" ", number_format.NO_BREAK_SPACE), result.value)


def build_context_cost_table(findings: Findings) -> Table:
    """Return time and memory of the layers by context length."""
    caption = (
        "Forward and backward time of the layers per 1,000 tokens, and memory kept per token, in rows of this length. "
        "The output layer is excluded: its cost does not depend on the length."
    )
    costs = {name: summary.costs for name, summary in findings.length_generalization.items()}
    return _build_length_table("costs", "Cost by context length", caption, costs, _make_context_cost_cell)


def _make_context_cost_cell(cost: LengthCost) -> Cell:
    seconds, num_bytes = cost.seconds_per_1000_tokens, cost.bytes_per_token
    text = f"{number_format.format_seconds(seconds)}, {number_format.format_bytes(num_bytes)}"
    return Cell(text, [seconds, num_bytes])


def _build_length_table(
    name: str,
    title: str,
    caption: str,
    results_by_variant: Mapping[str, Sequence[LengthT]],
    make_cell: Callable[[LengthT], Cell],
) -> Table:
    """Return a row for each variant that has results, and a column for each context length."""
    lengths = list(dict.fromkeys(result.context for results in results_by_variant.values() for result in results))
    columns = make_text_columns("variant") + make_numeric_columns({str(n): f"{n} tokens" for n in lengths})
    rows = []
    for variant, results in results_by_variant.items():
        if cells := {result.context: make_cell(result) for result in results}:
            rows.append([variant, *map(cells.get, lengths)])
    return make_table(name, title, caption, columns, rows)


def build_simple_baselines_table(findings: Findings) -> Table:
    """Return the accuracy of count-based baselines that a trained classifier should exceed."""
    accuracies = findings.corpus.count_baselines if findings.corpus else {}
    splits = list(dict.fromkeys(name for by_split in accuracies.values() for name in by_split))
    columns = make_text_columns(method="baseline")
    columns += make_numeric_columns(*splits, format=partial(number_format.format_score, "accuracy"))
    rows = [[name, *(by_split.get(split) for split in splits)] for name, by_split in accuracies.items()]
    caption = (
        "Accuracy of looking a text up in the training data (or else the most common class), and of naive Bayes over "
        "the same tokens (words for pretrained models). Its smoothing is chosen by leave-one-out on the training rows."
    )
    return make_table("simple", "Baselines without training", caption, columns, rows)


def build_attribution_table(findings: Findings) -> Table:
    """Return the number of lines of each text by label, for lines that also occur in a labeled file."""
    counts = findings.corpus.lines_by_label if findings.corpus else {}
    if not any(count for by_label in counts.values() for label, count in by_label.items() if label != "not traced"):
        counts = {}
    labels = list(dict.fromkeys(label for by_label in counts.values() for label in by_label))
    columns = make_text_columns("text") + make_numeric_columns(*labels)
    rows = []
    for name, by_label in counts.items():
        total = sum(by_label.values()) or 1
        cells = []
        for label in labels:
            count = by_label.get(label, 0)
            cells.append(Cell(f"{count:,} ({number_format.format_percentage(count / total)})", by_label.get(label)))
        rows.append([name, *cells])
    caption = (
        "Lines of each text that occur under a label in the labeled training file of the same source. Text by a "
        "speaker who is rare in the training data is harder to predict."
    )
    return make_table("whose", "Lines by label", caption, columns, rows)


def build_axis_table(findings: Findings) -> Table:
    """Return results and costs by the numeric setting in which the variants differ."""
    axis = findings.axis
    metric, splits = findings_view.get_metric(findings), findings_view.list_score_splits(findings)
    setting = axis.setting.rpartition(".")[2] if axis else ""
    columns = [
        *make_numeric_columns(value=setting, format="{:g}".format),
        *make_numeric_columns(*splits, format=partial(number_format.format_score, metric)),
        *make_numeric_columns(last_loss="final training loss"),
        *make_numeric_columns(seconds_per_step="time per step", format=number_format.format_seconds),
        *make_numeric_columns("parameters", format=number_format.format_count),
    ]
    rows: list[list[Any]] = []
    for name, axis_value in sorted((axis.values if axis else {}).items(), key=lambda item: item[1]):
        row: list[Any] = [axis_value]
        for split in splits:
            seed_scores = [score for _, score in findings.scores.get(name, {}).get(split, [])]
            finite_scores = [score for score in seed_scores if number_format.is_finite_number(score)]
            row.append(average_over_seeds(metric, finite_scores) if finite_scores else None)
        last_loss = axis.last_loss.get(name) if axis else None
        mean_loss, interval = (last_loss.mean, last_loss.interval) if last_loss else (None, None)
        loss_text = _format_score_with_interval("loss", mean_loss, interval)
        rows.append([*row, Cell(loss_text, mean_loss), *_get_variant_cost(findings, name)])
    return make_table("axis", f"By {setting}", f"Means over seeds, by {setting}.", columns, rows)


def _format_score_with_interval(metric: str, value: Any, interval: Any) -> str:
    suffix = f" ({number_format.format_score_interval(metric, interval)})" if interval else ""
    return number_format.format_score(metric, value) + suffix


def _get_variant_cost(findings: Findings, variant: str) -> tuple[float | None, float | None]:
    """Return seconds per step and number of parameters of a variant. Each pair lists the baseline first."""
    pairs = findings.pairing
    side, pair = (1, pairs[variant]) if variant in pairs else (0, next(iter(pairs.values()), None))
    if pair is None:
        return None, None
    costs = (pair.seconds_per_step, pair.parameters)
    seconds, parameters = (cost[side] if cost else None for cost in costs)
    return seconds, parameters
