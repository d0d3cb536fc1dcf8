"""Sentences about a search, short names for its settings, and axis limits for its charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, SearchFindings, SearchPointResult, SelectionBias
from headtohead.presentation import number_format

OUTLIER_FACTOR = 4
"""points farther from the best than this multiple of the median distance are drawn at the edge"""


def shorten_setting_names(settings: Sequence[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each setting, for example lr for training.optimizer.lr."""
    names = {}
    for setting in settings:
        components = setting.split(".")
        for length in range(1, len(components) + 1):
            names[setting] = ".".join(components[-length:])
            if sum(other.endswith(f".{names[setting]}") or other == names[setting] for other in settings) == 1:
                break
    return names


def format_settings(settings: Mapping[str, JsonValue]) -> str:
    """Format settings with short names, for example: lr 0.003, batch_size 8."""
    names = shorten_setting_names(list(settings))
    return ", ".join(f"{names[setting]} {number_format.format_setting(value)}" for setting, value in settings.items())


def describe_search(findings: Findings) -> list[str]:
    """Return sentences about the size of the search, the winner and the selection bias."""
    search = findings.search
    if search is None:
        return []
    winner = search.points[search.winner]
    sentences = [_describe_search_size(search), f"The winner is {winner.name}: {format_settings(winner.settings)}."]
    if search.selection_bias is not None:
        sentences.append(describe_selection_bias(findings_view.get_metric(findings), search.selection_bias))
    return sentences


def _describe_search_size(search: SearchFindings) -> str:
    """Return a sentence on the method, the numbers of points, seeds and trials, and the points that did not finish."""
    count, statuses = len(search.points), [point.status for point in search.points]
    methods = {"grid": "Grid search", "random": "Random search", "tpe": "TPE search"}
    total = f" (of {search.grid_size:,} in the grid)" if search.grid_size and search.grid_size > count else ""
    limit = "up to " if {"pruned", "unfinished"} & set(statuses) else ""
    sentence = f"{methods[search.method]} tried {count:,} points{total} with {limit}{format_seed_count(search.seeds)}"
    endings = [
        f"{statuses.count(status)} {status}" for status in ("pruned", "failed", "unfinished") if status in statuses
    ]
    return f"{sentence} each, {search.trials:,} trials in total" + (f"; {', '.join(endings)}" if endings else "") + "."


def format_seed_count(count: int) -> str:
    """Format a number of seeds: 1 seed, 3 seeds."""
    return f"{count} seed{'' if count == 1 else 's'}"


def describe_selection_bias(metric: str, bias: SelectionBias) -> str:
    """Return sentences such as: Of the lead of 3.1 points, 1.4 were selection bias."""
    search_score, fresh_score = (number_format.format_score(metric, score) for score in (bias.search, bias.fresh))
    decimals = number_format.choose_decimals(metric, bias.interval)
    interval = ""
    if bias.interval:
        bounds = _format_interval(metric, bias.interval, decimals)
        interval = f" (95{number_format.NO_BREAK_SPACE}% interval {bounds})"
    lead = _format_magnitude(metric, bias.lead, decimals) + number_format.get_effect_unit(metric)
    direction = "below" if (metric in number_format.LOWER_IS_BETTER_METRICS) == (bias.lead > 0) else "above"
    text = f"In the search it reached {metric} {search_score} on validation data, {lead} "
    text += f"{direction} the baseline with fresh seeds; "
    text += f"with {format_seed_count(int(bias.seeds[1]))} that the search did not use, it reached {fresh_score}. "
    if bias.lead <= 0:
        return text + "It did not lead even in the search, so there is no selection bias to estimate."
    if bias.bias <= 0:
        return text + f"Fresh seeds confirm the lead of {lead}: there is no selection bias{interval}."
    bias_size = _format_magnitude(metric, bias.bias, decimals)
    return text + f"Of the lead of {lead}, {bias_size} were selection bias{interval}."


def _format_magnitude(metric: str, size: float, decimals: int) -> str:
    return f"{abs(size) * (100 if number_format.is_shown_in_percent(metric) else 1):,.{decimals}f}"


def _format_interval(metric: str, bounds: Sequence[float], decimals: int) -> str:
    low, high = (
        ("" if end >= 0 else number_format.MINUS_SIGN) + _format_magnitude(metric, end, decimals) for end in bounds
    )
    return f"{low} to {high}"


def compute_axis_limits(findings: Findings) -> tuple[float, float]:
    """Return the lowest and highest scores shown in search charts, chosen so that outliers do not stretch the axis."""
    search = findings.search
    assert search is not None
    means = [point.mean for point in search.points if point.mean is not None]
    reference_levels = [search.selection_bias.fresh, search.selection_bias.baseline] if search.selection_bias else []
    is_low = findings_view.get_metric(findings) in number_format.LOWER_IS_BETTER_METRICS
    best, *_ = ranked_means = sorted(means, reverse=not is_low)
    median_distance = abs(ranked_means[len(ranked_means) // 2] - best)
    max_distance = OUTLIER_FACTOR * median_distance if median_distance > 0 else abs(best)
    inliers = [value for value in [*means, *reference_levels] if abs(value - best) <= max_distance]
    low, high = min(inliers), max(inliers)
    margin = 0.06 * ((high - low) or abs(high) or 1.0)
    return low - margin, high + margin


def rank_points(search: SearchFindings, metric: str) -> list[SearchPointResult]:
    """Return the points in rank order: the winner, then by mean score, then failed points."""
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
