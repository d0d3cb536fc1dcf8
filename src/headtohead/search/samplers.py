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
from headtohead.config.search import Range, Search, Settings
from headtohead.errors import MissingExtraError

STARTUP = 6
"""cells that tpe draws at random before it begins to learn from them"""
TRIES = 50
"""how often a draw that was there before is drawn again"""

Known = Sequence[tuple[Settings, float]]
"""cells that are over with their score, the higher the better"""


def propose(search: Search, number: int, before: Sequence[Settings], known: Known) -> Settings | None:
    """The settings of this cell; none when there is nothing left to try. `before` are all cells so far."""
    if search.method == "grid":
        return _grid(search, number)
    for attempt in range(TRIES):
        key = rng.key(search.seed, "cell", number, attempt)
        # A proposal that does not learn from results is a plain draw.
        drawn = _tpe(search, key, known) if search.method == "tpe" and len(known) >= STARTUP else _random(search, key)
        if drawn not in before:
            return drawn
    return None


def check_optuna(search: Search) -> None:
    """Say now, and not after the first cells, that a package is missing."""
    if search.method == "tpe":
        try:
            import optuna  # noqa: F401
        except ImportError:
            raise MissingExtraError("optuna", "search", 'search.method = "tpe"') from None


def _grid(search: Search, number: int) -> Settings | None:
    """Every combination once, in a drawn order: a grid that is cut short by its budget has then tried a fair sample."""
    listed = [search.values(setting) or () for setting in search.space]
    cells = list(itertools.product(*listed))
    if number >= len(cells):
        return None
    random.Random(rng.key(search.seed, "grid")).shuffle(cells)
    return dict(zip(search.space, cells[number], strict=True))


def _random(search: Search, key: int) -> Settings:
    draw = random.Random(key)
    return {setting: _drawn(search, setting, draw) for setting in search.space}


def _drawn(search: Search, setting: str, draw: random.Random) -> Any:
    axis = search.space[setting]
    values = search.values(setting)
    if values is not None:
        return draw.choice(values)
    assert isinstance(axis, Range)
    if axis.log:
        found = math.exp(draw.uniform(math.log(axis.low), math.log(axis.high)))
    else:
        found = draw.uniform(axis.low - 0.5, axis.high + 0.5) if axis.is_whole else draw.uniform(axis.low, axis.high)
    return _within(axis, found)


def _within(axis: Range, number: float) -> int | float:
    """A number as people write it, inside the range."""
    if axis.is_whole:
        return min(max(round(number), int(axis.low)), int(axis.high))
    return float(min(max(float(f"{number:.4g}"), axis.low), axis.high))


def _tpe(search: Search, key: int, known: Known) -> Settings:
    """The tree of Parzen estimators (Bergstra et al. 2011), through optuna's ask and tell. The study is made anew for
    each proposal: nothing is kept between them but the cells and their scores."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(seed=key % 2**32, n_startup_trials=0, multivariate=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {setting: _distribution(search, setting) for setting in search.space}
    for settings, score in known:
        told = {setting: _told(search, setting, value) for setting, value in settings.items()}
        study.add_trial(optuna.trial.create_trial(params=told, distributions=space, value=score))
    asked = study.ask(space).params
    return {setting: _heard(search, setting, asked[setting]) for setting in search.space}


def _distribution(search: Search, setting: str) -> Any:
    import optuna

    values, axis = search.values(setting), search.space[setting]
    if not isinstance(axis, Range):
        assert values is not None
        return optuna.distributions.CategoricalDistribution(list(range(len(values))))
    if values is not None:  # by its place among the steps
        return optuna.distributions.IntDistribution(0, len(values) - 1)
    if axis.is_whole:
        return optuna.distributions.IntDistribution(int(axis.low), int(axis.high), log=axis.log)
    return optuna.distributions.FloatDistribution(float(axis.low), float(axis.high), log=axis.log)


def _told(search: Search, setting: str, value: Any) -> Any:
    values = search.values(setting)
    return value if values is None else values.index(value)


def _heard(search: Search, setting: str, value: Any) -> Any:
    values, axis = search.values(setting), search.space[setting]
    if values is not None:
        return values[value]
    assert isinstance(axis, Range)
    return _within(axis, value)
