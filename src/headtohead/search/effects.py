"""Main effects of a search's settings: the expected score for each value, averaged evenly over the other settings.

A linear model is fitted to the points' means by least squares, with one term per value and each setting's terms summing
to 0. Intervals are t intervals from the residuals, which contain seed noise and interactions.
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
"""a numeric range is split into this many bins with about equally many points"""
ValueLabel = tuple[int, str]
"""rank of a value, and its label"""
ContrastArray = np.ndarray[Any, np.dtype[np.float64]]


def compute_setting_effects(
    search: SearchConfig, points: Sequence[SearchPoint], to_metric_scale: Callable[[float], float]
) -> dict[str, list[SettingEffect]]:
    """Return each value's mean with its confidence interval, for every setting with more than one value.

    `to_metric_scale` converts from the scale of the computation to the metric's.
    """
    scored_points = [point for point in points if point.seed_scores]
    all_labels = {setting: label_points(search, setting, scored_points) for setting in search.space}
    labels = {setting: values for setting, values in all_labels.items() if len(set(values)) > 1}
    if not labels:
        return {}
    contrasts = _build_contrasts(labels)
    constant = np.eye(1 + sum(len(set(values)) - 1 for values in labels.values()))[0]
    design = np.stack(
        [
            sum((contrasts[setting][values[point_index]] for setting, values in labels.items()), constant)
            for point_index in range(len(scored_points))
        ]
    )
    means = np.array([np.mean(list(point.seed_scores.values())) for point in scored_points])
    inverse_gram = np.linalg.pinv(design.T @ design)
    coefficients = inverse_gram @ design.T @ means
    degrees_of_freedom = len(scored_points) - int(np.linalg.matrix_rank(design))
    residual_variance = (
        float(((means - design @ coefficients) ** 2).sum()) / degrees_of_freedom if degrees_of_freedom > 0 else None
    )

    def build_effect(setting: str, label: ValueLabel) -> SettingEffect:
        """Estimate the mean for one setting value."""
        contrast = constant + contrasts[setting][label]
        mean, interval = float(contrast @ coefficients), None
        if residual_variance is not None:
            standard_error = math.sqrt(max(0.0, residual_variance * float(contrast @ inverse_gram @ contrast)))
            half_width = standard_error * float(special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE_LEVEL) / 2))
            interval = (to_metric_scale(mean - half_width), to_metric_scale(mean + half_width))
        return SettingEffect(
            value=label[1], points=labels[setting].count(label), mean=to_metric_scale(mean), interval=interval
        )

    return {
        setting: [build_effect(setting, label) for label in sorted(set(values))] for setting, values in labels.items()
    }


def _build_contrasts(labels: Mapping[str, Sequence[ValueLabel]]) -> dict[str, dict[ValueLabel, ContrastArray]]:
    """Return the sum-to-zero contrast for each value of each setting. Term 0 is the intercept."""
    size = 1 + sum(len(set(values)) - 1 for values in labels.values())
    contrasts: dict[str, dict[ValueLabel, ContrastArray]] = {}
    start = 1
    for setting, values in labels.items():
        *other_labels, last = sorted(set(values))
        contrasts[setting] = {label: np.eye(size)[start + index] for index, label in enumerate(other_labels)}
        contrasts[setting][last] = -np.eye(size)[start : start + len(other_labels)].sum(0)
        start += len(other_labels)
    return contrasts


def label_points(search: SearchConfig, setting: str, points: Sequence[SearchPoint]) -> list[ValueLabel]:
    """Return the label of each point's value; values from a numeric range are grouped into bins."""
    choices, axis = search.values(setting), search.space[setting]
    values = [point.settings[setting] for point in points]
    if choices is not None and (not isinstance(axis, NumericRange) or len(choices) <= 2 * NUM_RANGE_BINS):
        is_numeric = all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices)
        ordered = sorted(choices) if is_numeric else list(choices)
        return [(ordered.index(value), format_value(value)) for value in values]
    distinct = sorted(set(values))
    num_bins = min(NUM_RANGE_BINS, len(distinct))
    edges = [distinct[len(distinct) * bin_index // num_bins] for bin_index in range(1, num_bins)]
    bins = [sum(value >= edge for edge in edges) for value in values]
    labels = {}
    for index in set(bins):
        members = [value for value, value_bin in zip(values, bins, strict=True) if value_bin == index]
        labels[index] = " to ".join(dict.fromkeys((format_value(min(members)), format_value(max(members)))))
    return [(index, labels[index]) for index in bins]


def format_value(value: Any) -> str:
    """Format a searched setting's value briefly, for example: 0.003; alibi + rope; sgd, lr 0.1."""
    if isinstance(value, dict):
        return ", ".join(
            format_value(item) if key == "kind" else f"{key} {format_value(item)}" for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return " + ".join(map(format_value, value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
