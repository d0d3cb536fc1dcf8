"""A new key in the place of one, held against searches that know nothing of the formulas."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from headtohead.key_design.key_replacement import replace_key


def random_problems(count=40):
    for seed in range(count):
        rng = np.random.default_rng(seed)
        n, dims = int(rng.integers(2, 7)), int(rng.integers(2, 6))
        yield rng, rng.normal(size=(n, dims)), rng.normal(size=dims), int(rng.integers(n))


def precision(target, keys, query):
    used = target > 0
    return np.exp(-(target[used] @ (np.log(target[used]) - log_softmax(keys @ query)[used])))


def test_no_key_of_that_length_does_better():
    """Against a search over the sphere of keys, from several starts."""
    for rng, keys, query, at in random_problems(25):
        target = rng.dirichlet(np.ones(len(keys)))
        length = float(rng.uniform(0.1, 3))
        found = replace_key(keys, query, at, weights=target, required_norm=length)
        assert np.linalg.norm(found.key) == pytest.approx(length)
        assert np.allclose(found.weights, softmax(found.keys @ query))
        assert np.array_equal(np.delete(found.keys, at, axis=0), np.delete(keys, at, axis=0))

        def cost(free, keys=keys, at=at, length=length, target=target, query=query):
            changed = keys.copy()
            changed[at] = length * free / np.linalg.norm(free)
            return -np.log(precision(target, changed, query))

        best = min(minimize(cost, rng.normal(size=keys.shape[1])).fun for _ in range(4))
        assert -np.log(found.precision) <= best + 1e-7
        assert -np.log(found.precision) >= best - 1e-2, "and the search comes near to it"
        assert found.precision == pytest.approx(found.best)


def test_without_a_length_the_new_weight_is_the_wanted_one_and_the_key_the_nearest():
    for rng, keys, query, at in random_problems(25):
        target = rng.dirichlet(np.ones(len(keys)))
        found = replace_key(keys, query, at, weights=target)
        assert found.weights[at] == pytest.approx(target[at])
        aside = found.key - keys[at]
        assert np.allclose(aside, (aside @ query) / (query @ query) * query), "moved along the query only"
        assert found.moved == pytest.approx(np.linalg.norm(aside))


def test_weights_that_the_others_already_have_are_met_exactly():
    for rng, keys, query, at in random_problems():
        others = softmax(np.delete(keys @ query, at))
        own = float(rng.uniform(0.05, 0.95))
        target = np.insert((1 - own) * others, at, own)
        found = replace_key(keys, query, at, weights=target)
        assert found.exact and found.attained
        assert found.scale == 1.0
        assert np.allclose(found.weights, target, atol=1e-9)
        off = np.insert((1 - own) * others, at, own) + 1e-4 * (np.arange(len(keys)) - (len(keys) - 1) / 2)
        if len(keys) > 2:
            assert not replace_key(keys, query, at, weights=off).exact, "a difference of 1e-4 is one"


def test_a_query_with_equal_scores_averages_with_the_new_key():
    keys, query = [[2, 1], [2, -1], [0, 5]], [3, 0]
    found = replace_key(keys, query, 2, average=[0, 1, 2])
    assert found.exact and found.attained
    assert np.allclose(found.weights, 1 / 3)
    assert found.key.tolist() == pytest.approx([2, 5])
    short = replace_key(keys, query, 2, average=[0, 1, 2], required_norm=2.5)
    assert short.exact
    assert np.allclose(short.key, [2, 1.5])
    too_short = replace_key(keys, query, 2, average=[0, 1, 2], required_norm=1.0)
    assert not too_short.exact
    assert np.allclose(too_short.key, [1, 0])
    assert "would need a score of 6, but with norm 1 its score lies between -3 and 3" in too_short.reason


def test_a_fourth_key_that_keeps_weight_is_named():
    found = replace_key([[1, 1], [1, -1], [0, 0], [-1, 0]], [4, 0], 2, average=[0, 1, 2])
    assert not found.exact
    assert "key 3 gets" in found.reason and "instead of 0" in found.reason
    assert found.weights[:3].sum() == pytest.approx(1 - found.weights[3])
    assert found.best == pytest.approx(found.precision)


def test_selecting_is_a_limit_without_a_length_and_none_with_it():
    for _, keys, query, at in random_problems():
        free = replace_key(keys, query, at, select=True, precision=0.99)
        assert free.exact and not free.attained
        assert free.weights[at] >= 0.99 * (1 - 1e-9)
        bound = replace_key(keys, query, at, select=True, required_norm=1.0)
        assert not bound.exact
        assert np.allclose(bound.key, query / np.linalg.norm(query)), "along the query: no score is higher"
    already = replace_key([[9, 0], [0, 0]], [1, 0], 0, select=True, precision=0.9)
    assert already.moved == 0, "a key that is good enough stays"


def test_a_key_can_be_pushed_out():
    found = replace_key([[2, 1], [2, -1], [3, 0]], [3, 0], 2, average=[0, 1], precision=0.9999)
    assert found.exact and not found.attained
    assert found.weights[2] <= 1e-4 * (1 + 1e-9)
    assert np.allclose(found.weights[:2], found.weights[0])


def test_the_query_times_the_scale_just_reaches_the_precision():
    checked = 0
    for _, keys, query, at in random_problems(36):
        found = replace_key(keys, query, at, select=True, required_norm=2.0, precision=0.95)
        if found.scale is None:
            others = np.delete(keys @ query, at)
            assert others.max() >= 2 * np.linalg.norm(query), "some key scores higher than any new one can"
            continue
        if found.scale == 1.0:
            assert found.precision >= 0.95
            continue
        checked += 1
        longer = replace_key(keys, found.scale * (1 + 1e-6) * query, at, select=True, required_norm=2.0)
        shorter = replace_key(keys, found.scale * 0.999 * query, at, select=True, required_norm=2.0)
        assert longer.precision >= 0.95 > shorter.precision
    assert checked > 5


def test_a_scale_below_1_is_found_too():
    keys = [[1.0, 0.0], [0.5, 1.0], [0.0, 0.0]]
    found = replace_key(keys, [20, 0], 2, weights=[0.4, 0.3, 0.3], required_norm=1.0)
    assert found.scale is not None and found.scale < 1
    again = replace_key(
        keys, np.array([20, 0]) * found.scale * (1 - 1e-6), 2, weights=[0.4, 0.3, 0.3], required_norm=1.0
    )
    assert again.precision >= 0.999


def test_the_query_0_leaves_every_weight_equal():
    found = replace_key([[1, 0], [0, 1]], [0, 0], 0, average=[0, 1], required_norm=3)
    assert found.exact
    assert found.norm == pytest.approx(3)
    no = replace_key([[1, 0], [0, 1]], [0, 0], 0, select=True)
    assert not no.exact and no.scale is None
    assert no.weights.tolist() == [0.5, 0.5]
    assert "The query is 0" in no.reason


def test_one_dimension_leaves_two_keys_of_a_length():
    found = replace_key([[1], [2]], [1], 0, select=True, required_norm=3)
    assert found.key.tolist() == [3]
    out = replace_key([[1], [2]], [1], 0, average=[1], required_norm=3)
    assert out.key.tolist() == [-3]
    middle = replace_key([[1], [2]], [1], 0, weights=[0.5, 0.5], required_norm=3)
    assert middle.key.tolist() == [3], "3 is nearer to 2 than -3 is"
    assert "its score is -3 or 3" in middle.reason


def test_a_key_along_the_query_can_leave_it():
    """The old key has no direction of its own across the query: some direction is taken."""
    found = replace_key([[1, 0, 0], [2, 1, 0]], [1, 0, 0], 0, weights=[0.5, 0.5], required_norm=5)
    assert found.exact
    assert found.key[0] == pytest.approx(2)
    assert np.linalg.norm(found.key) == pytest.approx(5)


def test_length_0_and_a_single_key():
    zero = replace_key([[1, 0], [0, 1]], [1, 1], 0, select=True, required_norm=0)
    assert zero.key.tolist() == [0, 0]
    alone = replace_key([[1, 0]], [1, 1], 0, select=True)
    assert alone.exact and alone.weights.tolist() == [1.0]
