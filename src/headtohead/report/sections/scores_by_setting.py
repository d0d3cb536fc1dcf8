"""Section on scores and costs by the numeric setting that differs between variants (`axis`)."""

from __future__ import annotations

from functools import partial
from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.experiment.seed_average import average_over_seeds
from headtohead.presentation import number_format
from headtohead.presentation.section import Block, Figure, Section, make_table_blocks
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table
from headtohead.report.charts.scores_by_setting import build_axis_chart
from headtohead.report.context import ReportContext


def build_axis_section(context: ReportContext) -> Section | None:
    """Return the section with scores and costs by the numeric setting (`axis`) that differs between variants."""
    blocks: list[Block] = make_table_blocks(build_axis_table(context.findings))
    if not blocks:
        return None
    if (chart := build_axis_chart(context.findings)) is not None:
        caption = f"{chart.title}. Line: mean over seeds; band: lowest to highest seed."
        blocks.insert(0, Figure(chart, caption))
    axis = context.findings.axis
    title = f"By {axis.setting.rpartition('.')[2] if axis else ''}"
    return Section("axis", title, blocks, title)


def build_axis_table(findings: Findings) -> Table:
    """Return one row per value of the setting (`axis`) that differs between variants, with scores and costs."""
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
        loss_text = number_format.format_score_with_interval("loss", mean_loss, interval)
        rows.append([*row, Cell(loss_text, mean_loss), *_get_axis_row_costs(findings, name)])
    return make_table("axis", f"By {setting}", f"Means over seeds, by {setting}.", columns, rows)


def _get_axis_row_costs(findings: Findings, variant: str) -> tuple[float | None, float | None]:
    """Return the costs in a variant's row of the table by setting: seconds per step, and parameters."""
    pairs = findings.pairing
    pair = pairs[variant] if variant in pairs else next(iter(pairs.values()), None)
    if pair is None:
        return None, None
    index = 1 if variant in pairs else 0  # each cost is (that of the baseline, that of the variant)
    seconds = pair.seconds_per_step[index] if pair.seconds_per_step else None
    parameters = pair.parameters[index] if pair.parameters else None
    return seconds, parameters
