"""Report tables of replications: claims, context lengths, simple baselines, attribution of lines, and axes."""

from __future__ import annotations

from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ClaimResult, Findings, LengthCost, LengthSummary
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns

ANSWER_SYMBOLS = {"holds": "✓", "does not hold": "✗", "cannot tell": "?"}


def build_claims_table(findings: Findings) -> Table:
    """Build the table of claims with their answers, effects and reasons."""
    metric = findings_view.get_metric(findings)
    columns = make_text_columns(source="report", says="it says that", answer="here, that")
    columns += make_numeric_columns(effect="change", interval="95 % interval") + make_text_columns(why="because")
    rows = []
    for claim in findings.claims:
        decimals = number_format.choose_decimals(metric, claim.interval)
        rows.append(
            [
                claim.source,
                claim.statement,
                Cell(f"{ANSWER_SYMBOLS[claim.answer]} {claim.answer}", claim.answer),
                Cell(number_format.format_effect(metric, claim.effect, decimals), claim.effect),
                Cell(number_format.format_effect_interval(metric, claim.interval, decimals), claim.interval),
                _format_claim_reason(claim, metric),
            ]
        )
    caption = (
        "A claim holds if the verdict is the one that it asks for, and does not hold if it is another one; where there "
        "is none, nobody can tell from these runs."
    )
    return make_table("claims", "Claims, answered", caption, columns, rows)


def _format_claim_reason(claim: ClaimResult, metric: str) -> str:
    """Return the sentence that explains the answer to a claim."""
    reason = {
        None: claim.summary or "",
        "helped": "the variant is better",
        "hurt": "the variant is worse",
        "no practical difference": "the difference is too small to matter",
        "cannot tell": "the noise of seeds and text is larger than the difference",
    }.get(claim.outcome, str(claim.outcome))
    conditions = [f"on {claim.split}" if claim.split else ""]
    conditions.append(f"at {'step ' if isinstance(claim.step, int) else ''}{claim.step}" if claim.step else "")
    conditions.append(f"inputs of {claim.context} against those of training" if claim.context else "")
    condition_text = " ".join(condition for condition in conditions if condition)
    note = f" {claim.explanation}" if claim.explanation and claim.answer != "cannot tell" else ""
    return f"{reason[:1].upper()}{reason[1:]}{f' ({condition_text})' if condition_text else ''}.{note}"


def build_context_length_table(findings: Findings) -> Table:
    """Build the table of scores by context length; a model that does not support a length says so."""
    metric = findings_view.get_metric(findings)
    results_by_variant = {name: summary.contexts for name, summary in findings.length_generalization.items()}
    lengths = list(dict.fromkeys(row.context for rows in results_by_variant.values() for row in rows))
    columns = make_text_columns("variant") + make_numeric_columns({str(n): f"{n} tokens" for n in lengths})
    rows = []
    for name, results in results_by_variant.items():
        if results:
            result_by_length = {row.context: row for row in results}
            rows.append([name, *(_make_context_cell(metric, result_by_length.get(length)) for length in lengths)])
    trained = findings.experiment.model.context if findings.experiment else None
    joining_note = " Rows of one class are joined to texts of that length." if metric == "accuracy" else ""
    caption = (
        f"{metric.capitalize()} of all held-out text, read in pieces of this length, with the 95 % interval over "
        f"seeds; trained at {trained}.{joining_note}"
    )
    return make_table("contexts", "On other lengths of input", caption, columns, rows)


def _make_context_cell(metric: str, result: LengthSummary | None) -> Cell:
    if result is None:
        return Cell(number_format.MISSING_VALUE)
    if result.error:
        return Cell("cannot", result.error)
    interval_suffix = f" ({number_format.format_score_interval(metric, result.interval)})" if result.interval else ""
    return Cell(
        (number_format.format_score(metric, result.value) + interval_suffix).replace(" ", number_format.NO_BREAK_SPACE),
        result.value,
    )


def build_context_cost_table(findings: Findings) -> Table:
    """Build the table of time and memory of the layers by context length."""
    costs_by_variant = {name: summary.costs for name, summary in findings.length_generalization.items()}
    lengths = list(dict.fromkeys(row.context for rows in costs_by_variant.values() for row in rows))
    columns = make_text_columns("variant") + make_numeric_columns({str(n): f"{n} tokens" for n in lengths})
    rows = []
    for name, costs in costs_by_variant.items():
        cost_by_length = {row.context: row for row in costs}
        if cost_by_length:
            rows.append([name, *(_make_context_cost_cell(cost_by_length.get(length)) for length in lengths)])
    caption = (
        "Time of the layers forward and backward for 1,000 tokens, and memory kept for each token, in rows of this "
        "length. The vocabulary layer is left out: it costs the same at every length."
    )
    return make_table("costs", "What longer inputs cost", caption, columns, rows)


