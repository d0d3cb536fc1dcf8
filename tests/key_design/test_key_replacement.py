"""Replacement keys, compared with numerical searches that do not use the formulas."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from headtohead.key_design.key_replacement import replace_key


def generate_problems(num_problems=40):
    """Yield random (generator, keys, query, index of the key to replace)."""
    for seed in range(num_problems):
        rng = np.random.default_rng(seed)
        num_keys, head_dim = int(rng.integers(2, 7)), int(rng.integers(2, 6))
        yield rng, rng.normal(size=(num_keys, head_dim)), rng.normal(size=head_dim), int(rng.integers(num_keys))


def compute_precision(target, keys, query):
    positive = target > 0
    return np.exp(-(target[positive] @ (np.log(target[positive]) - log_softmax(keys @ query)[positive])))


def test_no_key_of_the_required_norm_does_better():
    """Compared with a search over the sphere of keys from several starts."""
    for rng, keys, query, key_index in generate_problems(25):
        target = rng.dirichlet(np.ones(len(keys)))
        norm = float(rng.uniform(0.1, 3))
        result = replace_key(keys, query, key_index, weights=target, required_norm=norm)
        assert np.linalg.norm(result.key) == pytest.approx(norm)
        assert np.allclose(result.weights, softmax(result.keys @ query))
        assert np.array_equal(np.delete(result.keys, key_index, axis=0), np.delete(keys, key_index, axis=0))

        def compute_loss(direction, keys=keys, key_index=key_index, norm=norm, target=target, query=query):
            new_keys = keys.copy()
            new_keys[key_index] = norm * direction / np.linalg.norm(direction)
            return -np.log(compute_precision(target, new_keys, query))

        best_loss = min(minimize(compute_loss, rng.normal(size=keys.shape[1])).fun for _ in range(4))
        assert -np.log(result.precision) <= best_loss + 1e-7
        assert -np.log(result.precision) >= best_loss - 1e-2, "the search finds a similar optimum"
        assert result.precision == pytest.approx(result.best)


def test_without_a_required_norm_the_closest_key_with_the_target_weight_is_found():
    for rng, keys, query, key_index in generate_problems(25):
        target = rng.dirichlet(np.ones(len(keys)))
        result = replace_key(keys, query, key_index, weights=target)
        assert result.weights[key_index] == pytest.approx(target[key_index])
        shift = result.key - keys[key_index]
        assert np.allclose(shift, (shift @ query) / (query @ query) * query), "moved along the query only"
        assert result.moved == pytest.approx(np.linalg.norm(shift))


def test_targets_with_the_weight_ratios_of_the_other_keys_are_exact():
    for rng, keys, query, key_index in generate_problems():
        other_weights = softmax(np.delete(keys @ query, key_index))
        new_weight = float(rng.uniform(0.05, 0.95))
        target = np.insert((1 - new_weight) * other_weights, key_index, new_weight)
        result = replace_key(keys, query, key_index, weights=target)
        assert result.exact and result.attained
        assert result.scale == 1.0
        assert np.allclose(result.weights, target, atol=1e-9)
        shifted_target = np.insert((1 - new_weight) * other_weights, key_index, new_weight) + 1e-4 * (
            np.arange(len(keys)) - (len(keys) - 1) / 2
        )
        if len(keys) > 2:
            assert not replace_key(keys, query, key_index, weights=shifted_target).exact, (
                "a difference of 1e-4 is detected"
            )


def test_a_key_that_joins_an_average():
    keys, query = [[2, 1], [2, -1], [0, 5]], [3, 0]
    result = replace_key(keys, query, 2, average=[0, 1, 2])
    assert result.exact and result.attained
    assert np.allclose(result.weights, 1 / 3)
    assert result.key.tolist() == pytest.approx([2, 5])
    short = replace_key(keys, query, 2, average=[0, 1, 2], required_norm=2.5)
    assert short.exact
    assert np.allclose(short.key, [2, 1.5])
    too_short = replace_key(keys, query, 2, average=[0, 1, 2], required_norm=1.0)
    assert not too_short.exact
    assert np.allclose(too_short.key, [1, 0])
    assert "would need a score of 6, but with norm 1 its score lies between -3 and 3" in too_short.reason


def test_weight_on_an_unrelated_key_is_reported():
    result = replace_key([[1, 1], [1, -1], [0, 0], [-1, 0]], [4, 0], 2, average=[0, 1, 2])
    assert not result.exact
    assert "key 3 gets" in result.reason and "instead of 0" in result.reason
    assert result.weights[:3].sum() == pytest.approx(1 - result.weights[3])
    assert result.best == pytest.approx(result.precision)


def test_selection_is_exact_only_without_a_required_norm():
    for _, keys, query, key_index in generate_problems():
        unbounded = replace_key(keys, query, key_index, select=True, precision=0.99)
        assert unbounded.exact and not unbounded.attained
        assert unbounded.weights[key_index] >= 0.99 * (1 - 1e-9)
        bounded = replace_key(keys, query, key_index, select=True, required_norm=1.0)
        assert not bounded.exact
        assert np.allclose(bounded.key, query / np.linalg.norm(query)), "the key along the query has the highest score"
    unchanged = replace_key([[9, 0], [0, 0]], [1, 0], 0, select=True, precision=0.9)
    assert unchanged.moved == 0, "a key that reaches the precision is not moved"


def test_a_key_that_must_lose_its_weight():
    result = replace_key([[2, 1], [2, -1], [3, 0]], [3, 0], 2, average=[0, 1], precision=0.9999)
    assert result.exact and not result.attained
    assert result.weights[2] <= 1e-4 * (1 + 1e-9)
    assert np.allclose(result.weights[:2], result.weights[0])


def test_scaled_query_reaches_the_precision():
    num_checked = 0
    for _, keys, query, key_index in generate_problems(36):
        result = replace_key(keys, query, key_index, select=True, required_norm=2.0, precision=0.95)
        if result.scale is None:
            others = np.delete(keys @ query, key_index)
            assert others.max() >= 2 * np.linalg.norm(query), "the score of some key exceeds that of any new key"
            continue
        if result.scale == 1.0:
            assert result.precision >= 0.95
            continue
        num_checked += 1
        longer = replace_key(keys, result.scale * (1 + 1e-6) * query, key_index, select=True, required_norm=2.0)
        shorter = replace_key(keys, result.scale * 0.999 * query, key_index, select=True, required_norm=2.0)
        assert longer.precision >= 0.95 > shorter.precision
    assert num_checked > 5


def test_query_scale_below_1_is_found():
    keys = [[1.0, 0.0], [0.5, 1.0], [0.0, 0.0]]
    result = replace_key(keys, [20, 0], 2, weights=[0.4, 0.3, 0.3], required_norm=1.0)
    assert result.scale is not None and result.scale < 1
    scaled_result = replace_key(
        keys, np.array([20, 0]) * result.scale * (1 - 1e-6), 2, weights=[0.4, 0.3, 0.3], required_norm=1.0
    )
    assert scaled_result.precision >= 0.999


def test_the_zero_query_gives_equal_weights():
    result = replace_key([[1, 0], [0, 1]], [0, 0], 0, average=[0, 1], required_norm=3)
    assert result.exact
    assert result.norm == pytest.approx(3)
    unreachable = replace_key([[1, 0], [0, 1]], [0, 0], 0, select=True)
    assert not unreachable.exact and unreachable.scale is None
    assert unreachable.weights.tolist() == [0.5, 0.5]
    assert "The query is 0" in unreachable.reason


def test_one_dimension_has_two_keys_of_a_given_norm():
    result = replace_key([[1], [2]], [1], 0, select=True, required_norm=3)
    assert result.key.tolist() == [3]
    excluded = replace_key([[1], [2]], [1], 0, average=[1], required_norm=3)
    assert excluded.key.tolist() == [-3]
    balanced = replace_key([[1], [2]], [1], 0, weights=[0.5, 0.5], required_norm=3)
    assert balanced.key.tolist() == [3], "3 is nearer to 2 than -3 is"
    assert "its score is -3 or 3" in balanced.reason


def test_a_key_parallel_to_the_query_gets_an_orthogonal_component():
    """The old key has no component orthogonal to the query, so an arbitrary direction is chosen."""
    result = replace_key([[1, 0, 0], [2, 1, 0]], [1, 0, 0], 0, weights=[0.5, 0.5], required_norm=5)
    assert result.exact
    assert result.key[0] == pytest.approx(2)
    assert np.linalg.norm(result.key) == pytest.approx(5)


def test_norm_0_and_a_single_key():
    zero = replace_key([[1, 0], [0, 1]], [1, 1], 0, select=True, required_norm=0)
    assert zero.key.tolist() == [0, 0]
    single_key = replace_key([[1, 0]], [1, 1], 0, select=True)
    assert single_key.exact and single_key.weights.tolist() == [1.0]
