"""What a search found, in sentences and short names; and how far the axes of its pictures reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headtohead.presentation import number_format
from headtohead.report import findings_view
from headtohead.report.findings_view import Findings

FAR = 4
"""cells that are so many times further behind the best than the middle one are drawn at the edge"""
Row = dict[str, Any]


def found(findings: Findings) -> Row | None:
    """What the search left in the findings, if there was one."""
    search: Row | None = findings.get("search")
    return search


def short_names(settings: Sequence[str]) -> dict[str, str]:
    """rate for training.optimizer.rate, as long as no other setting ends alike."""
    names = {}
    for setting in settings:
        parts = setting.split(".")
        for length in range(1, len(parts) + 1):
            names[setting] = ".".join(parts[-length:])
            if sum(other.endswith(f".{names[setting]}") or other == names[setting] for other in settings) == 1:
                break
    return names


def settings_words(settings: Row) -> str:
    """rate 0.003, batch 8."""
    names = short_names(list(settings))
    return ", ".join(f"{names[setting]} {number_format.plain(value)}" for setting, value in settings.items())


def sentences(findings: Findings) -> list[str]:
    """What was tried, who won, and how much of the lead was luck."""
    search = found(findings)
    if search is None:
        return []
    winner = search["cells"][search["winner"]]
    said = [_tried(search), f"The winner is {winner['name']}: {settings_words(winner['settings'])}."]
    return [*said, luck(findings)] if search.get("luck") else said


def _tried(search: Row) -> str:
    count = len(search["cells"])
    kinds = {"grid": "A grid", "random": "A random search", "tpe": "A search by TPE"}
    of = f" (of {search['grid']:,} in the grid)" if search.get("grid") and search["grid"] > count else ""
    most = "up to " if any(cell["status"] in ("pruned", "unfinished") for cell in search["cells"]) else ""
    said = f"{kinds[search['method']]} tried {count:,} cells{of} with {most}{_seeds(search['seeds'])} each"
    said += f", {search['trials']:,} trials in all"
    fates = {"pruned": ("was given up early", "were given up early"), "failed": ("failed", "failed")}
    fates["unfinished"] = ("was left unfinished", "were left unfinished")
    counts = {fate: sum(cell["status"] == fate for cell in search["cells"]) for fate in fates}
    ends = [f"{number} {fates[fate][number > 1]}" for fate, number in counts.items() if number]
    return said + (f"; {', '.join(ends)}" if ends else "") + "."


def _seeds(count: int) -> str:
    return f"{count} seed{'' if count == 1 else 's'}"


def luck(findings: Findings) -> str:
    """Of the lead of 3.1 points, 1.4 were luck."""
    metric, found_luck = findings_view.metric(findings), (found(findings) or {})["luck"]
    lead, lucky, ends = found_luck["lead"], found_luck["luck"], found_luck["interval"]
    before, after = (number_format.value(metric, found_luck[key]) for key in ("search", "fresh"))
    places = number_format.decimals(metric, ends)
    wide = f" (95{number_format.SPACE}% interval {_span(metric, ends, places)})" if ends else ""
    side = _side(metric, lead)
    said = f"In the search it reached {metric} {before} on validation data, {_size(metric, lead, places)} {side} the "
    said += f"baseline with fresh seeds; with {_seeds(found_luck['seeds'][1])} that the search never used, {after}. "
    if lead <= 0:
        return said + "So it did not even lead in the search, and there is no lead that could be luck."
    if lucky <= 0:
        return said + f"The fresh seeds bear its lead of {_size(metric, lead, places)} out: none of it was luck{wide}."
    share = _number(metric, lucky, places)
    return said + f"Of the lead of {_size(metric, lead, places)}, {share} were luck{wide}."


def _side(metric: str, lead: float) -> str:
    is_low = metric in number_format.LOWER_IS_BETTER
    return "below" if is_low == (lead > 0) else "above"


def _number(metric: str, size: float, places: int) -> str:
    return f"{abs(size) * (100 if number_format.in_hundredths(metric) else 1):,.{places}f}"


def _size(metric: str, size: float, places: int) -> str:
    return _number(metric, size, places) + number_format.unit(metric)


def _span(metric: str, ends: Sequence[float], places: int) -> str:
    low, high = (("" if end >= 0 else number_format.MINUS) + _number(metric, end, places) for end in ends)
    return f"{low} to {high}"


def limits(findings: Findings) -> tuple[float, float]:
    """The best and the worst value that pictures of the search show; a cell far behind does not press others flat."""
    search = found(findings) or {}
    means = [cell["mean"] for cell in search["cells"] if number_format.is_number(cell["mean"])]
    extra = [search["luck"][key] for key in ("fresh", "baseline")] if search.get("luck") else []
    is_low = findings_view.metric(findings) in number_format.LOWER_IS_BETTER
    best, *_ = ordered = sorted(means, reverse=not is_low)
    middle = abs(ordered[len(ordered) // 2] - best)
    far = FAR * middle if middle > 0 else abs(best)
    near = [value for value in [*means, *extra] if abs(value - best) <= far]
    low, high = min(near), max(near)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    return low - room, high + room


def ranked(search: Row, metric: str) -> list[Row]:
    """The cells, the best first; those that were not followed to the end after those that were."""
    sign = 1 if metric in number_format.LOWER_IS_BETTER else -1
    order = {"finished": 0, "unfinished": 1, "pruned": 2, "failed": 3}
    return sorted(
        search["cells"],
        key=lambda cell: (
            cell["cell"] != search["winner"],
            order[cell["status"]] if cell["status"] == "failed" else 0,
            sign * cell["mean"] if number_format.is_number(cell["mean"]) else 0.0,
        ),
    )