def _make_context_cost_cell(cost: LengthCost | None) -> Cell:
    if cost is None:
        return Cell(number_format.MISSING_VALUE)
    seconds, num_bytes = cost.seconds_per_1000_tokens, cost.bytes_per_token
    return Cell(
        f"{number_format.format_seconds(seconds)}, {number_format.format_bytes(num_bytes)}", [seconds, num_bytes]
    )


def build_simple_baselines_table(findings: Findings) -> Table:
    """Build the table of count-based baselines that a trained classifier should beat."""
    accuracies = findings.corpus.count_baselines if findings.corpus else {}
    splits = list(dict.fromkeys(name for by_split in accuracies.values() for name in by_split))
    columns = make_text_columns(method="without any training") + make_numeric_columns(*splits)
    rows = []
    for name, by_split in accuracies.items():
        scores = [by_split.get(split) for split in splits]
        rows.append([name, *(Cell(number_format.format_score("accuracy", score), score) for score in scores)])
    caption = (
        "Accuracy of looking a text up in train (the commonest class if it is not there) and of naive Bayes over the "
        "same tokens (over words, where a model brings pieces of words), its smoothing chosen by leaving one training "
        "row out at a time."
    )
    return make_table("simple", "What a count can do", caption, columns, rows)


def build_attribution_table(findings: Findings) -> Table:
    """Build the table of lines by label, for lines that also occur in a labeled file."""
    counts = findings.corpus.lines_by_label if findings.corpus else {}
    if not any(count for by_label in counts.values() for label, count in by_label.items() if label != "not traced"):
        counts = {}
    labels = list(dict.fromkeys(label for by_label in counts.values() for label in by_label))
    columns = make_text_columns(text="lines of") + make_numeric_columns(*labels)
    rows = [
        [name, *(Cell(_format_count_and_share(by_label, label), by_label.get(label)) for label in labels)]
        for name, by_label in counts.items()
    ]
    caption = (
        "How many lines of each text also stand under which label in the same source’s labelled training file. A text "
        "whose speaker is rare in train is harder to predict."
    )
    return make_table("whose", "Whose words these are", caption, columns, rows)


def _format_count_and_share(counts: dict[str, int], label: str) -> str:
    """Return "count (percentage of the row)"."""
    total = sum(counts.values()) or 1
    return f"{counts.get(label, 0):,} ({number_format.format_percentage(counts.get(label, 0) / total)})"


def build_axis_table(findings: Findings) -> Table:
    """Build the table of results and costs by the numeric setting that the variants differ in."""
    axis = findings.axis
    metric, splits = findings_view.get_metric(findings), findings_view.list_score_splits(findings)
    setting = axis.setting.rpartition(".")[2] if axis else ""
    columns = make_numeric_columns(value=setting) + make_numeric_columns(
        *splits, last_loss="last training loss", seconds_per_step="time a step", parameters="parameters"
    )
    rows = []
    for name, axis_value in sorted((axis.values if axis else {}).items(), key=lambda item: item[1]):
        by_split = findings.scores.get(name, {})
        cells = []
        for split in splits:
            seed_scores = [value for _, value in by_split.get(split, []) if number_format.is_finite_number(value)]
            mean = average_over_seeds(metric, seed_scores) if seed_scores else None
            cells.append(Cell(number_format.format_score(metric, mean), mean))
        last_loss = axis.last_loss.get(name) if axis else None
        mean_loss, interval = (last_loss.mean, last_loss.interval) if last_loss else (None, None)
        seconds, parameters = _get_variant_cost(findings, name)
        rows.append(
            [
                Cell(f"{axis_value:g}", axis_value),
                *cells,
                Cell(_format_score_with_interval("loss", mean_loss, interval), mean_loss),
                Cell(number_format.format_seconds(seconds), seconds),
                Cell(number_format.format_count(parameters), parameters),
            ]
        )
    return make_table("axis", f"Against {setting}", f"Means over seeds, by {setting}.", columns, rows)


def _format_score_with_interval(metric: str, value: Any, interval: Any) -> str:
    return number_format.format_score(metric, value) + (
        f" ({number_format.format_score_interval(metric, interval)})" if interval else ""
    )


def _get_variant_cost(findings: Findings, variant: str) -> tuple[float | None, float | None]:
    """Return seconds per step and number of parameters of a variant. Each pair lists the baseline first."""
    pairs = findings.pairing
    side, pair = (1, pairs[variant]) if variant in pairs else (0, next(iter(pairs.values()), None))
    if pair is None:
        return None, None
    costs = (pair.seconds_per_step, pair.parameters)
    seconds, parameters = (cost[side] if cost else None for cost in costs)
    return seconds, parameters
