"""Tables of a search: its points in rank order, and the effect of each setting."""

from __future__ import annotations

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_table, make_text_cell
from headtohead.search import phrasing

STATUS_LABELS = {
    "finished": "all seeds",
    "pruned": "pruned",
    "failed": "failed",
    "unfinished": "unfinished",
}


def build_search_points_table(findings: Findings) -> Table:
    """Build a table with one row per point: settings, score, interval, seeds and outcome."""
    metric, search = findings_view.get_metric(findings), findings.search
    if search is None:
        return make_table("search", "The search", "", [], [])
    names = phrasing.shorten_setting_names(list(search.space))
    columns = [
        Column("point", "point"),
        *(Column(setting, name, True) for setting, name in names.items()),
        Column("mean", f"{metric} on validation", True),
        Column("interval", "95 % interval", True, is_optional=True),
        Column("seeds", "seeds", True),
        Column("status", "outcome"),
    ]
    rows = []
    for point in phrasing.rank_points(search, metric):
        message = f": {point.message}" if point.message else ""
        outcome = "winner" if point.point == search.winner else STATUS_LABELS[point.status] + message
        rows.append(
            [
                make_text_cell(point.name),
                *(
                    Cell(number_format.format_setting(point.settings[setting]), point.settings[setting])
                    for setting in names
                ),
                Cell(number_format.format_score(metric, point.mean), point.mean),
                Cell(number_format.format_score_interval(metric, point.interval), point.interval),
                Cell(str(len(point.scores)), len(point.scores)),
                Cell(outcome, point.status),
            ]
        )
    caption = "Points of the search in rank order. Selection uses validation data only; no test data was scored."
    return make_table("search", "The search", caption, columns, rows)


def build_search_effects_table(findings: Findings) -> Table:
    """Build a table with one row per value of each setting."""
    metric, search = findings_view.get_metric(findings), findings.search
    columns = [
        Column("setting", "setting"),
        Column("value", "value", True),
        Column("points", "points", True),
        Column("mean", f"{metric} on validation", True),
        Column("interval", "95 % interval", True),
    ]
    rows = [
        [
            make_text_cell(setting),
            make_text_cell(effect.value),
            Cell(str(effect.points), effect.points),
            Cell(number_format.format_score(metric, effect.mean), effect.mean),
            Cell(number_format.format_score_interval(metric, effect.interval), effect.interval),
        ]
        for setting, effects in (search.effects if search else {}).items()
        for effect in effects
    ]
    caption = "Expected score of each value, averaged evenly over the values of the other settings."
    return make_table("search_effects", "Effect of each setting", caption, columns, rows)
