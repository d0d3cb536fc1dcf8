"""Tables for a search: its points in rank order, and the effect of each setting."""

from __future__ import annotations

from functools import partial

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.search import phrasing

STATUS_LABELS = {"finished": "all seeds", "pruned": "pruned", "failed": "failed", "unfinished": "unfinished"}


def build_search_points_table(findings: Findings) -> Table:
    """Build a table with one row per point: settings, score, interval, seeds and outcome."""
    metric, search = findings_view.get_metric(findings), findings.search
    if search is None:
        return make_table("search", "The search", "", [], [])
    names = phrasing.shorten_setting_names(list(search.space))
    columns = [
        *make_text_columns("point"),
        *make_numeric_columns(names, format=number_format.format_setting),
        *_make_score_columns(metric),
        *make_numeric_columns("seeds"),
        *make_text_columns(status="outcome"),
    ]
    rows = []
    for point in phrasing.rank_points(search, metric):
        message = f": {point.message}" if point.message else ""
        outcome = "winner" if point.point == search.winner else STATUS_LABELS[point.status] + message
        settings = [point.settings[setting] for setting in names]
        scores = point.mean, point.interval, len(point.scores)
        rows.append([point.name, *settings, *scores, Cell(outcome, point.status)])
    caption = "Points of the search in rank order. Selection uses validation data only; no test data was scored."
    return make_table("search", "The search", caption, columns, rows)


def build_search_effects_table(findings: Findings) -> Table:
    """Build a table with one row per value of each setting."""
    metric, search = findings_view.get_metric(findings), findings.search
    columns = make_text_columns("setting") + make_numeric_columns("value", "points") + _make_score_columns(metric)
    rows = [
        [setting, effect.value, effect.points, effect.mean, effect.interval]
        for setting, effects in (search.effects if search else {}).items()
        for effect in effects
    ]
    caption = "Expected score of each value, averaged evenly over the values of the other settings."
    return make_table("search_effects", "Effect of each setting", caption, columns, rows)


def _make_score_columns(metric: str) -> list[Column]:
    """Return the columns for a mean score and its interval in a search table."""
    return [
        *make_numeric_columns(mean=f"{metric} on validation", format=partial(number_format.format_score, metric)),
        Column("interval", "95 % interval", True, True, partial(number_format.format_score_interval, metric)),
    ]
