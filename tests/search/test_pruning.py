"""Giving up points is safe under noise: how often the truly best point is lost, and what is saved, by simulation."""

import math

import numpy as np
import pytest

from headtohead.config.search import PruningConfig
from headtohead.runner.run_search import DECISION_LAG
from headtohead.search.pruning import PruningDecision, compute_pooled_std, decide_pruning

CELLS, WORLDS = 18, 600


def simulate(
    means: np.ndarray, spreads: np.ndarray, *, seeds: int, rule: PruningConfig, worlds: int = WORLDS, seed: int = 0
) -> tuple[float, float]:
    """Searches over points with these true means and spreads, in drawn order: how often the best is given up, and the
    share of trials that is saved. Cells are held against those that are at least LAG before them, as in a search."""
    draw = np.random.default_rng(seed)
    best, lost, trained = int(np.argmax(means)), 0, 0
    for _ in range(worlds):
        order = draw.permutation(len(means))
        noise = draw.standard_normal((len(means), seeds))
        figures = [list(means[point] + spreads[point] * noise[point]) for point in order]
        given: list[int] = []
        for at, scores in enumerate(figures):
            others = [figures[other] for other in range(max(0, at - DECISION_LAG + 1)) if given[other] == seeds]
            had = seeds
            for count in range(rule.min_seeds, seeds):
                if decide_pruning(scores[:count], others, rule, seeds) is not None:
                    had = count
                    lost += int(order[at]) == best
                    break
            given.append(had)
        trained += sum(given)
    return lost / worlds, 1 - trained / (worlds * len(means) * seeds)


@pytest.mark.parametrize("seeds", [2, 4])
def test_the_best_of_equals_is_given_up_less_often_than_the_risk_says(seeds):
    rule = PruningConfig(risk=0.05)
    lost, saved = simulate(np.zeros(CELLS), np.ones(CELLS), seeds=seeds, rule=rule)
    error = math.sqrt(0.05 * 0.95 / WORLDS)
    assert lost < 0.05 + 2 * error
    assert saved < 0.05


def test_where_points_differ_much_is_saved_and_the_best_is_kept():
    spread = np.ones(CELLS)
    means = -np.linspace(0, 12, CELLS)  # a grid over rates: most points are hopeless
    lost, saved = simulate(means, spread, seeds=3, rule=PruningConfig(risk=0.05))
    assert lost < 0.01
    assert saved > 0.25


def test_a_smaller_risk_is_a_wider_bound():
    behind, others = [0.0], [[3.0, 3.2], [2.8, 3.1], [2.9, 3.3], [2.7, 3.0], [2.0, 2.2]]
    wide, narrow = (decide_pruning(behind, others, PruningConfig(risk=risk), 2) for risk in (0.01, 0.2))
    assert isinstance(narrow, PruningDecision) and isinstance(wide, PruningDecision)
    assert wide.threshold > narrow.threshold
    assert narrow.deficit == pytest.approx(3.1)
    assert decide_pruning([2.5], others, PruningConfig(risk=0.01), 2) is None


def test_nothing_is_given_up_where_the_noise_is_not_known():
    rule = PruningConfig()
    assert decide_pruning([0.0], [[10.0]], rule, 2) is None, "one seed shows no spread"
    assert decide_pruning([0.0], [[10.0, 10.1], [9.0, 9.1]], rule, 2) is None, "two differences are too few"
    assert decide_pruning([], [[1.0, 1.1]] * 9, rule, 2) is None
    assert decide_pruning([0.0, 0.1], [[10.0, 10.1]] * 9, rule, 2) is None, "it has had all its seeds"
    assert decide_pruning([0.0], [[10.0, 10.1]] * 9, PruningConfig(min_seeds=2), 3) is None, (
        "every point is to have two"
    )


def test_the_pooled_std_is_that_within_points():
    spread, freedom = compute_pooled_std([[1.0, 3.0], [101.0, 103.0, 105.0], [7.0]])
    assert freedom == 3
    assert spread == pytest.approx(math.sqrt((2 + 8) / 3))
