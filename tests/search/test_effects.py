"""Each setting's effect in a search, where the truth is known."""

import itertools
import random

import pytest

from headtohead.config.search import SearchConfig
from headtohead.search.effects import compute_setting_effects, format_value, label_points
from headtohead.search.points import SearchPoint
from headtohead.search.selection_bias import compute_search_history

TRUE = {
    ("training.batch_size", 4): 0.0,
    ("training.batch_size", 8): 0.3,
    ("model.layers", 1): -0.1,
    ("model.layers", 2): 0.1,
}
SPACE = {"training.batch_size": [8, 4], "model.layers": [1, 2], "model.position": ["alibi", "rope", "learned"]}


def played(search: SearchConfig, noise: float, seed: int = 0, keep: float = 1.0) -> list[SearchPoint]:
    draw, points = random.Random(seed), []
    for chosen in itertools.product(*SPACE.values()):
        if draw.random() <= keep:
            settings = dict(zip(SPACE, chosen, strict=True))
            mean = 2 + sum(TRUE.get(pair, 0.0) for pair in settings.items())
            figures = {1000 + at: mean + draw.gauss(0, noise) for at in range(2)}
            points.append(SearchPoint(len(points), settings, 2, figures))
    return points


def test_effects_that_add_up_are_found_exactly_even_where_points_are_missing():
    search = SearchConfig.model_validate({"space": SPACE})
    found = compute_setting_effects(search, played(search, 0.0, keep=0.7), float)
    assert [row.value for row in found["training.batch_size"]] == ["4", "8"], "numbers stand in order"
    low, high = found["training.batch_size"]
    assert high.mean - low.mean == pytest.approx(0.3)
    assert [row.mean for row in found["model.layers"]] == pytest.approx([2.05, 2.25])
    assert [row.mean for row in found["model.position"]] == pytest.approx([2.15] * 3)
    assert all(row.interval == pytest.approx([row.mean] * 2) for rows in found.values() for row in rows)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    search = SearchConfig.model_validate({"space": SPACE})
    inside = 0
    for seed in range(200):
        (_, row) = compute_setting_effects(search, played(search, 0.2, seed), float)["training.batch_size"]
        inside += row.interval[0] <= 2.3 <= row.interval[1]
    assert 0.90 <= inside / 200 <= 0.99


def test_a_range_is_split_into_bins_with_equally_many_points():
    search = SearchConfig.model_validate(
        {"method": "random", "space": {"training.max_grad_norm": {"low": 0.0, "high": 9.0}}, "budget": {"trials": 9}}
    )
    points = [SearchPoint(at, {"training.max_grad_norm": at / 1.0}, 1, {1000: 1.0}) for at in range(9)]
    labels = label_points(search, "training.max_grad_norm", points)
    assert sorted({label[1] for label in labels}) == ["0 to 2", "3 to 5", "6 to 8"]
    assert all(labels.count(label) == 3 for label in labels)


def test_values_have_short_words():
    assert format_value({"kind": "sgd", "lr": 0.1}) == "sgd, lr 0.1"
    assert format_value(["alibi", "rope"]) == "alibi + rope"
    assert (format_value(True), format_value(1e-05), format_value("2 epochs")) == ("true", "1e-05", "2 epochs")


def test_the_history_follows_the_best_point_that_has_all_its_seeds():
    figures = [{1000: 0.5, 1001: 0.5}, {1000: 0.9}, {1000: 0.7, 1001: 0.7}, {}, {1000: 0.6, 1001: 0.6}]
    points = [SearchPoint(at, {}, 2, one) for at, one in enumerate(figures)]
    rows = compute_search_history(points, "accuracy")
    assert [(row.trials, row.best) for row in rows] == [(2, 0.5), (3, 0.5), (5, 0.7), (7, 0.7)]
