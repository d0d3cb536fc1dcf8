"""The tables of a search: its cells, the best first, and each setting's effect."""

from __future__ import annotations

from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, table, words
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings
from headtohead.search import phrasing

FATES = {
    "finished": "all seeds",
    "pruned": "given up early",
    "failed": "failed",
    "unfinished": "unfinished",
}


def search_cells(findings: Findings) -> Table:
    """Every cell with its figures."""
    metric, search = findings_view.metric(findings), phrasing.found(findings)
    if search is None:
        return table("search", "The search", "", [], [])
    names = phrasing.short_names(list(search["space"]))
    columns = [
        Column("cell", "cell"),
        *(Column(setting, name, True) for setting, name in names.items()),
        Column("mean", f"{metric} on validation", True),
        Column("interval", "95 % interval", True),
        Column("seeds", "seeds", True),
        Column("status", "ended"),
    ]
    rows = []
    for cell in phrasing.ranked(search, metric):
        won = cell["cell"] == search["winner"]
        ended = "winner" if won else FATES[cell["status"]] + (f": {cell['message']}" if cell["message"] else "")
        rows.append(
            [
                words(cell["name"]),
                *(Cell(number_format.plain(cell["settings"][setting]), cell["settings"][setting]) for setting in names),
                Cell(number_format.value(metric, cell["mean"]), cell["mean"]),
                Cell(number_format.span(metric, cell["interval"]), cell["interval"]),
                Cell(str(len(cell["values"])), len(cell["values"])),
                Cell(ended, cell["status"]),
            ]
        )
    caption = "The cells of the search, the best first. Chosen on validation data; no test text was scored."
    return table("search", "The search", caption, columns, rows)


def search_effects(findings: Findings) -> Table:
    metric, search = findings_view.metric(findings), phrasing.found(findings) or {}
    columns = [
        Column("setting", "setting"),
        Column("value", "value", True),
        Column("cells", "cells", True),
        Column("mean", f"{metric} on validation", True),
        Column("interval", "95 % interval", True),
    ]
    rows = [
        [
            words(setting),
            words(row["value"]),
            Cell(str(row["cells"]), row["cells"]),
            Cell(number_format.value(metric, row["mean"]), row["mean"]),
            Cell(number_format.span(metric, row["interval"]), row["interval"]),
        ]
        for setting, found in (search.get("effects") or {}).items()
        for row in found
    ]
    caption = "What each value gives where the other settings take each of theirs equally often."
    return table("search_effects", "Each setting’s effect", caption, columns, rows)
