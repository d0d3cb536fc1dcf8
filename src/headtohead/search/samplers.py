"""Which cell a search tries next. Each method is a pure function of (search, number of the cell, what is known), so
that a search that was killed goes on as it would have gone."""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Sequence
from typing import Any

from headtohead import rng
from headtohead.config.search import NumericRange, SearchConfig, SettingValues
from headtohead.errors import MissingExtraError

NUM_STARTUP_POINTS = 6
"""cells that tpe draws at random before it begins to learn from them"""
MAX_RESAMPLES = 50
"""how often a draw that was there before is drawn again"""

ScoredPoints = Sequence[tuple[SettingValues, float]]
"""cells that are over with their score, the higher the better"""


def suggest_settings(
    search: SearchConfig, index: int, previous_settings: Sequence[SettingValues], scored_points: ScoredPoints
) -> SettingValues | None:
    """The settings of this cell; none when there is nothing left to try. `before` are all cells so far."""
    if search.method == "grid":
        return _suggest_from_grid(search, index)
    for attempt in range(MAX_RESAMPLES):
        key = rng.derive_seed(search.seed, "cell", index, attempt)
        # A proposal that does not learn from results is a plain draw.
        drawn = (
            _suggest_with_tpe(search, key, scored_points)
            if search.method == "tpe" and len(scored_points) >= NUM_STARTUP_POINTS
            else _suggest_random(search, key)
        )
        if drawn not in previous_settings:
            return drawn
    return None


def check_optuna_installed(search: SearchConfig) -> None:
    """Say now, and not after the first cells, that a package is missing."""
    if search.method == "tpe":
        try:
            import optuna  # noqa: F401
        except ImportError:
            raise MissingExtraError("optuna", "search", 'search.method = "tpe"') from None


def _suggest_from_grid(search: SearchConfig, index: int) -> SettingValues | None:
    """Every combination once, in a drawn order: a grid that is cut short by its budget has then tried a fair sample."""
    listed = [search.values(setting) or () for setting in search.space]
    cells = list(itertools.product(*listed))
    if index >= len(cells):
        return None
    random.Random(rng.derive_seed(search.seed, "grid")).shuffle(cells)
    return dict(zip(search.space, cells[index], strict=True))


def _suggest_random(search: SearchConfig, seed: int) -> SettingValues:
    draw = random.Random(seed)
    return {setting: _sample_value(search, setting, draw) for setting in search.space}


def _sample_value(search: SearchConfig, setting: str, generator: random.Random) -> Any:
    axis = search.space[setting]
    values = search.values(setting)
    if values is not None:
        return generator.choice(values)
    assert isinstance(axis, NumericRange)
    if axis.log:
        found = math.exp(generator.uniform(math.log(axis.low), math.log(axis.high)))
    else:
        found = (
            generator.uniform(axis.low - 0.5, axis.high + 0.5)
            if axis.is_integer
            else generator.uniform(axis.low, axis.high)
        )
    return _round_and_clip(axis, found)


def _round_and_clip(value_range: NumericRange, number: float) -> int | float:
    """A number as people write it, inside the range."""
    if value_range.is_integer:
        return min(max(round(number), int(value_range.low)), int(value_range.high))
    return float(min(max(float(f"{number:.4g}"), value_range.low), value_range.high))


def _suggest_with_tpe(search: SearchConfig, seed: int, scored_points: ScoredPoints) -> SettingValues:
    """The tree of Parzen estimators (Bergstra et al. 2011), through optuna's ask and tell. The study is made anew for
    each proposal: nothing is kept between them but the cells and their scores."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=0, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {setting: _build_distribution(search, setting) for setting in search.space}
    for settings, score in scored_points:
        told = {setting: _to_optuna_value(search, setting, value) for setting, value in settings.items()}
        study.add_trial(optuna.trial.create_trial(params=told, distributions=space, value=score))
    asked = study.ask(space).params
    return {setting: _from_optuna_value(search, setting, asked[setting]) for setting in search.space}


def _build_distribution(search: SearchConfig, setting: str) -> Any:
    import optuna

    values, axis = search.values(setting), search.space[setting]
    if not isinstance(axis, NumericRange):
        assert values is not None
        return optuna.distributions.CategoricalDistribution(list(range(len(values))))
    if values is not None:  # by its place among the steps
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    if axis.is_integer:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(float(axis.low), float(axis.high), log=axis.log)


def _to_optuna_value(search: SearchConfig, setting: str, value: Any) -> Any:
    values = search.values(setting)
    return value if values is None else values.index(value)


def _from_optuna_value(search: SearchConfig, setting: str, value: Any) -> Any:
    values, axis = search.values(setting), search.space[setting]
    if values is not None:
        return values[value]
    assert isinstance(axis, NumericRange)
    return _round_and_clip(axis, value)
