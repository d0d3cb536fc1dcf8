"""Section on length generalization: scores and costs at context lengths other than the training length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, LengthCost, LengthSummary
from headtohead.presentation import number_format
from headtohead.presentation.section import Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.context import ReportContext

LengthT = TypeVar("LengthT", bound=LengthSummary | LengthCost)


def build_context_length_section(context: ReportContext) -> Section | None:
    """Return the section on length generalization: scores and costs at other context lengths than in training."""
    tables = build_context_length_table(context.findings), build_context_cost_table(context.findings)
    blocks = make_table_blocks(*tables)
    return Section("lengths", "Other context lengths", blocks, "Context lengths") if blocks else None


def build_context_length_table(findings: Findings) -> Table:
    """Return the table of length generalization: scores by context length, or a note if a length is not supported."""
    metric = findings_view.get_metric(findings)
    training_length = findings.experiment.model.context if findings.experiment else None
    joining_note = " Rows of one class are joined to texts of that length." if metric == "accuracy" else ""
    caption = (
        f"{metric.capitalize()} on all held-out text in blocks of this length, with the 95 % interval over three or "
        f"more seeds; trained at {training_length}.{joining_note}"
    )
    results = {name: summary.contexts for name, summary in findings.length_generalization.items()}
    return _build_length_table(
        "contexts", "Other context lengths", caption, results, partial(_make_context_score_cell, metric)
    )


def _make_context_score_cell(metric: str, result: LengthSummary) -> Cell:
    """Return the score at a context length with its interval, or a note if the model does not support the length."""
    if result.error:
        return Cell("not supported", result.error)
    text = number_format.format_score_with_interval(metric, result.value, result.interval)
    return Cell(text.replace(" ", number_format.NO_BREAK_SPACE), result.value)


def build_context_cost_table(findings: Findings) -> Table:
    """Return the table of costs of length generalization: the layers' time and memory by context length."""
    caption = (
        "Forward and backward time of the layers per 1,000 tokens, and memory kept per token, in rows of this length. "
        "The output layer is excluded: its cost does not depend on the length."
    )
    costs = {name: summary.costs for name, summary in findings.length_generalization.items()}
    return _build_length_table("costs", "Cost by context length", caption, costs, _make_context_cost_cell)


def _make_context_cost_cell(cost: LengthCost) -> Cell:
    """Return the time and memory at a context length."""
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
    """Return a table of length generalization: a row per variant that has results, a column per context length."""
    lengths = list(dict.fromkeys(result.context for results in results_by_variant.values() for result in results))
    columns = make_text_columns("variant") + make_numeric_columns({str(n): f"{n} tokens" for n in lengths})
    rows = []
    for variant, results in results_by_variant.items():
        if cells := {result.context: make_cell(result) for result in results}:
            rows.append([variant, *map(cells.get, lengths)])
    return make_table(name, title, caption, columns, rows)
