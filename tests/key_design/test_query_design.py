"""Designed queries, compared with a linear program for separating hyperplanes and with general solvers of scipy."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.sparse import block_diag
from scipy.special import log_softmax, softmax

from headtohead.errors import RequestError
from headtohead.key_design import query_design
from headtohead.key_design.convex_solvers import find_min_norm_point

NUM_KEY_SETS = 500
KEY_SET_KINDS = ("random", "simplex", "inside", "on a face", "duplicates", "grid", "sphere")


def generate_key_sets(num_sets: int = NUM_KEY_SETS) -> Iterator[tuple[str, np.ndarray]]:
    """Return random keys in 2 to 8 dimensions, most with additional keys inside the hull, on a face, or duplicated."""
    for seed in range(num_sets):
        rng = np.random.default_rng(seed)
        kind = KEY_SET_KINDS[seed % len(KEY_SET_KINDS)]
        head_dim = int(rng.integers(2, 9))
        num_keys = int(rng.integers(3, 10))
        keys = rng.normal(size=(min(num_keys, head_dim + 1) if kind == "simplex" else num_keys, head_dim))
        if kind == "sphere":
            keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        if kind == "grid":  # integers: many equal, collinear or coplanar keys without rounding errors
            keys = rng.integers(-1, 2, size=(num_keys, head_dim)).astype(float)
        if kind in ("inside", "on a face"):
            num_mixed = min(num_keys, 2 if kind == "on a face" else head_dim + 1)
            mixtures = [
                rng.dirichlet(np.ones(num_mixed)) @ keys[rng.choice(num_keys, num_mixed, replace=False)]
                for _ in range(3)
            ]
            keys = np.vstack([keys, mixtures])
        if kind == "duplicates":
            keys = np.vstack([keys, keys[rng.choice(num_keys, 2, replace=False)]])
        keys = keys * 10.0 ** rng.uniform(-2, 2) + rng.normal(size=head_dim)
        yield kind, keys[rng.permutation(len(keys))]


def compute_selection_margins(keys: np.ndarray) -> np.ndarray:
    """Return for each key the largest margin by which a direction in the unit cube scores it highest, or 0.

    One linear program for all keys: maximize the sum of t[i] subject to (k[i] - k[j]) @ u[i] >= t[i].
    """
    num_keys, head_dim = keys.shape
    scale = np.abs(keys - keys.mean(axis=0)).max() or 1.0
    blocks = [
        np.hstack([-np.delete(keys[i] - keys, i, axis=0) / scale, np.ones((num_keys - 1, 1))]) for i in range(num_keys)
    ]  # t - (k[i] - k[j]) @ u <= 0
    result = linprog(
        np.tile([0.0] * head_dim + [-1.0], num_keys),
        A_ub=block_diag(blocks, format="csr"),
        b_ub=np.zeros(num_keys * (num_keys - 1)),
        bounds=([(-1.0, 1.0)] * head_dim + [(0.0, None)]) * num_keys,
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert result.success
    return result.x.reshape(num_keys, head_dim + 1)[:, -1]


def test_exactly_the_selectable_keys_are_selected_with_the_required_precision():
    num_selectable = num_unselectable = 0
    for seed, (kind, keys) in enumerate(generate_key_sets()):
        margins = compute_selection_margins(keys)
        assert not ((margins > 1e-8) & (margins < 1e-6)).any(), "every margin is clearly zero or clearly positive"
        required_precision = (0.9, 0.999, 1 - 1e-6)[seed % 3]
        for i, margin in enumerate(margins):
            design = query_design.find_selecting_query(keys, i, precision=required_precision)
            assert design.exact == (margin > 1e-7), f"set {seed} ({kind}), key {i}: {margin}"
            weights = softmax(keys @ design.query)
            assert np.allclose(weights, design.weights, atol=1e-12)
            if design.exact:
                num_selectable += 1
                assert weights[i] >= required_precision * (1 - 1e-12)
                assert design.norm <= design.norm_at_least * (1 + 1e-6) or design.norm < 1e-9
            else:
                num_unselectable += 1
                check_mixture_certificate(design, keys, i)
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "design-by-hand.md").read_text(encoding="utf-8")
    assert f"{num_selectable + num_unselectable:,}, of which {num_selectable:,}" in guide, "the guide states the counts"


def check_mixture_certificate(design, keys, i):
    """Check the proof that key i is a mixture of other keys, so its weight never exceeds one half."""
    scale = np.abs(keys - keys.mean(axis=0)).max() or 1.0
    mixture_weights = -np.delete(design.certificate, i)
    assert design.certificate[i] == pytest.approx(1, abs=1e-8)
    assert (mixture_weights >= -1e-8).all()
    assert mixture_weights.sum() == pytest.approx(1, abs=1e-8)
    assert np.abs(mixture_weights @ np.delete(keys, i, axis=0) - keys[i]).max() <= 1e-8 * scale
    assert design.precision <= design.best * (1 + 1e-12) <= 0.5 + 1e-9


def test_best_weight_on_an_unselectable_key_is_not_beaten_by_a_general_solver():
    num_inexact = 0
    for kind, keys in generate_key_sets(60):
        if kind not in ("inside", "on a face", "duplicates"):
            continue
        scale = np.abs(keys - keys.mean(axis=0)).max()
        normalized_keys = (keys - keys.mean(axis=0)) / scale
        for i in range(len(keys)):
            design = query_design.find_selecting_query(keys, i)
            if design.exact:
                continue
            if not design.attained:
                design = query_design.find_selecting_query(keys, i, precision=1 - 1e-9)
            num_inexact += 1
            reference = minimize(
                lambda query, i=i, keys=normalized_keys: -log_softmax(keys @ query)[i], np.zeros(keys.shape[1])
            )
            assert design.precision >= np.exp(-reference.fun) * (1 - 1e-6)
            assert design.best >= np.exp(-reference.fun) * (1 - 1e-6)
            # The mean key under the best weights is the key itself: the gradient of the log-weight is 0.
            if design.attained:
                assert np.abs(design.weights @ keys - keys[i]).max() <= 1e-8 * scale
    assert num_inexact > 50


@pytest.mark.parametrize("required_precision", [0.6, 0.99, 1 - 1e-8])
def test_query_is_the_shortest_that_reaches_the_precision(required_precision):
    for kind, keys in itertools.islice(generate_key_sets(), 7):
        i = int(np.argmax(compute_selection_margins(keys)))
        design = query_design.find_selecting_query(keys, i, precision=required_precision)
        limit = np.log(1 / required_precision - 1)
        relative_keys = np.delete(keys - keys[i], i, axis=0)

        def compute_slack(query, relative_keys=relative_keys, limit=limit):
            scores = relative_keys @ query
            return limit - scores.max() - np.log(np.exp(scores - scores.max()).sum())

        start = 1.5 * design.query
        reference = minimize(
            lambda query: query @ query,
            start,
            constraints={"type": "ineq", "fun": compute_slack},
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 1000},
        )
        assert compute_slack(design.query) >= -1e-9
        assert design.norm <= np.sqrt(reference.fun) * (1 + 1e-5), kind
        assert design.norm >= design.norm_at_least
        assert design.norm == pytest.approx(design.norm_at_least, rel=1e-8)
        assert softmax(keys @ (0.999 * design.query))[i] < required_precision, (
            "a slightly shorter query does not reach it"
        )


def test_averages_are_exact_if_and_only_if_the_keys_are_a_face():
    """Compared with a separate linear program: equal scores on the subset, lower ones elsewhere."""
    num_exact = num_inexact = 0
    for seed, (_, keys) in enumerate(generate_key_sets(120)):
        rng = np.random.default_rng(seed)
        num_keys, head_dim = keys.shape
        subset_size = int(rng.integers(2, min(num_keys, head_dim) + 1))
        subset = sorted(rng.choice(num_keys, subset_size, replace=False).tolist())
        scale = np.abs(keys - keys.mean(axis=0)).max()
        relative_keys = (keys - keys[subset[0]]) / scale
        others = [j for j in range(num_keys) if j not in subset]
        program = linprog(
            [0.0] * head_dim + [-1.0],
            A_ub=np.array([[*relative_keys[j], 1.0] for j in others]).reshape(-1, head_dim + 1),
            b_ub=np.zeros(len(others)),
            A_eq=np.array([[*relative_keys[j], 0.0] for j in subset]),
            b_eq=np.zeros(len(subset)),
            bounds=[(-1.0, 1.0)] * head_dim + [(0.0, 1.0)],
            method="highs",
        )
        design = query_design.find_averaging_query(keys, subset)
        assert design.exact == (program.x[-1] > 1e-6), f"set {seed}, keys {subset}"
        subset_weights = design.weights[subset]
        if design.exact:
            num_exact += 1
            assert subset_weights.sum() >= 0.999 * (1 - 1e-12)
            assert subset_weights.max() - subset_weights.min() <= 1e-8
            assert design.precision == pytest.approx(subset_weights.sum())
        else:
            num_inexact += 1
            check_dependence_certificate(design)
            assert design.precision <= design.best * (1 + 1e-12) < 1
    assert num_exact > 20
    assert num_inexact > 20


def check_dependence_certificate(design):
    """Check the proof that no query produces the target: coefficients a with a @ keys = 0 and sum(a) = 0.

    a @ log(weights) is 0 for every query, but not for the target.
    """
    coefficients, key_scale = design.certificate, np.abs(design.keys - design.keys.mean(axis=0)).max()
    scale = np.abs(coefficients).max()
    assert abs(coefficients.sum()) <= 1e-8 * scale
    assert np.abs(coefficients @ design.keys).max() <= 1e-7 * scale * max(key_scale, np.abs(design.keys).max())
    is_zero = design.target == 0
    if np.abs(coefficients[is_zero]).max(initial=0) > 1e-9 * scale:
        assert (coefficients[is_zero] <= 1e-9 * scale).all(), "all infinite terms have the same sign"
    else:
        assert abs(coefficients[~is_zero] @ np.log(design.target[~is_zero])) > 1e-9 * scale


def test_the_zero_query_averages_all_keys():
    for _, keys in generate_key_sets(30):
        design = query_design.find_averaging_query(keys)
        assert design.exact and design.attained
        assert design.norm == 0
        assert np.allclose(design.weights, 1 / len(keys))


def test_reachable_weights_are_reproduced():
    for seed, (_, keys) in enumerate(generate_key_sets(60)):
        rng = np.random.default_rng(seed)
        scale = np.abs(keys - keys.mean(axis=0)).max()
        query = rng.normal(size=keys.shape[1]) * 3 / scale
        target = softmax(keys @ query)
        design = query_design.find_query_for_weights(keys, target)
        assert design.exact and design.attained
        assert np.abs(design.weights - target).max() < 1e-8
        assert design.norm <= np.linalg.norm(query) * (1 + 1e-8), "no longer than needed"
        assert query_design.find_query_for_weights(keys, target, precision=0.99).norm < design.norm


def test_unreachable_weights_are_approximated_with_a_proof():
    num_inexact = 0
    for seed, (_, keys) in enumerate(generate_key_sets(60)):
        target = np.random.default_rng(seed).dirichlet(np.ones(len(keys)))
        design = query_design.find_query_for_weights(keys, target)
        if len(keys) <= keys.shape[1] + 1 and np.linalg.matrix_rank(keys - keys.mean(axis=0)) == len(keys) - 1:
            assert design.exact, "affinely independent keys can have any weights"
            assert np.abs(design.weights - target).max() < 1e-9
        if not design.exact:
            num_inexact += 1
            check_dependence_certificate(design)
            scale = np.abs(keys - keys.mean(axis=0)).max()
            assert design.attained, "a target without zeros has a finite best query"
            assert np.abs((design.weights - target) @ keys).max() <= 1e-8 * scale
            reference = minimize(
                lambda query, keys=keys, scale=scale, target=target: -target @ log_softmax(keys @ query / scale),
                np.zeros(keys.shape[1]),
            )
            entropy = -target @ np.log(target)
            assert design.precision >= np.exp(entropy - reference.fun) * (1 - 1e-6)
    assert num_inexact > 20


def test_weights_with_zeros_are_approached_if_the_other_keys_are_a_face():
    square = [[0, 0], [2, 0], [0, 2], [2, 2], [1, 1]]
    edge = query_design.find_query_for_weights(square, [0.7, 0.3, 0, 0, 0], precision=1 - 1e-6)
    assert edge.exact and not edge.attained
    assert edge.face == (0, 1)
    assert edge.weights[0] / edge.weights[1] == pytest.approx(7 / 3, rel=1e-6)
    assert edge.weights[2:].sum() <= 1e-6
    diagonal = query_design.find_query_for_weights(square, [0.7, 0, 0, 0.3, 0])
    assert not diagonal.exact
    assert diagonal.face == (0, 1, 2, 3, 4)
    check_dependence_certificate(diagonal)
    three_on_an_edge = query_design.find_query_for_weights([[0, 0], [1, 0], [2, 0], [1, 1]], [0.5, 0.2, 0.3, 0])
    assert not three_on_an_edge.exact and not three_on_an_edge.attained
    assert three_on_an_edge.face == (0, 1, 2)
    check_dependence_certificate(three_on_an_edge)
    assert "The keys are affinely dependent" in three_on_an_edge.reason


def test_the_midpoint_of_an_edge_gets_at_most_a_third():
    design = query_design.find_selecting_query([[0, 0], [1, 0], [2, 0], [1, 1]], 1)
    assert not design.exact and not design.attained
    assert design.best == pytest.approx(1 / 3)
    assert design.precision == pytest.approx(0.999 / 3)
    assert design.face == (0, 1, 2)
    assert "it equals 0.5 key 0 + 0.5 key 2" in design.reason


def test_precision_increases_along_the_given_direction():
    for _, keys in generate_key_sets(20):
        for i in range(len(keys)):
            design = query_design.find_selecting_query(keys, i)
            if design.direction is None:
                continue
            scale = np.abs(keys - keys.mean(axis=0)).max()
            weights = softmax(keys @ (design.query + 1e4 / scale * design.direction))
            assert weights[i] == pytest.approx(design.best, abs=1e-6)
            gap = (keys[list(design.face)] @ design.direction).min() - np.delete(
                keys @ design.direction, list(design.face)
            ).max(initial=-np.inf)
            assert gap >= design.margin * (1 - 1e-6)


def test_similarity_transforms_of_the_keys_only_scale_the_query():
    rng = np.random.default_rng(3)
    keys = rng.normal(size=(7, 4))
    keys[6] = keys[:5].mean(axis=0)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    for i in range(7):
        original = query_design.find_selecting_query(keys, i)
        transformed = query_design.find_selecting_query(1e3 * keys @ rotation + rng.normal(size=4), i)
        assert original.exact == transformed.exact
        assert np.allclose(original.weights, transformed.weights, atol=1e-8)
        assert transformed.norm == pytest.approx(original.norm / 1e3, rel=1e-6)


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6, 1e-8])
def test_a_key_slightly_outside_the_hull_is_selected_by_a_long_query(distance):
    keys = np.vstack([2 * np.eye(3), np.zeros(3), np.full(3, 2 / 3) + distance / np.sqrt(3)])
    design = query_design.find_selecting_query(keys, 4)
    assert design.exact
    assert design.margin == pytest.approx(distance, rel=1e-4)
    assert softmax(keys @ design.query)[4] >= 0.999
    assert design.norm == pytest.approx(np.log(999 * 3) / distance, rel=1e-3)
    assert design.norm == pytest.approx(design.norm_at_least, rel=1e-5)


@pytest.mark.parametrize("distance", [5e-10, 1e-12, 0, -1e-12, -1e-6])
def test_keys_closer_to_the_hull_than_the_tolerance_count_as_inside(distance):
    keys = np.vstack([2 * np.eye(3), np.zeros(3), np.full(3, 2 / 3) + distance / np.sqrt(3)])
    design = query_design.find_selecting_query(keys, 4)
    assert not design.exact
    assert design.best == pytest.approx(0.25, abs=1e-5)
    assert design.tolerance == pytest.approx(1.65e-9, rel=0.01)
    assert ("below the tolerance 1.6e-09" in design.reason) == (distance > 1e-11)
    if distance > 1e-11:
        assert "Otherwise no query" in design.reason
        assert query_design.find_selecting_query(keys, 4, tolerance=1e-11).exact


def test_equal_keys_share_their_weight():
    design = query_design.find_selecting_query([[1, 0], [0, 1], [1, 0]], 2)
    assert not design.exact
    assert design.best == pytest.approx(0.5)
    assert design.reason.startswith("Keys 2 and 0 are equal")
    assert query_design.find_averaging_query([[1, 0], [0, 1], [1, 0]], [0, 2]).exact
    equal_keys = query_design.find_query_for_weights([[1, 2]] * 3, [0.5, 0.3, 0.2])
    assert not equal_keys.exact and equal_keys.norm == 0
    assert np.allclose(equal_keys.weights, 1 / 3)


def test_a_single_key_has_all_the_weight():
    design = query_design.find_selecting_query([[3, 4]], 0)
    assert design.exact and design.attained
    assert design.norm == 0
    assert design.weights.tolist() == [1.0]


def test_identity_is_exact_if_every_key_is_a_vertex():
    keys = np.random.default_rng(0).normal(size=(6, 3))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    design = query_design.find_identity_queries(keys, precision=0.9999)
    assert design.exact
    assert design.query.shape == keys.shape
    assert np.abs(softmax(design.query @ keys.T, axis=1) - np.eye(6)).max() <= 1e-4
    inexact_design = query_design.find_identity_queries(np.vstack([keys, keys.mean(axis=0)]))
    assert not inexact_design.exact
    assert inexact_design.reason.startswith("Key 6 cannot be selected")
    assert [row.exact for row in inexact_design.rows] == [True] * 6 + [False]


def test_values_give_the_output_and_the_target_output():
    keys, values = [[1, 0], [0, 1], [-1, -1]], [[10, 0], [20, 0], [30, 1]]
    design = query_design.find_averaging_query(keys, [0, 1], values=values, precision=1 - 1e-9)
    assert design.wanted.tolist() == [15, 0]
    assert np.allclose(design.output, [15, 0], atol=1e-6)
    assert np.allclose(query_design.find_identity_queries(keys, values=values).wanted, values)


def test_extreme_scales_and_offsets_of_keys():
    rng = np.random.default_rng(1)
    for scale, offset in ((1e150, 0), (1e-150, 0), (1, 1e6), (1e8, 1e3)):
        keys = scale * rng.normal(size=(6, 3)) + offset
        for i in np.flatnonzero(compute_selection_margins(keys / scale) > 1e-3):
            design = query_design.find_selecting_query(keys, int(i))
            assert design.exact
            assert softmax(keys @ design.query)[i] >= 0.999 * (1 - 1e-9)
    wide_keys = rng.normal(size=(200, 64))
    assert query_design.find_selecting_query(wide_keys, 17).exact
    keys_with_mean = np.vstack([wide_keys, wide_keys.mean(axis=0)])
    assert not query_design.find_selecting_query(keys_with_mean, 200).exact


def test_keys_too_close_for_any_query_are_rejected():
    with pytest.raises(RequestError, match="too little for a finite query to separate them"):
        query_design.find_selecting_query([[1e-320, 0], [0, 1e-320]], 0)


def test_tiny_target_weights_do_not_disturb_the_others():
    """Weights far below rounding have no usable gradient; the remaining weights must still be correct."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        keys = rng.normal(size=(8, 5))
        target = rng.dirichlet(np.full(8, 0.05))
        design = query_design.find_query_for_weights(keys, target)
        assert design.precision >= np.exp(-target[target > 0] @ np.log(8 * target[target > 0])), (
            "better than the zero query"
        )
        assert np.abs((design.weights - target) @ keys).max() < (1e-8 if design.attained else 1e-2)


def test_bounds_on_the_min_norm_point_are_tight():
    rng = np.random.default_rng(5)
    for _ in range(50):
        points = rng.normal(size=(8, 4)) + rng.normal(size=4)
        min_norm_point = find_min_norm_point(points)
        assert (min_norm_point.weights >= 0).all()
        assert np.allclose(min_norm_point.weights @ points, min_norm_point.point, atol=1e-12)
        assert min_norm_point.norm_lower_bound <= min_norm_point.norm + 1e-14
        if min_norm_point.norm > 1e-12:
            assert min_norm_point.norm - min_norm_point.norm_lower_bound <= 1e-12
