"""Tables for a search and for tuning: their points, and the effect of each setting."""

from __future__ import annotations

from functools import partial

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, SearchFindings, SearchPointResult, TuningFindings
from headtohead.presentation import number_format
from headtohead.presentation.table import Cell, Column, Table, make_numeric_columns, make_table, make_text_columns
from headtohead.search import phrasing

STATUS_LABELS = {"finished": "all seeds", "pruned": "pruned", "failed": "failed", "unfinished": "unfinished"}


def build_search_points_table(findings: Findings) -> Table:
    """Return the table of a search's points: settings, score, interval, seeds and outcome."""
    metric, search = findings_view.get_metric(findings), findings.search
    if search is None:
        return make_table("search", "The search", "", [], [])
    short_names = phrasing.shorten_setting_names(list(search.space))
    columns = [
        *make_text_columns("point"),
        *make_numeric_columns(short_names, format=number_format.format_setting),
        *_make_score_columns(metric),
        *make_numeric_columns("seeds"),
        *make_text_columns(status="outcome"),
    ]
    rows = []
    for point in rank_points(search, metric):
        message = f": {point.message}" if point.message else ""
        outcome = "winner" if point.point == search.winner else STATUS_LABELS[point.status] + message
        settings = [point.settings[setting] for setting in short_names]
        outcome_cell = Cell(outcome, point.status)
        rows.append([point.name, *settings, point.mean, point.interval, len(point.scores), outcome_cell])
    caption = "Points of the search in rank order. Selection uses validation data only; no test data was scored."
    return make_table("search", "The search", caption, columns, rows)


def build_search_effects_table(findings: Findings) -> Table:
    """Return the table of main effects, with the expected score of each value of each setting."""
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


def rank_points(search: SearchFindings, metric: str) -> list[SearchPointResult]:
    """Return the points of a search in the order of its table: the winner, then by mean score, then failed points."""
    sign = 1 if metric in number_format.LOWER_IS_BETTER_METRICS else -1
    status_order = {"finished": 0, "unfinished": 1, "pruned": 2, "failed": 3}
    return sorted(
        search.points,
        key=lambda point: (
            point.point != search.winner,
            status_order[point.status] if point.status == "failed" else 0,
            0.0 if point.mean is None else sign * point.mean,
        ),
    )


def build_tuning_table(tuning: TuningFindings, metric: str) -> Table:
    """Build a table of the tuning with one row per point of the baseline and of each variant."""
    names = phrasing.shorten_setting_names(list(tuning.space))
    columns = make_text_columns("side") + make_numeric_columns(names, format=number_format.format_setting)
    columns += _make_score_columns(metric)
    columns += make_numeric_columns("seeds") + make_text_columns("outcome")
    rows = [
        [
            side.name,
            *(point.settings[setting] for setting in names),
            point.mean,
            point.interval,
            len(point.scores),
            "chosen" if point.point == side.point else point.message or point.status,
        ]
        for side in tuning.sides
        for point in side.points
    ]
    caption = "Points of the tuning of every side. They were chosen on validation data only."
    return make_table("tuning", "All points", caption, columns, rows)
