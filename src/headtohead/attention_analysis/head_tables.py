"""Tables of head metrics for one text, and across seeds for the report.

Heads have no identity across seeds: head 1 under two different seeds is two independent draws. A variant's seeds share
only the layer; variants with the same seed start with equal heads.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, HeadMeasures, HeadSummary, SeedEstimate
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns

MEASURES = {
    "entropy": ("entropy", "bits", 2),
    "distance": ("distance", "tokens", 2),
    "first": ("on first token", "%", 1),
    "itself": ("on itself", "%", 1),
    "previous": ("on previous token", "%", 1),
    "padding": ("on padding", "%", 1),
    "induction": ("induction", "%", 1),
    "control": ("control", "%", 1),
    "rise": ("loss increase", "nats", 3),
}
"""metric: title, unit, decimals"""


def get_title(measure: str) -> str:
    """Return a metric's title with its unit."""
    title, unit, _ = MEASURES[measure]
    return f"{title}, {unit}"


def get_scale(measure: str) -> int:
    """Return the factor by which values are multiplied for display."""
    return 100 if MEASURES[measure][1] == "%" else 1


def format_measure(measure: str, value: float | None) -> str:
    """Format a metric without its unit."""
    return number_format.format_fixed(value and get_scale(measure) * value, MEASURES[measure][2])


def _make_measure_columns(measures: Sequence[str]) -> list[Column]:
    return make_numeric_columns({name: get_title(name) for name in measures})


def build_measures_table(name: str, heads: Sequence[HeadMeasures], *, by_layer: bool = False) -> Table:
    """Return every head's metrics for one text, or their means over each layer's heads."""
    measures = [name for name in MEASURES if any(getattr(head, name) is not None for head in heads)]
    if not any(head.padding for head in heads):
        measures = [name for name in measures if name != "padding"]
    groups: dict[tuple[int, ...], list[HeadMeasures]] = {}
    for head in heads:
        groups.setdefault((head.layer,) if by_layer else (head.layer, head.head), []).append(head)
    rows = []
    for numbers, group in groups.items():
        cells = [Cell(".".join(map(str, numbers)), numbers)]
        for measure in measures:
            values = [value for head in group if (value := getattr(head, measure)) is not None]
            mean = statistics.fmean(values) if values else None
            cells.append(Cell(format_measure(measure, mean), mean))
        rows.append(cells)
    caption = f"Means over the heads of each layer; --json prints all {len(heads)}." if by_layer else ""
    columns = [Column("head", "layer" if by_layer else "layer.head"), *_make_measure_columns(measures)]
    return make_table("measures", name, caption, columns, rows)


def build_heads_table(findings: Findings) -> Table:
    """Return one row per variant and head: the means across seeds and the half-width of the 95 % interval."""
    heads_by_variant = get_heads_by_variant(findings)
    names = select_measures(heads_by_variant)
    columns = make_text_columns(variant="variant", head="layer.head") + _make_measure_columns(names)
    columns += make_text_columns("copies", "idle")
    rows = [
        [
            variant,
            f"{row.layer}.{row.head}",
            *(build_measure_cell(name, row.measures.get(name)) for name in names),
            *(_build_seed_count_cell(count, row.seeds) for count in (row.copies, row.idle)),
        ]
        for variant, heads in heads_by_variant.items()
        for row in heads
    ]
    caption = ""
    if attention := findings.attention:
        caption = f"Means over seeds ± half the 95 % t interval, on {attention.rows} rows of {attention.split}."
    table = make_table("heads", "Attention heads", caption, columns, rows)
    return replace(table, long_form=_build_long_heads_table(findings))


def _build_long_heads_table(findings: Findings) -> Table:
    """Return one row per value, for CSV output."""
    columns = make_text_columns("variant", "layer", "head", "measure", "seeds", "mean", "interval")
    rows = [
        [variant, row.layer, row.head, name, row.seeds, estimate.mean, estimate.interval]
        for variant, heads in get_heads_by_variant(findings).items()
        for row in heads
        for name in sorted(MEASURES, key=lambda name: name == "control")
        if (estimate := row.measures.get(name))
    ]
    return make_table("heads", "Attention heads", "", columns, rows)


def get_heads_by_variant(findings: Findings) -> dict[str, list[HeadSummary]]:
    heads_by_variant = findings.attention.variants if findings.attention else {}
    return {
        name: heads_by_variant[name] for name in findings_view.list_variant_names(findings) if name in heads_by_variant
    }


def select_measures(heads_by_variant: dict[str, list[HeadSummary]]) -> list[str]:
    """Return the metrics that have values, except the control; padding only if some head puts weight on it."""
    estimates: dict[str, list[SeedEstimate]] = {}
    for name in MEASURES:
        values = (row.measures.get(name) for heads in heads_by_variant.values() for row in heads)
        estimates[name] = [estimate for estimate in values if estimate is not None]
    has_padding = any((estimate.mean or 0) > 0 for estimate in estimates["padding"])
    omitted = ("control",) if has_padding else ("control", "padding")
    return [name for name, values in estimates.items() if values and name not in omitted]


def build_measure_cell(measure: str, estimate: SeedEstimate | None) -> Cell:
    """Return the table cell for a head metric: its mean across seeds and the half-width of its interval."""
    if estimate is None or estimate.mean is None:
        return Cell(number_format.MISSING_VALUE)
    text = format_measure(measure, estimate.mean)
    if estimate.interval:
        low, high = estimate.interval
        half_width = f"{get_scale(measure) * (high - low) / 2:.{MEASURES[measure][2]}f}"
        text += f"{number_format.NO_BREAK_SPACE}±{number_format.NO_BREAK_SPACE}{half_width}"
    return Cell(text, estimate.mean)


def _build_seed_count_cell(count: int | None, seeds: int) -> Cell:
    """Return "2 of 3 seeds"."""
    if count is None:
        return Cell(number_format.MISSING_VALUE)
    return Cell(f"{count} of {seeds} seeds" if count else "no", count)
