"""Tables of a recipe that repeats an experiment: claims answered, other lengths of input, what a count can do."""

from __future__ import annotations

from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import ClaimResult, Findings, LengthCost, LengthSummary
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell

ANSWER_SYMBOLS = {"holds": "✓", "does not hold": "✗", "cannot tell": "?"}


def build_claims_table(findings: Findings) -> Table:
    """Each claim with its answer, the figure behind it and the reason."""
    metric = findings_view.get_metric(findings)
    columns = [
        Column("source", "report"),
        Column("says", "it says that"),
        Column("answer", "here, that"),
        Column("effect", "change", True),
        Column("interval", "95 % interval", True),
        Column("why", "because"),
    ]
    rows = []
    for one in findings.claims:
        places = number_format.choose_decimals(metric, one.interval)
        rows.append(
            [
                make_text_cell(one.source),
                make_text_cell(one.says),
                Cell(f"{ANSWER_SYMBOLS[one.answer]} {one.answer}", one.answer),
                Cell(number_format.format_effect(metric, one.effect, places), one.effect),
                Cell(number_format.format_effect_interval(metric, one.interval, places), one.interval),
                make_text_cell(_format_claim_reason(one, metric)),
            ]
        )
    caption = (
        "A claim holds if the verdict is the one that it asks for, and does not hold if it is another one; where there "
        "is none, nobody can tell from these runs."
    )
    return make_table("claims", "Claims, answered", caption, columns, rows)


def _format_claim_reason(claim: ClaimResult, metric: str) -> str:
    said = {
        None: claim.summary or "",
        "helped": "the variant is better",
        "hurt": "the variant is worse",
        "no practical difference": "the difference is too small to matter",
        "cannot tell": "the noise of seeds and text is larger than the difference",
    }.get(claim.outcome, str(claim.outcome))
    where = [f"on {claim.split}" if claim.split else ""]
    where.append(f"at {'step ' if isinstance(claim.step, int) else ''}{claim.step}" if claim.step else "")
    where.append(f"inputs of {claim.context} against those of training" if claim.context else "")
    place = " ".join(part for part in where if part)
    why = f" {claim.why}" if claim.why and claim.answer != "cannot tell" else ""
    return f"{said[:1].upper()}{said[1:]}{f' ({place})' if place else ''}.{why}"


def build_context_length_table(findings: Findings) -> Table:
    """How the trained models do on other lengths of input; a model that cannot go there says so."""
    metric = findings_view.get_metric(findings)
    found = {name: one.contexts for name, one in findings.length_generalization.items()}
    lengths = list(dict.fromkeys(row.context for rows in found.values() for row in rows))
    columns = [Column("variant", "variant"), *(Column(str(at), f"{at} tokens", True) for at in lengths)]
    rows = []
    for name, by_length in found.items():
        if by_length:
            at = {row.context: row for row in by_length}
            rows.append([make_text_cell(name), *(_make_context_cell(metric, at.get(length)) for length in lengths)])
    trained = findings.experiment.model.context if findings.experiment else None
    joined = " Rows of one class are joined to texts of that length." if metric == "accuracy" else ""
    caption = (
        f"{metric.capitalize()} of all held-out text, read in pieces of this length, with the 95 % interval over "
        f"seeds; trained at {trained}.{joined}"
    )
    return make_table("contexts", "On other lengths of input", caption, columns, rows)


def _make_context_cell(metric: str, row: LengthSummary | None) -> Cell:
    if row is None:
        return Cell(number_format.MISSING_VALUE)
    if row.error:
        return Cell("cannot", row.error)
    ends = f" ({number_format.format_score_interval(metric, row.interval)})" if row.interval else ""
    return Cell(
        (number_format.format_score(metric, row.value) + ends).replace(" ", number_format.NO_BREAK_SPACE),
        row.value,
    )


def build_context_cost_table(findings: Findings) -> Table:
    """Time and memory of the layers at other lengths of input."""
    found = {name: one.costs for name, one in findings.length_generalization.items()}
    lengths = list(dict.fromkeys(row.context for rows in found.values() for row in rows))
    columns = [Column("variant", "variant"), *(Column(str(at), f"{at} tokens", True) for at in lengths)]
    rows = []
    for name, by_length in found.items():
        at = {row.context: row for row in by_length}
        if at:
            rows.append([make_text_cell(name), *(_make_context_cost_cell(at.get(length)) for length in lengths)])
    caption = (
        "Time of the layers forward and backward for 1,000 tokens, and memory kept for each token, in rows of this "
        "length. The vocabulary layer is left out: it costs the same at every length."
    )
    return make_table("costs", "What longer inputs cost", caption, columns, rows)


