"""Figures that others published, beside ours: what a recipe that repeats an experiment is held against."""

from __future__ import annotations

from dataclasses import replace

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, PublishedComparison
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell


def build_published_table(findings: Findings) -> Table:
    """A row for each source, a column for each text; ours stand above those that they are compared with."""
    found = findings.published
    texts = list(dict.fromkeys((row.split, row.metric) for row in found))
    metrics = {metric for _, metric in texts}
    titles = [split if len(metrics) == 1 else f"{split}, {metric}" for split, metric in texts]
    columns = [Column("source", "source"), *(Column(title, title, True) for title in titles), Column("note", "note")]
    rows: list[list[Cell]] = []
    for variant, step in dict.fromkeys((row.variant, row.step) for row in found):
        own = [row for row in found if (row.variant, row.step) == (variant, step)]
        at = "" if step is None else f" at step {step:,}" if isinstance(step, int) else f" after {step}"
        cells = [_make_our_cell(next((row for row in own if (row.split, row.metric) == text), None)) for text in texts]
        rows.append([make_text_cell(f"ours, {variant}{at}"), *cells, make_text_cell("")])
        for source, note in dict.fromkeys((row.source, _format_note(row)) for row in own):
            same = [row for row in own if (row.source, _format_note(row)) == (source, note)]
            cells = [
                _make_published_cell(next((row for row in same if (row.split, row.metric) == text), None))
                for text in texts
            ]
            rows.append([make_text_cell(f"{source}, {variant}{at}"), *cells, make_text_cell(note)])
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    caption = "Ours: mean over seeds with its 95 % interval. Theirs: the published value and its difference to ours."
    table = make_table("published", "Published results", caption, columns, rows)
    return replace(table, long_form=build_long_published_table(findings))


def _make_our_cell(row: PublishedComparison | None) -> Cell:
    if row is None or not number_format.is_finite_number(row.ours):
        return Cell(number_format.MISSING_VALUE)
    ends = (
        f" ({_join_with_no_break_spaces(number_format.format_score_interval(row.metric, row.interval))})"
        if row.interval
        else ""
    )
    return Cell(number_format.format_score(row.metric, row.ours) + ends, row.ours)


def _make_published_cell(row: PublishedComparison | None) -> Cell:
    if row is None:
        return Cell("")
    gap = _compute_difference_to_ours(row)
    against = "" if gap is None else f" ({_join_with_no_break_spaces(number_format.format_effect(row.metric, gap))})"
    return Cell(number_format.format_score(row.metric, row.value) + against, row.value)


def _join_with_no_break_spaces(text: str) -> str:
    """On one line; it may stand on the next, but not be broken."""
    return text.replace(" ", number_format.NO_BREAK_SPACE)


def _compute_difference_to_ours(row: PublishedComparison) -> float | None:
    """Theirs against ours, unless theirs is on other data."""
    ours = row.ours
    comparable = number_format.is_finite_number(ours) and not row.other_data
    return findings_view.compute_effect(row.metric, float(ours), row.value) if comparable and ours else None


def _format_note(row: PublishedComparison) -> str:
    said = ["other data: not compared"] if row.other_data else []
    return "; ".join([*said, *([row.note] if row.note else [])])


def build_long_published_table(findings: Findings) -> Table:
    names = ("source", "variant", "split", "metric", "step")
    more = ("published", "ours", "interval", "difference")
    columns = [*(Column(name, name) for name in names), *(Column(name, name, True) for name in more)]
    rows = []
    for row in findings.published:
        figure = [Cell("", value) for value in (row.value, row.ours, row.interval, _compute_difference_to_ours(row))]
        rows.append(
            [*(make_text_cell(getattr(row, name)) for name in names), *figure, make_text_cell(_format_note(row))]
        )
    return make_table("published", "Published results", "", [*columns, Column("note", "note")], rows)
