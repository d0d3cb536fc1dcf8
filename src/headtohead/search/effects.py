"""Each setting's effect in a search: what a value gives where all other settings take each of theirs equally often.

Least squares on the cells' means, with one term for each value of each setting and the terms of a setting adding up to
0. Intervals are t intervals from what is left over: the noise of the seeds, and settings that act on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from headtohead.config.search import NumericRange, SearchConfig
from headtohead.experiment.schemas import SettingEffect
from headtohead.search.points import SearchPoint

CONFIDENCE_LEVEL = 0.95
NUM_RANGE_BINS = 3
"""a range is cut into so many pieces, with about as many cells in each, to see its effect"""
ValueLabel = tuple[int, str]
"""where a value stands in its list, and what is said of it"""
ContrastArray = np.ndarray[Any, np.dtype[np.float64]]


def compute_setting_effects(
    search: SearchConfig, points: Sequence[SearchPoint], to_metric_scale: Callable[[float], float]
) -> dict[str, list[SettingEffect]]:
    """For each setting with more than one value: the mean of each, as it is `shown`, with its interval."""
    scored = [cell for cell in points if cell.figures]
    every = {setting: label_points(search, setting, scored) for setting in search.space}
    labels = {setting: found for setting, found in every.items() if len(set(found)) > 1}
    if not labels:
        return {}
    own = _build_contrasts(labels)
    constant = np.eye(1 + sum(len(set(found)) - 1 for found in labels.values()))[0]
    rows = [sum((own[setting][found[at]] for setting, found in labels.items()), constant) for at in range(len(scored))]
    design = np.stack(rows)
    means = np.array([np.mean(list(cell.figures.values())) for cell in scored])
    inverse = np.linalg.pinv(design.T @ design)
    terms = inverse @ design.T @ means
    freedom = len(scored) - int(np.linalg.matrix_rank(design))
    noise = float(((means - design @ terms) ** 2).sum()) / freedom if freedom > 0 else None

    def row(setting: str, label: ValueLabel) -> SettingEffect:
        contrast = constant + own[setting][label]
        mean, interval = float(contrast @ terms), None
        if noise is not None:
            error = math.sqrt(max(0.0, noise * float(contrast @ inverse @ contrast)))
            reach = error * float(special.stdtrit(freedom, (1 + CONFIDENCE_LEVEL) / 2))
            interval = (to_metric_scale(mean - reach), to_metric_scale(mean + reach))
        return SettingEffect(
            value=label[1], points=labels[setting].count(label), mean=to_metric_scale(mean), interval=interval
        )

    return {setting: [row(setting, label) for label in sorted(set(found))] for setting, found in labels.items()}


def _build_contrasts(labels: Mapping[str, Sequence[ValueLabel]]) -> dict[str, dict[ValueLabel, ContrastArray]]:
    """For each value of each setting, which terms are its own. The last value's are what the others leave, so that
    they add up to 0. The first term of all is the constant."""
    size = 1 + sum(len(set(found)) - 1 for found in labels.values())
    made: dict[str, dict[ValueLabel, ContrastArray]] = {}
    at = 1
    for setting, found in labels.items():
        *others, last = sorted(set(found))
        made[setting] = {label: np.eye(size)[at + place] for place, label in enumerate(others)}
        made[setting][last] = -np.eye(size)[at : at + len(others)].sum(0)
        at += len(others)
    return made


def label_points(search: SearchConfig, setting: str, points: Sequence[SearchPoint]) -> list[ValueLabel]:
    """Which value, or which piece of a range, each cell has."""
    values, axis = search.values(setting), search.space[setting]
    given = [cell.settings[setting] for cell in points]
    if values is not None and (not isinstance(axis, NumericRange) or len(values) <= 2 * NUM_RANGE_BINS):
        numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in values)
        ordered = sorted(values) if numbers else list(values)
        return [(ordered.index(one), format_value(one)) for one in given]
    ends = sorted(set(given))
    pieces = min(NUM_RANGE_BINS, len(ends))
    cuts = [ends[len(ends) * piece // pieces] for piece in range(1, pieces)]
    at = [sum(one >= cut for cut in cuts) for one in given]
    inside = {piece: [one for one, place in zip(given, at, strict=True) if place == piece] for piece in set(at)}
    said = {
        piece: " to ".join(dict.fromkeys((format_value(min(found)), format_value(max(found)))))
        for piece, found in inside.items()
    }
    return [(piece, said[piece]) for piece in at]


def format_value(value: Any) -> str:
    """A value in few letters: 0.003, alibi + rope, sgd, rate 0.1."""
    if isinstance(value, dict):
        return ", ".join(
            format_value(one) if key == "kind" else f"{key} {format_value(one)}" for key, one in value.items()
        )
    if isinstance(value, list | tuple):
        return " + ".join(map(format_value, value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
