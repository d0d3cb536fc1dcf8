"""What each head does, over seeds, in the experiment's report: a table, and a long one for programs.

A head has no name that outlives its seed: head 1 of one seed and head 1 of another are two draws of the same kind. What
the seeds of a variant share is the layer; between variants, a head with the same seed began alike.
"""

from __future__ import annotations

from typing import Any

from headtohead.experiment import findings_view
from headtohead.experiment.findings_view import Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell

HeadSummary = dict[str, Any]

MEASURE_FORMATS = {
    "entropy": ("entropy, bits", 1, 2),
    "distance": ("distance, tokens", 1, 2),
    "first": ("on the first, %", 100, 1),
    "itself": ("on itself, %", 100, 1),
    "previous": ("on the one before, %", 100, 1),
    "padding": ("on padding, %", 100, 1),
    "induction": ("copying, %", 100, 1),
    "rise": ("loss rise, nats", 1, 3),
}
"""measure: its title, its scale, and its decimals"""


def build_heads_table(findings: Findings) -> Table:
    """A row for each head of each variant: means over seeds and half their 95 % interval."""
    found = get_heads_by_variant(findings)
    names = select_measures(found)
    columns = [Column("variant", "variant"), Column("head", "layer.head")]
    columns += [Column(name, MEASURE_FORMATS[name][0], True) for name in names]
    columns += [Column("copies", "copies"), Column("idle", "does nothing")]
    rows = [
        [
            make_text_cell(variant),
            make_text_cell(f"{row['layer']}.{row['head']}"),
            *(build_measure_cell(name, row.get(name)) for name in names),
            _build_seed_count_cell(row, "copies"),
            _build_seed_count_cell(row, "idle"),
        ]
        for variant, own in found.items()
        for row in own
    ]
    return make_table("heads", "What each head does", format_caption(findings), columns, rows)


def format_caption(findings: Findings) -> str:
    about = findings.get("attention") or {}
    return f"Means over seeds ± half the 95 % t interval, on {about['rows']} rows of {about['split']}." if about else ""


def build_long_heads_table(findings: Findings) -> Table:
    """A row for each figure, as programs like it."""
    plain = ("variant", "layer", "head", "measure", "seeds")
    columns = [*(Column(name, name) for name in plain), Column("mean", "mean", True), Column("interval", "", True)]
    rows = []
    for variant, own in get_heads_by_variant(findings).items():
        for row in own:
            for name in (*MEASURE_FORMATS, "control"):
                if figure := row.get(name):
                    place = (variant, row["layer"], row["head"], name, row["seeds"])
                    rows.append([*map(make_text_cell, place), Cell("", figure["mean"]), Cell("", figure["interval"])])
    return make_table("heads", "What each head does", "", columns, rows)


def get_heads_by_variant(findings: Findings) -> dict[str, list[HeadSummary]]:
    found: dict[str, list[HeadSummary]] = (findings.get("attention") or {}).get("variants") or {}
    return {name: found[name] for name in findings_view.list_variant_names(findings) if name in found}


def select_measures(heads_by_variant: dict[str, list[HeadSummary]]) -> list[str]:
    """The measures that say something: padding is left out where there is no weight on any."""
    rows = [row for own in heads_by_variant.values() for row in own]
    names = [name for name in MEASURE_FORMATS if any(row.get(name) for row in rows)]
    return [name for name in names if name != "padding" or any(row["padding"]["mean"] > 0 for row in rows)]


def build_measure_cell(measure: str, estimate: dict[str, Any] | None) -> Cell:
    if not estimate:
        return Cell(number_format.MISSING_VALUE)
    _, scale, places = MEASURE_FORMATS[measure]
    text = f"{scale * estimate['mean']:.{places}f}"
    text = text.removeprefix("-") if not text.strip("-0.") else text.replace("-", number_format.MINUS_SIGN)
    if estimate["interval"]:
        low, high = estimate["interval"]
        text += f"{number_format.NO_BREAK_SPACE}±{number_format.NO_BREAK_SPACE}{scale * (high - low) / 2:.{places}f}"
    return Cell(text, estimate["mean"])


def _build_seed_count_cell(row: HeadSummary, flag_name: str) -> Cell:
    """With how many of the seeds."""
    count = row.get(flag_name)
    if count is None:
        return Cell(number_format.MISSING_VALUE)
    return Cell(f"{count} of {row['seeds']} seeds" if count else "no", count)