def _make_context_cost_cell(row: LengthCost | None) -> Cell:
    if row is None:
        return Cell(number_format.MISSING_VALUE)
    seconds, num_bytes = row.seconds_per_1000_tokens, row.bytes_per_token
    return Cell(
        f"{number_format.format_seconds(seconds)}, {number_format.format_bytes(num_bytes)}", [seconds, num_bytes]
    )


def build_simple_baselines_table(findings: Findings) -> Table:
    """What a count can do, which a trained classifier has to beat."""
    found = findings.corpus.count_baselines if findings.corpus else {}
    texts = list(dict.fromkeys(name for row in found.values() for name in row))
    columns = [Column("method", "without any training"), *(Column(name, name, True) for name in texts)]
    rows = [
        [
            make_text_cell(name),
            *(Cell(number_format.format_score("accuracy", row.get(text)), row.get(text)) for text in texts),
        ]
        for name, row in found.items()
    ]
    caption = (
        "Accuracy of looking a text up in train (the commonest class if it is not there) and of naive Bayes over the "
        "same tokens (over words, where a model brings pieces of words), its smoothing chosen by leaving one training "
        "row out at a time."
    )
    return make_table("simple", "What a count can do", caption, columns, rows)


def build_attribution_table(findings: Findings) -> Table:
    """Whose words the texts are, where their lines also stand in a file with labels."""
    found = findings.corpus.lines_by_label if findings.corpus else {}
    if not any(number for row in found.values() for label, number in row.items() if label != "not traced"):
        found = {}
    labels = list(dict.fromkeys(label for row in found.values() for label in row))
    columns = [Column("text", "lines of"), *(Column(label, label, True) for label in labels)]
    rows = [
        [make_text_cell(name), *(Cell(_format_count_and_share(row, label), row.get(label)) for label in labels)]
        for name, row in found.items()
    ]
    caption = (
        "How many lines of each text also stand under which label in the same source’s labelled training file. A text "
        "whose speaker is rare in train is harder to predict."
    )
    return make_table("whose", "Whose words these are", caption, columns, rows)


def _format_count_and_share(row: dict[str, int], label: str) -> str:
    total = sum(row.values()) or 1
    return f"{row.get(label, 0):,} ({number_format.format_percentage(row.get(label, 0) / total)})"


def build_axis_table(findings: Findings) -> Table:
    """Results and costs against the number that the variants differ in."""
    axis = findings.axis
    metric, splits = findings_view.get_metric(findings), findings_view.list_score_splits(findings)
    setting = axis.setting.rpartition(".")[2] if axis else ""
    columns = [
        Column("value", setting, True),
        *(Column(split, split, True) for split in splits),
        Column("last_loss", "last training loss", True),
        Column("seconds_per_step", "time a step", True),
        Column("parameters", "parameters", True),
    ]
    rows = []
    for name, at in sorted((axis.values if axis else {}).items(), key=lambda item: item[1]):
        by_split = findings.scores.get(name, {})
        cells = []
        for split in splits:
            known = [value for _, value in by_split.get(split, []) if number_format.is_finite_number(value)]
            mean = average_over_seeds(metric, known) if known else None
            cells.append(Cell(number_format.format_score(metric, mean), mean))
        last = axis.last_loss.get(name) if axis else None
        mean_loss, interval = (last.mean, last.interval) if last else (None, None)
        seconds, parameters = _get_variant_cost(findings, name)
        rows.append(
            [
                Cell(f"{at:g}", at),
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
    """Return a variant's seconds per step and parameters; the baseline's come first in any pair."""
    pairs = findings.pairing
    side, pair = (1, pairs[variant]) if variant in pairs else (0, next(iter(pairs.values()), None))
    if pair is None:
        return None, None
    costs = (pair.seconds_per_step, pair.parameters)
    seconds, parameters = (cost[side] if cost else None for cost in costs)
    return seconds, parameters
