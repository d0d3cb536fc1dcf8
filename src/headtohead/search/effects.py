"""Main effects of a search's settings: the expected score for each value, averaged evenly over the other settings.

A linear model is fitted to the points' means by least squares, with one term per value and each setting's terms summing
to 0. Intervals are t intervals from the residuals, which contain seed noise and interactions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import scipy

from headtohead.config.tables.search import NumericRange, SearchConfig
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
    labels_by_setting = {setting: label_points(search, setting, scored_points) for setting in search.space}
    labels_by_setting = {setting: labels for setting, labels in labels_by_setting.items() if len(set(labels)) > 1}
    if not labels_by_setting:
        return {}
    contrasts = _build_contrasts(labels_by_setting)
    intercept = np.eye(1 + sum(len(set(labels)) - 1 for labels in labels_by_setting.values()))[0]
    design_matrix = np.stack(
        [
            sum((contrasts[setting][labels[point_index]] for setting, labels in labels_by_setting.items()), intercept)
            for point_index in range(len(scored_points))
        ]
    )
    means = np.array([np.mean(list(point.seed_scores.values())) for point in scored_points])
    inverse_gram = np.linalg.pinv(design_matrix.T @ design_matrix)
    coefficients = inverse_gram @ design_matrix.T @ means
    degrees_of_freedom = len(scored_points) - int(np.linalg.matrix_rank(design_matrix))
    residual_variance = (
        float(((means - design_matrix @ coefficients) ** 2).sum()) / degrees_of_freedom
        if degrees_of_freedom > 0
        else None
    )

    def build_effect(setting: str, label: ValueLabel) -> SettingEffect:
        """Estimate the mean score of one setting value."""
        contrast = intercept + contrasts[setting][label]
        mean, interval = float(contrast @ coefficients), None
        if residual_variance is not None:
            standard_error = math.sqrt(max(0.0, residual_variance * float(contrast @ inverse_gram @ contrast)))
            half_width = standard_error * float(scipy.special.stdtrit(degrees_of_freedom, (1 + CONFIDENCE_LEVEL) / 2))
            interval = (to_metric_scale(mean - half_width), to_metric_scale(mean + half_width))
        return SettingEffect(
            value=label[1],
            points=labels_by_setting[setting].count(label),
            mean=to_metric_scale(mean),
            interval=interval,
        )

    return {
        setting: [build_effect(setting, label) for label in sorted(set(labels))]
        for setting, labels in labels_by_setting.items()
    }


def _build_contrasts(
    labels_by_setting: Mapping[str, Sequence[ValueLabel]],
) -> dict[str, dict[ValueLabel, ContrastArray]]:
    """Return the sum-to-zero contrasts from which main effects are fitted, for each value of each setting."""
    num_terms = 1 + sum(len(set(labels)) - 1 for labels in labels_by_setting.values())
    contrasts: dict[str, dict[ValueLabel, ContrastArray]] = {}
    first_term = 1
    for setting, labels in labels_by_setting.items():
        *free_labels, last_label = sorted(set(labels))
        contrasts[setting] = {label: np.eye(num_terms)[first_term + index] for index, label in enumerate(free_labels)}
        contrasts[setting][last_label] = -np.eye(num_terms)[first_term : first_term + len(free_labels)].sum(0)
        first_term += len(free_labels)
    return contrasts


def label_points(search: SearchConfig, setting: str, points: Sequence[SearchPoint]) -> list[ValueLabel]:
    """Return each point's level of a setting, whose effect is estimated; values of a numeric range are binned."""
    choices, axis = search.list_values(setting), search.space[setting]
    values = [point.settings[setting] for point in points]
    if choices is not None and (not isinstance(axis, NumericRange) or len(choices) <= 2 * NUM_RANGE_BINS):
        is_numeric = all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices)
        ordered_choices = sorted(choices) if is_numeric else list(choices)
        return [(ordered_choices.index(value), format_value_label(value)) for value in values]
    distinct_values = sorted(set(values))
    num_bins = min(NUM_RANGE_BINS, len(distinct_values))
    bin_edges = [distinct_values[len(distinct_values) * index // num_bins] for index in range(1, num_bins)]
    bin_indices = [sum(value >= edge for edge in bin_edges) for value in values]
    bin_labels = {}
    for bin_index in set(bin_indices):
        bin_values = [value for value, index in zip(values, bin_indices, strict=True) if index == bin_index]
        ends = (format_value_label(min(bin_values)), format_value_label(max(bin_values)))
        bin_labels[bin_index] = " to ".join(dict.fromkeys(ends))
    return [(bin_index, bin_labels[bin_index]) for bin_index in bin_indices]


def format_value_label(value: Any) -> str:
    """Return a short label for a setting's value in the effects: "0.003", "alibi + rope", "sgd, lr 0.1"."""
    if isinstance(value, dict):
        return ", ".join(
            format_value_label(item) if key == "kind" else f"{key} {format_value_label(item)}"
            for key, item in value.items()
        )
    if isinstance(value, list | tuple):
        return " + ".join(map(format_value_label, value))
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value).lower() if isinstance(value, bool) else str(value)
