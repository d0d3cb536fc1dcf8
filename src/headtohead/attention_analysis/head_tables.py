"""Tables of head metrics over seeds for the report.

Heads have no identity across seeds: head 1 of one seed and head 1 of another are independent draws. Seeds of a variant
share only the layer; variants with the same seed start with equal heads.
"""

from __future__ import annotations

from dataclasses import replace

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, HeadSummary, SeedEstimate
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Table, make_numeric_columns, make_table, make_text_columns

MEASURE_FORMATS = {
    "entropy": ("entropy, bits", 1, 2),
    "distance": ("distance, tokens", 1, 2),
    "first": ("on first token, %", 100, 1),
    "itself": ("on itself, %", 100, 1),
    "previous": ("on previous token, %", 100, 1),
    "padding": ("on padding, %", 100, 1),
    "induction": ("induction, %", 100, 1),
    "rise": ("loss increase, nats", 1, 3),
}
"""metric: title, scale, decimals"""


def build_heads_table(findings: Findings) -> Table:
    """Return one row per variant and head: means over seeds and half the 95 % interval."""
    heads_by_variant = get_heads_by_variant(findings)
    names = select_measures(heads_by_variant)
    columns = make_text_columns(variant="variant", head="layer.head")
    columns += make_numeric_columns(**{name: MEASURE_FORMATS[name][0] for name in names})
    columns += make_text_columns("copies", "idle")
    rows = [
        [
            variant,
            f"{row.layer}.{row.head}",
            *(build_measure_cell(name, row.measures.get(name)) for name in names),
            _build_seed_count_cell(row.copies, row.seeds),
            _build_seed_count_cell(row.idle, row.seeds),
        ]
        for variant, heads in heads_by_variant.items()
        for row in heads
    ]
    table = make_table("heads", "Attention heads", format_caption(findings), columns, rows)
    return replace(table, long_form=build_long_heads_table(findings))


def format_caption(findings: Findings) -> str:
    attention = findings.attention
    if attention is None:
        return ""
    return f"Means over seeds ± half the 95 % t interval, on {attention.rows} rows of {attention.split}."


def build_long_heads_table(findings: Findings) -> Table:
    """Return one row per figure, for CSV."""
    columns = make_text_columns("variant", "layer", "head", "measure", "seeds")
    columns += make_numeric_columns(mean="mean", interval="")
    rows = []
    for variant, heads in get_heads_by_variant(findings).items():
        for row in heads:
            for name in (*MEASURE_FORMATS, "control"):
                if estimate := row.measures.get(name):
                    numbers = Cell("", estimate.mean), Cell("", estimate.interval)
                    rows.append([variant, row.layer, row.head, name, row.seeds, *numbers])
    return make_table("heads", "Attention heads", "", columns, rows)


def get_heads_by_variant(findings: Findings) -> dict[str, list[HeadSummary]]:
    heads_by_variant = findings.attention.variants if findings.attention else {}
    return {
        name: heads_by_variant[name] for name in findings_view.list_variant_names(findings) if name in heads_by_variant
    }


def select_measures(heads_by_variant: dict[str, list[HeadSummary]]) -> list[str]:
    """Return the metrics with values; padding only if some head puts weight on it."""
    rows = [row for heads in heads_by_variant.values() for row in heads]
    names = [name for name in MEASURE_FORMATS if any(row.measures.get(name) for row in rows)]
    return [name for name in names if name != "padding" or any(_has_padding_weight(row) for row in rows)]


def _has_padding_weight(head: HeadSummary) -> bool:
    estimate = head.measures.get("padding")
    return estimate is not None and (estimate.mean or 0) > 0


def build_measure_cell(measure: str, estimate: SeedEstimate | None) -> Cell:
    if estimate is None or estimate.mean is None:
        return Cell(number_format.MISSING_VALUE)
    _, scale, places = MEASURE_FORMATS[measure]
    text = number_format.format_fixed(scale * estimate.mean, places)
    if estimate.interval:
        low, high = estimate.interval
        text += f"{number_format.NO_BREAK_SPACE}±{number_format.NO_BREAK_SPACE}{scale * (high - low) / 2:.{places}f}"
    return Cell(text, estimate.mean)


def _build_seed_count_cell(count: int | None, seeds: int) -> Cell:
    """Return "2 of 3 seeds"."""
    if count is None:
        return Cell(number_format.MISSING_VALUE)
    return Cell(f"{count} of {seeds} seeds" if count else "no", count)
