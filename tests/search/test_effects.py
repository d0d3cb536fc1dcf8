"""Estimated effects of settings in simulated searches with known effects."""

import itertools
import random

import pytest

from headtohead.config.tables.search import SearchConfig
from headtohead.search.effects import compute_setting_effects, format_value_label, label_points
from headtohead.search.points import SearchPoint
from headtohead.search.search_findings import compute_search_history

TRUE_EFFECTS = {
    ("training.batch_size", 4): 0.0,
    ("training.batch_size", 8): 0.3,
    ("model.layers", 1): -0.1,
    ("model.layers", 2): 0.1,
}
SPACE = {"training.batch_size": [8, 4], "model.layers": [1, 2], "model.position": ["alibi", "rope", "learned"]}


def simulate_points(noise_std: float, seed: int = 0, fraction: float = 1.0) -> list[SearchPoint]:
    """Return a random fraction of the grid, with two noisy scores per point."""
    rng, points = random.Random(seed), []
    for combination in itertools.product(*SPACE.values()):
        if rng.random() <= fraction:
            settings = dict(zip(SPACE, combination, strict=True))
            mean = 2 + sum(TRUE_EFFECTS.get(setting_and_value, 0.0) for setting_and_value in settings.items())
            seed_scores = {1000 + index: mean + rng.gauss(0, noise_std) for index in range(2)}
            points.append(SearchPoint(len(points), settings, 2, seed_scores))
    return points


def test_additive_effects_are_exact_even_if_points_are_missing():
    search = SearchConfig.model_validate({"space": SPACE})
    setting_effects = compute_setting_effects(search, simulate_points(0.0, fraction=0.7), float)
    assert [effect.value for effect in setting_effects["training.batch_size"]] == ["4", "8"], "numbers are sorted"
    low, high = setting_effects["training.batch_size"]
    assert high.mean - low.mean == pytest.approx(0.3)
    assert [effect.mean for effect in setting_effects["model.layers"]] == pytest.approx([2.05, 2.25])
    assert [effect.mean for effect in setting_effects["model.position"]] == pytest.approx([2.15] * 3)
    all_effects = [effect for effects in setting_effects.values() for effect in effects]
    assert all(effect.interval == pytest.approx([effect.mean] * 2) for effect in all_effects)


def test_intervals_have_their_nominal_coverage():
    search = SearchConfig.model_validate({"space": SPACE})
    num_covered = 0
    for seed in range(200):
        (_, effect) = compute_setting_effects(search, simulate_points(0.2, seed), float)["training.batch_size"]
        num_covered += effect.interval[0] <= 2.3 <= effect.interval[1]
    assert 0.90 <= num_covered / 200 <= 0.99


def test_a_range_is_split_into_bins_with_equally_many_points():
    search = SearchConfig.model_validate(
        {"method": "random", "space": {"training.max_grad_norm": {"low": 0.0, "high": 9.0}}, "budget": "9 trials"}
    )
    points = [SearchPoint(number, {"training.max_grad_norm": number / 1.0}, 1, {1000: 1.0}) for number in range(9)]
    labels = label_points(search, "training.max_grad_norm", points)
    assert sorted({label[1] for label in labels}) == ["0 to 2", "3 to 5", "6 to 8"]
    assert all(labels.count(label) == 3 for label in labels)


def test_values_have_short_labels():
    assert format_value_label({"kind": "sgd", "lr": 0.1}) == "sgd, lr 0.1"
    assert format_value_label(["alibi", "rope"]) == "alibi + rope"
    assert (format_value_label(True), format_value_label(1e-05), format_value_label("2 epochs")) == (
        "true",
        "1e-05",
        "2 epochs",
    )


def test_history_follows_the_best_point_with_all_its_seeds():
    seed_scores_by_point = [{1000: 0.5, 1001: 0.5}, {1000: 0.9}, {1000: 0.7, 1001: 0.7}, {}, {1000: 0.6, 1001: 0.6}]
    points = [SearchPoint(number, {}, 2, seed_scores) for number, seed_scores in enumerate(seed_scores_by_point)]
    history = compute_search_history(points, "accuracy")
    assert [(entry.trials, entry.best) for entry in history] == [(2, 0.5), (3, 0.5), (5, 0.7), (7, 0.7)]
