"""Sections on scores and costs by context length, and by the numeric setting that differs between variants (`axis`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, LengthCost, LengthSummary
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.section import Block, Figure, Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.report.charts.scores_by_setting import build_axis_chart
from headtohead.report.context import ReportContext

LengthT = TypeVar("LengthT", bound=LengthSummary | LengthCost)


def build_context_length_section(context: ReportContext) -> Section | None:
    """Return the section with scores and costs at context lengths other than the training length."""
    tables = build_context_length_table(context.findings), build_context_cost_table(context.findings)
    blocks = make_table_blocks(*tables)
    return Section("lengths", "Other context lengths", blocks, "Context lengths") if blocks else None


def build_axis_section(context: ReportContext) -> Section | None:
    """Return the section with scores and costs by the numeric setting that differs between variants."""
    blocks: list[Block] = make_table_blocks(build_axis_table(context.findings))
    if not blocks:
        return None
    if (chart := build_axis_chart(context.findings)) is not None:
        caption = f"{chart.title}. Line: mean over seeds; band: lowest to highest seed."
        blocks.insert(0, Figure(chart, caption))
    axis = context.findings.axis
    title = f"By {axis.setting.rpartition('.')[2] if axis else ''}"
    return Section("axis", title, blocks, title)


def build_context_length_table(findings: Findings) -> Table:
    """Return the scores by context length, with a note for lengths that a model does not support."""
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
    text = _format_score_with_interval(metric, result.value, result.interval)
    return Cell(text.replace(" ", number_format.NO_BREAK_SPACE), result.value)


def build_context_cost_table(findings: Findings) -> Table:
    """Return the layers' time and memory by context length."""
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
    """Return a table with a row per variant that has results and a column per context length."""
    lengths = list(dict.fromkeys(result.context for results in results_by_variant.values() for result in results))
    columns = make_text_columns("variant") + make_numeric_columns({str(n): f"{n} tokens" for n in lengths})
    rows = []
    for variant, results in results_by_variant.items():
        if cells := {result.context: make_cell(result) for result in results}:
            rows.append([variant, *map(cells.get, lengths)])
    return make_table(name, title, caption, columns, rows)


def build_axis_table(findings: Findings) -> Table:
    """Return one row per value of the numeric setting that differs between variants, with scores and costs."""
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
        rows.append([*row, Cell(loss_text, mean_loss), *_get_axis_row_costs(findings, name)])
    return make_table("axis", f"By {setting}", f"Means over seeds, by {setting}.", columns, rows)


def _format_score_with_interval(metric: str, value: Any, interval: Any) -> str:
    interval_suffix = f" ({number_format.format_score_interval(metric, interval)})" if interval else ""
    return number_format.format_score(metric, value) + interval_suffix


def _get_axis_row_costs(findings: Findings, variant: str) -> tuple[float | None, float | None]:
    """Return the seconds per step and the parameters in a variant's row of the table by setting."""
    pairs = findings.pairing
    pair = pairs[variant] if variant in pairs else next(iter(pairs.values()), None)
    if pair is None:
        return None, None
    index = 1 if variant in pairs else 0  # each cost is (that of the baseline, that of the variant)
    seconds = pair.seconds_per_step[index] if pair.seconds_per_step else None
    parameters = pair.parameters[index] if pair.parameters else None
    return seconds, parameters
