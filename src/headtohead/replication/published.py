"""Tables of published figures beside ours, for recipes that replicate an experiment."""

from __future__ import annotations

from dataclasses import replace

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, PublishedComparison
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell


def build_published_table(findings: Findings) -> Table:
    """Build a table with one row per source and one column per split and metric; our rows precede those compared with
    them.
    """
    comparisons = findings.published
    split_metrics = list(dict.fromkeys((row.split, row.metric) for row in comparisons))
    metrics = {metric for _, metric in split_metrics}
    titles = [split if len(metrics) == 1 else f"{split}, {metric}" for split, metric in split_metrics]
    columns = [Column("source", "source"), *(Column(title, title, True) for title in titles), Column("note", "note")]
    rows: list[list[Cell]] = []
    for variant, step in dict.fromkeys((row.variant, row.step) for row in comparisons):
        group = [row for row in comparisons if (row.variant, row.step) == (variant, step)]
        step_suffix = "" if step is None else f" at step {step:,}" if isinstance(step, int) else f" after {step}"
        cells = [
            _make_our_cell(next((row for row in group if (row.split, row.metric) == split_metric), None))
            for split_metric in split_metrics
        ]
        rows.append([make_text_cell(f"ours, {variant}{step_suffix}"), *cells, make_text_cell("")])
        for source, note in dict.fromkeys((row.source, _format_note(row)) for row in group):
            source_rows = [row for row in group if (row.source, _format_note(row)) == (source, note)]
            cells = [
                _make_published_cell(
                    next((row for row in source_rows if (row.split, row.metric) == split_metric), None)
                )
                for split_metric in split_metrics
            ]
            rows.append([make_text_cell(f"{source}, {variant}{step_suffix}"), *cells, make_text_cell(note)])
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    caption = "Ours: mean over seeds with its 95 % interval. Theirs: the published value and its difference to ours."
    table = make_table("published", "Published results", caption, columns, rows)
    return replace(table, long_form=build_long_published_table(findings))


def _make_our_cell(comparison: PublishedComparison | None) -> Cell:
    """Format our mean over seeds with its interval."""
    if comparison is None or not number_format.is_finite_number(comparison.ours):
        return Cell(number_format.MISSING_VALUE)
    interval_suffix = (
        f" ({_join_with_no_break_spaces(number_format.format_score_interval(comparison.metric, comparison.interval))})"
        if comparison.interval
        else ""
    )
    return Cell(number_format.format_score(comparison.metric, comparison.ours) + interval_suffix, comparison.ours)


def _make_published_cell(comparison: PublishedComparison | None) -> Cell:
    """Format a published value with its difference to ours."""
    if comparison is None:
        return Cell("")
    difference = _compute_difference_to_ours(comparison)
    difference_suffix = (
        ""
        if difference is None
        else f" ({_join_with_no_break_spaces(number_format.format_effect(comparison.metric, difference))})"
    )
    return Cell(number_format.format_score(comparison.metric, comparison.value) + difference_suffix, comparison.value)


def _join_with_no_break_spaces(text: str) -> str:
    """Replace spaces by no-break spaces, so that line wrapping keeps the text together."""
    return text.replace(" ", number_format.NO_BREAK_SPACE)


def _compute_difference_to_ours(comparison: PublishedComparison) -> float | None:
    """Return the effect of the published value relative to ours, or None if it was measured on other data."""
    ours = comparison.ours
    is_comparable = number_format.is_finite_number(ours) and not comparison.other_data
    return (
        findings_view.compute_effect(comparison.metric, float(ours), comparison.value)
        if is_comparable and ours
        else None
    )


def _format_note(comparison: PublishedComparison) -> str:
    warnings = ["other data: not compared"] if comparison.other_data else []
    return "; ".join([*warnings, *([comparison.note] if comparison.note else [])])


def build_long_published_table(findings: Findings) -> Table:
    """Build the long form of the table, with one row per published value."""
    text_columns = ("source", "variant", "split", "metric", "step")
    number_columns = ("published", "ours", "interval", "difference")
    columns = [*(Column(name, name) for name in text_columns), *(Column(name, name, True) for name in number_columns)]
    rows = []
    for comparison in findings.published:
        number_cells = [
            Cell("", value)
            for value in (
                comparison.value,
                comparison.ours,
                comparison.interval,
                _compute_difference_to_ours(comparison),
            )
        ]
        rows.append(
            [
                *(make_text_cell(getattr(comparison, name)) for name in text_columns),
                *number_cells,
                make_text_cell(_format_note(comparison)),
            ]
        )
    return make_table("published", "Published results", "", [*columns, Column("note", "note")], rows)
