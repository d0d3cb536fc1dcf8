"""Pruning under noise: how often the best point is pruned, and how much computation is saved, by simulation."""

import math

import numpy as np
import pytest

from headtohead.config.tables.search import PruningConfig
from headtohead.runner.run_search import DECISION_LAG
from headtohead.search.pruning import PruningDecision, decide_pruning
from headtohead.search.seed_noise import compute_pooled_std

NUM_POINTS = 18
NUM_SIMULATIONS = 600


def simulate_searches(
    means: np.ndarray,
    stds: np.ndarray,
    *,
    num_seeds: int,
    rule: PruningConfig,
    num_simulations: int = NUM_SIMULATIONS,
    seed: int = 0,
) -> tuple[float, float]:
    """Simulate searches over points with given means and standard deviations, in random order.

    Returns how often the best point is pruned, and the fraction of trials saved. As in a search, points are compared
    with points at least DECISION_LAG before them.
    """
    rng = np.random.default_rng(seed)
    best_point, num_best_pruned, num_trials = int(np.argmax(means)), 0, 0
    for _ in range(num_simulations):
        order = rng.permutation(len(means))
        noise = rng.standard_normal((len(means), num_seeds))
        scores_by_point = [list(means[point] + stds[point] * noise[point]) for point in order]
        trained_seeds: list[int] = []
        for number, scores in enumerate(scores_by_point):
            visible_points = range(max(0, number - DECISION_LAG + 1))
            finished_scores = [scores_by_point[point] for point in visible_points if trained_seeds[point] == num_seeds]
            num_trained = num_seeds
            for num_scores in range(rule.min_seeds, num_seeds):
                if decide_pruning(scores[:num_scores], finished_scores, rule, num_seeds) is not None:
                    num_trained = num_scores
                    num_best_pruned += int(order[number]) == best_point
                    break
            trained_seeds.append(num_trained)
        num_trials += sum(trained_seeds)
    return num_best_pruned / num_simulations, 1 - num_trials / (num_simulations * len(means) * num_seeds)


@pytest.mark.parametrize("num_seeds", [2, 4])
def test_the_best_of_equal_points_is_pruned_less_often_than_the_risk(num_seeds):
    rule = PruningConfig(risk=0.05)
    pruned_rate, saved_fraction = simulate_searches(
        np.zeros(NUM_POINTS), np.ones(NUM_POINTS), num_seeds=num_seeds, rule=rule
    )
    standard_error = math.sqrt(0.05 * 0.95 / NUM_SIMULATIONS)
    assert pruned_rate < 0.05 + 2 * standard_error
    assert saved_fraction < 0.05


def test_pruning_saves_trials_if_points_differ_widely():
    means = -np.linspace(0, 12, NUM_POINTS)  # like a grid of learning rates, most of them far too large
    stds = np.ones(NUM_POINTS)
    pruned_rate, saved_fraction = simulate_searches(means, stds, num_seeds=3, rule=PruningConfig(risk=0.05))
    assert pruned_rate < 0.01
    assert saved_fraction > 0.25


def test_a_smaller_risk_has_a_larger_threshold():
    trailing_scores, finished_scores = [0.0], [[3.0, 3.2], [2.8, 3.1], [2.9, 3.3], [2.7, 3.0], [2.0, 2.2]]
    cautious, bold = (
        decide_pruning(trailing_scores, finished_scores, PruningConfig(risk=risk), 2) for risk in (0.01, 0.2)
    )
    assert isinstance(bold, PruningDecision) and isinstance(cautious, PruningDecision)
    assert cautious.threshold > bold.threshold
    assert bold.deficit == pytest.approx(3.1)
    assert decide_pruning([2.5], finished_scores, PruningConfig(risk=0.01), 2) is None


def test_nothing_is_pruned_if_the_noise_is_unknown():
    rule = PruningConfig()
    assert decide_pruning([0.0], [[10.0]], rule, 2) is None, "one seed has no standard deviation"
    assert decide_pruning([0.0], [[10.0, 10.1], [9.0, 9.1]], rule, 2) is None, "two degrees of freedom are too few"
    assert decide_pruning([], [[1.0, 1.1]] * 9, rule, 2) is None
    assert decide_pruning([0.0, 0.1], [[10.0, 10.1]] * 9, rule, 2) is None, "the point already has all its seeds"
    assert decide_pruning([0.0], [[10.0, 10.1]] * 9, PruningConfig(min_seeds=2), 3) is None, (
        "every point gets at least two seeds"
    )


def test_pooled_std_is_the_standard_deviation_within_points():
    std, degrees_of_freedom = compute_pooled_std([[1.0, 3.0], [101.0, 103.0, 105.0], [7.0]])
    assert degrees_of_freedom == 3
    assert std == pytest.approx(math.sqrt((2 + 8) / 3))
