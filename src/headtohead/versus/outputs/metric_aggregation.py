"""Aggregate the metric values that a run reports to the one that is compared: the last, the best, or a mean."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter

import numpy as np

from headtohead.errors import RequestError
from headtohead.versus.config import Aggregation, MetricConfig, infer_direction
from headtohead.versus.outputs.metric_readers import MetricValue


def aggregate_values(
    values: list[MetricValue], config: MetricConfig, selecting_values: list[MetricValue] | None = None
) -> float:
    """Return the value of a run that is compared. `selecting_values` are those of `metric_for_best_step`."""
    if not values:
        raise ValueError("no values")
    return AGGREGATIONS[config.aggregate](values, config, selecting_values)


def _take_last_value(
    values: list[MetricValue], config: MetricConfig, selecting_values: list[MetricValue] | None
) -> float:
    return values[-1].value


def _average_last_values(
    values: list[MetricValue], config: MetricConfig, selecting_values: list[MetricValue] | None
) -> float:
    return float(np.mean([value.value for value in values[-config.window :]]))


def _take_best_value(
    values: list[MetricValue], config: MetricConfig, selecting_values: list[MetricValue] | None
) -> float:
    """Return the best finite value, or the value at the step at which `metric_for_best_step` is best."""
    pairs = [(value.value, value.value) for value in values]
    direction = config.direction or infer_direction(config.name)
    if selecting_values is not None and config.metric_for_best_step is not None:
        pairs = _pair_with_selecting_values(values, selecting_values, config)
        direction = infer_direction(config.metric_for_best_step) or direction
    finite_pairs = [pair for pair in pairs if math.isfinite(pair[0])]
    select_best = min if direction == "minimize" else max
    return select_best(finite_pairs, key=itemgetter(0), default=(math.nan, math.nan))[1]


def _pair_with_selecting_values(
    values: list[MetricValue], selecting_values: list[MetricValue], config: MetricConfig
) -> list[tuple[float, float]]:
    """Return (value of `metric_for_best_step`, value) of each step, or of each position if steps repeat."""
    values_by_step = {value.step: value.value for value in values}
    selecting_by_step = {value.step: value.value for value in selecting_values}
    if len(selecting_by_step) == len(selecting_values) and len(values_by_step) == len(values):
        pairs = [
            (selecting_value, values_by_step[step])
            for step, selecting_value in selecting_by_step.items()
            if step in values_by_step
        ]
    elif len(selecting_values) == len(values):
        pairs = [
            (selecting_value.value, value.value)
            for selecting_value, value in zip(selecting_values, values, strict=True)
        ]
    else:
        pairs = []
    if not pairs:
        raise RequestError(f"no step has both {config.name!r} and {config.metric_for_best_step!r}")
    return pairs


AGGREGATIONS: dict[Aggregation, Callable[[list[MetricValue], MetricConfig, list[MetricValue] | None], float]] = {
    "last": _take_last_value,
    "best": _take_best_value,
    "mean": _average_last_values,
}
