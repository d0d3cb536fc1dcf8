"""The tables of a search: its cells, the best first, and each setting's effect."""

from __future__ import annotations

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell
from headtohead.search import phrasing

STATUS_LABELS = {
    "finished": "all seeds",
    "pruned": "given up early",
    "failed": "failed",
    "unfinished": "unfinished",
}


def build_search_points_table(findings: Findings) -> Table:
    """Every cell with its figures."""
    metric, search = findings_view.get_metric(findings), findings.search
    if search is None:
        return make_table("search", "The search", "", [], [])
    names = phrasing.shorten_setting_names(list(search.space))
    columns = [
        Column("cell", "cell"),
        *(Column(setting, name, True) for setting, name in names.items()),
        Column("mean", f"{metric} on validation", True),
        Column("interval", "95 % interval", True, is_optional=True),
        Column("seeds", "seeds", True),
        Column("status", "ended"),
    ]
    rows = []
    for cell in phrasing.rank_points(search, metric):
        won = cell.point == search.winner
        ended = "winner" if won else STATUS_LABELS[cell.status] + (f": {cell.message}" if cell.message else "")
        rows.append(
            [
                make_text_cell(cell.name),
                *(
                    Cell(number_format.format_setting(cell.settings[setting]), cell.settings[setting])
                    for setting in names
                ),
                Cell(number_format.format_score(metric, cell.mean), cell.mean),
                Cell(number_format.format_score_interval(metric, cell.interval), cell.interval),
                Cell(str(len(cell.scores)), len(cell.scores)),
                Cell(ended, cell.status),
            ]
        )
    caption = "The cells of the search, the best first. Chosen on validation data; no test text was scored."
    return make_table("search", "The search", caption, columns, rows)


def build_search_effects_table(findings: Findings) -> Table:
    metric, search = findings_view.get_metric(findings), findings.search
    columns = [
        Column("setting", "setting"),
        Column("value", "value", True),
        Column("cells", "cells", True),
        Column("mean", f"{metric} on validation", True),
        Column("interval", "95 % interval", True),
    ]
    rows = [
        [
            make_text_cell(setting),
            make_text_cell(row.value),
            Cell(str(row.points), row.points),
            Cell(number_format.format_score(metric, row.mean), row.mean),
            Cell(number_format.format_score_interval(metric, row.interval), row.interval),
        ]
        for setting, found in (search.effects if search else {}).items()
        for row in found
    ]
    caption = "What each value gives where the other settings take each of theirs equally often."
    return make_table("search_effects", "Each setting’s effect", caption, columns, rows)
