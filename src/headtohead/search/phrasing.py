"""What a search found, in sentences and short names; and how far the axes of its pictures reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from headtohead.experiment import findings_view
from headtohead.experiment.schemas import Findings, SearchFindings, SearchPointResult, SelectionBias
from headtohead.presentation import number_format

OUTLIER_FACTOR = 4
"""cells that are so many times further behind the best than the middle one are drawn at the edge"""


def shorten_setting_names(settings: Sequence[str]) -> dict[str, str]:
    """rate for training.optimizer.lr, as long as no other setting ends alike."""
    names = {}
    for setting in settings:
        parts = setting.split(".")
        for length in range(1, len(parts) + 1):
            names[setting] = ".".join(parts[-length:])
            if sum(other.endswith(f".{names[setting]}") or other == names[setting] for other in settings) == 1:
                break
    return names


def format_settings(settings: Mapping[str, JsonValue]) -> str:
    """rate 0.003, batch 8."""
    names = shorten_setting_names(list(settings))
    return ", ".join(f"{names[setting]} {number_format.format_setting(value)}" for setting, value in settings.items())


def describe_search(findings: Findings) -> list[str]:
    """What was tried, who won, and how much of the lead was luck."""
    search = findings.search
    if search is None:
        return []
    winner = search.points[search.winner]
    said = [_describe_search_size(search), f"The winner is {winner.name}: {format_settings(winner.settings)}."]
    if search.selection_bias is not None:
        said.append(describe_selection_bias(findings_view.get_metric(findings), search.selection_bias))
    return said


def _describe_search_size(search: SearchFindings) -> str:
    count = len(search.points)
    kinds = {"grid": "A grid", "random": "A random search", "tpe": "A search by TPE"}
    of = f" (of {search.grid_size:,} in the grid)" if search.grid_size and search.grid_size > count else ""
    most = "up to " if any(cell.status in ("pruned", "unfinished") for cell in search.points) else ""
    said = f"{kinds[search.method]} tried {count:,} cells{of} with {most}{_format_seed_count(search.seeds)} each"
    said += f", {search.trials:,} trials in all"
    fates = {"pruned": ("was given up early", "were given up early"), "failed": ("failed", "failed")}
    fates["unfinished"] = ("was left unfinished", "were left unfinished")
    counts = {fate: sum(cell.status == fate for cell in search.points) for fate in fates}
    ends = [f"{number} {fates[fate][number > 1]}" for fate, number in counts.items() if number]
    return said + (f"; {', '.join(ends)}" if ends else "") + "."


def _format_seed_count(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def describe_selection_bias(metric: str, bias: SelectionBias) -> str:
    """Of the lead of 3.1 points, 1.4 were luck."""
    lead, lucky, ends = bias.lead, bias.bias, bias.interval
    before, after = (number_format.format_score(metric, score) for score in (bias.search, bias.fresh))
    places = number_format.choose_decimals(metric, ends)
    wide = f" (95{number_format.NO_BREAK_SPACE}% interval {_format_interval(metric, ends, places)})" if ends else ""
    side = _choose_direction_word(metric, lead)
    said = f"In the search it reached {metric} {before} on validation data, {_format_magnitude_with_unit(metric, lead, places)} {side} the "  # noqa: E501
    said += f"baseline with fresh seeds; with {_format_seed_count(int(bias.seeds[1]))} that the search never used, {after}. "  # noqa: E501
    if lead <= 0:
        return said + "So it did not even lead in the search, and there is no lead that could be luck."
    if lucky <= 0:
        return (
            said
            + f"The fresh seeds bear its lead of {_format_magnitude_with_unit(metric, lead, places)} out: none of it was luck{wide}."  # noqa: E501
        )
    share = _format_magnitude(metric, lucky, places)
    return said + f"Of the lead of {_format_magnitude_with_unit(metric, lead, places)}, {share} were luck{wide}."


def _choose_direction_word(metric: str, lead: float) -> str:
    is_low = metric in number_format.LOWER_IS_BETTER_METRICS
    return "below" if is_low == (lead > 0) else "above"


def _format_magnitude(metric: str, size: float, decimals: int) -> str:
    return f"{abs(size) * (100 if number_format.is_shown_in_percent(metric) else 1):,.{decimals}f}"


def _format_magnitude_with_unit(metric: str, size: float, decimals: int) -> str:
    return _format_magnitude(metric, size, decimals) + number_format.get_effect_unit(metric)


def _format_interval(metric: str, bounds: Sequence[float], decimals: int) -> str:
    low, high = (
        ("" if end >= 0 else number_format.MINUS_SIGN) + _format_magnitude(metric, end, decimals) for end in bounds
    )
    return f"{low} to {high}"


def compute_axis_limits(findings: Findings) -> tuple[float, float]:
    """The best and the worst value that pictures of the search show; a cell far behind does not press others flat."""
    search = findings.search
    assert search is not None
    means = [point.mean for point in search.points if point.mean is not None]
    extra = [search.selection_bias.fresh, search.selection_bias.baseline] if search.selection_bias else []
    is_low = findings_view.get_metric(findings) in number_format.LOWER_IS_BETTER_METRICS
    best, *_ = ordered = sorted(means, reverse=not is_low)
    middle = abs(ordered[len(ordered) // 2] - best)
    far = OUTLIER_FACTOR * middle if middle > 0 else abs(best)
    near = [value for value in [*means, *extra] if abs(value - best) <= far]
    low, high = min(near), max(near)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    return low - room, high + room


def rank_points(search: SearchFindings, metric: str) -> list[SearchPointResult]:
    """The cells, the best first; those that were not followed to the end after those that were."""
    sign = 1 if metric in number_format.LOWER_IS_BETTER_METRICS else -1
    order = {"finished": 0, "unfinished": 1, "pruned": 2, "failed": 3}
    return sorted(
        search.points,
        key=lambda cell: (
            cell.point != search.winner,
            order[cell.status] if cell.status == "failed" else 0,
            0.0 if cell.mean is None else sign * cell.mean,
        ),
    )
