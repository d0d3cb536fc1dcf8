"""Samplers: propose the settings for a search's next point (grid, random, TPE).

Each sampler is a pure function of the search, the index of the point and the known scores, so an interrupted search
continues with the same points.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

from headtohead import rng
from headtohead.config.tables.search import NumericRange, SearchConfig, SettingValues
from headtohead.errors import MissingExtraError

NUM_STARTUP_POINTS = 6
"""points that TPE samples at random before it uses scores"""
MAX_RESAMPLES = 50
"""attempts to sample a point that has not been tried before"""

ScoredPoints = Sequence[tuple[SettingValues, float]]
"""finished points with their scores; higher is better"""


def suggest_settings(
    search: SearchConfig, index: int, previous_settings: Sequence[SettingValues], scored_points: ScoredPoints
) -> SettingValues | None:
    """Sample the settings of point `index`, or None if no untried settings are found."""
    if search.method == "grid":
        return _suggest_from_grid(search, index)
    for attempt in range(MAX_RESAMPLES):
        point_seed = rng.derive_seed(search.seed, "cell", index, attempt)
        settings = (
            _suggest_with_tpe(search, point_seed, scored_points)
            if search.method == "tpe" and len(scored_points) >= NUM_STARTUP_POINTS
            else _suggest_random(search, point_seed)
        )
        if settings not in previous_settings:
            return settings
    return None


def check_optuna_installed(search: SearchConfig) -> None:
    """Raise MissingExtraError before a search whose sampler needs optuna if it is missing."""
    if search.method == "tpe":
        try:
            import optuna  # noqa: F401
        except ImportError:
            raise MissingExtraError("optuna", "search", 'search.method = "tpe"') from None


def _suggest_from_grid(search: SearchConfig, index: int) -> SettingValues | None:
    """Return combination `index` in random order, so that a grid stopped by its budget has tried a fair sample."""
    value_lists = [search.list_values(setting) or () for setting in search.space]
    combinations = list(itertools.product(*value_lists))
    if index >= len(combinations):
        return None
    random.Random(rng.derive_seed(search.seed, "grid")).shuffle(combinations)
    return dict(zip(search.space, combinations[index], strict=True))


def _suggest_random(search: SearchConfig, seed: int) -> SettingValues:
    """Sample a value of every setting independently."""
    generator = random.Random(seed)
    return {setting: _sample_value(search, setting, generator) for setting in search.space}


def _sample_value(search: SearchConfig, setting: str, generator: random.Random) -> Any:
    """Sample a value for one setting, uniformly or log-uniformly."""
    axis = search.space[setting]
    values = search.list_values(setting)
    if values is not None:
        return generator.choice(values)
    assert isinstance(axis, NumericRange)
    if axis.log:
        number = math.exp(generator.uniform(math.log(axis.low), math.log(axis.high)))
    else:
        margin = 0.5 if axis.is_integer else 0.0
        number = generator.uniform(axis.low - margin, axis.high + margin)
    return _round_and_clip(axis, number)


def _round_and_clip(value_range: NumericRange, number: float) -> int | float:
    """Round to an integer or to four significant digits, and clip to the range."""
    if value_range.is_integer:
        return min(max(round(number), int(value_range.low)), int(value_range.high))
    return float(min(max(float(f"{number:.4g}"), value_range.low), value_range.high))


def _suggest_with_tpe(search: SearchConfig, seed: int, scored_points: ScoredPoints) -> SettingValues:
    """Sample settings with optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    Every call creates a new study from the scored points, so that no state is kept between proposals.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=0, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {setting: _build_distribution(search, setting) for setting in search.space}
    for settings, score in scored_points:
        params = {setting: _to_optuna_value(search, setting, value) for setting, value in settings.items()}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=space, value=score))
    params = study.ask(space).params
    return {setting: _from_optuna_value(search, setting, params[setting]) for setting in search.space}


def _build_distribution(search: SearchConfig, setting: str) -> Any:
    """Return the optuna distribution that one setting is sampled from. Lists of values are encoded by index."""
    import optuna

    values, axis = search.list_values(setting), search.space[setting]
    if not isinstance(axis, NumericRange):
        assert values is not None
        return optuna.distributions.CategoricalDistribution(list(range(len(values))))
    if values is not None:  # encoded by its index
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    if axis.is_integer:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(float(axis.low), float(axis.high), log=axis.log)


def _to_optuna_value(search: SearchConfig, setting: str, value: Any) -> Any:
    """Convert a value of the setting to the value that represents it in optuna."""
    values = search.list_values(setting)
    return value if values is None else values.index(value)


def _from_optuna_value(search: SearchConfig, setting: str, value: Any) -> Any:
    """Convert a value that optuna sampled to a value of the setting."""
    values, axis = search.list_values(setting), search.space[setting]
    if values is not None:
        return values[value]
    assert isinstance(axis, NumericRange)
    return _round_and_clip(axis, value)
