"""What each head does, over seeds, in the experiment's report: a table, and a long one for programs.

A head has no name that outlives its seed: head 1 of one seed and head 1 of another are two draws of the same kind. What
the seeds of a variant share is the layer; between variants, a head with the same seed began alike.
"""

from __future__ import annotations

from typing import Any

from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, table, words
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings

Row = dict[str, Any]

MEASURES = {
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


def heads(findings: Findings) -> Table:
    """A row for each head of each variant: means over seeds and half their 95 % interval."""
    found = variants(findings)
    names = known(found)
    columns = [Column("variant", "variant"), Column("head", "layer.head")]
    columns += [Column(name, MEASURES[name][0], True) for name in names]
    columns += [Column("copies", "copies"), Column("idle", "does nothing")]
    rows = [
        [
            words(variant),
            words(f"{row['layer']}.{row['head']}"),
            *(cell(name, row.get(name)) for name in names),
            _seeds(row, "copies"),
            _seeds(row, "idle"),
        ]
        for variant, own in found.items()
        for row in own
    ]
    return table("heads", "What each head does", caption(findings), columns, rows)


def caption(findings: Findings) -> str:
    about = findings.get("attention") or {}
    return f"Means over seeds ± half the 95 % t interval, on {about['rows']} rows of {about['split']}." if about else ""


def heads_long(findings: Findings) -> Table:
    """A row for each figure, as programs like it."""
    plain = ("variant", "layer", "head", "measure", "seeds")
    columns = [*(Column(name, name) for name in plain), Column("mean", "mean", True), Column("interval", "", True)]
    rows = []
    for variant, own in variants(findings).items():
        for row in own:
            for name in (*MEASURES, "control"):
                if figure := row.get(name):
                    place = (variant, row["layer"], row["head"], name, row["seeds"])
                    rows.append([*map(words, place), Cell("", figure["mean"]), Cell("", figure["interval"])])
    return table("heads", "What each head does", "", columns, rows)


def variants(findings: Findings) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = (findings.get("attention") or {}).get("variants") or {}
    return {name: found[name] for name in findings_view.names(findings) if name in found}


def known(found: dict[str, list[Row]]) -> list[str]:
    """The measures that say something: padding is left out where there is no weight on any."""
    rows = [row for own in found.values() for row in own]
    names = [name for name in MEASURES if any(row.get(name) for row in rows)]
    return [name for name in names if name != "padding" or any(row["padding"]["mean"] > 0 for row in rows)]


def cell(name: str, figure: dict[str, Any] | None) -> Cell:
    if not figure:
        return Cell(number_format.UNKNOWN)
    _, scale, places = MEASURES[name]
    text = f"{scale * figure['mean']:.{places}f}"
    text = text.removeprefix("-") if not text.strip("-0.") else text.replace("-", number_format.MINUS)
    if figure["interval"]:
        low, high = figure["interval"]
        text += f"{number_format.SPACE}±{number_format.SPACE}{scale * (high - low) / 2:.{places}f}"
    return Cell(text, figure["mean"])


def _seeds(row: Row, word: str) -> Cell:
    """With how many of the seeds."""
    count = row.get(word)
    if count is None:
        return Cell(number_format.UNKNOWN)
    return Cell(f"{count} of {row['seeds']} seeds" if count else "no", count)
