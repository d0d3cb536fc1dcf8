"""Queries by hand, held against a separating-hyperplane program of their own and against scipy's general solvers."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog, minimize
from scipy.sparse import block_diag
from scipy.special import log_softmax, softmax

from headtohead.errors import RequestError
from headtohead.key_design import solve
from headtohead.key_design.solvers import find_min_norm_point

SETS = 500
KINDS = ("cloud", "simplex", "inside", "on a face", "twins", "grid", "sphere")


def key_sets(count: int = SETS) -> Iterator[tuple[str, np.ndarray]]:
    """Random keys in 2 to 8 dimensions, most of them with keys that are put inside, on a face, or on one another."""
    for seed in range(count):
        rng = np.random.default_rng(seed)
        kind, dims = KINDS[seed % len(KINDS)], int(rng.integers(2, 9))
        n = int(rng.integers(3, 10))
        keys = rng.normal(size=(min(n, dims + 1) if kind == "simplex" else n, dims))
        if kind == "sphere":
            keys /= np.linalg.norm(keys, axis=1, keepdims=True)
        if kind == "grid":  # whole numbers: many equal, on one line, on one face, all without rounding
            keys = rng.integers(-1, 2, size=(n, dims)).astype(float)
        if kind in ("inside", "on a face"):
            mixed = min(n, 2 if kind == "on a face" else dims + 1)
            new = [rng.dirichlet(np.ones(mixed)) @ keys[rng.choice(n, mixed, replace=False)] for _ in range(3)]
            keys = np.vstack([keys, new])
        if kind == "twins":
            keys = np.vstack([keys, keys[rng.choice(n, 2, replace=False)]])
        keys = keys * 10.0 ** rng.uniform(-2, 2) + rng.normal(size=dims)
        yield kind, keys[rng.permutation(len(keys))]


def separations(keys: np.ndarray) -> np.ndarray:
    """For each key, by how much some direction within the unit cube puts it above all others: 0 if none does.

    One linear program for all keys: maximise the sum of t[i] with (k[i] - k[j]) @ u[i] >= t[i].
    """
    n, dims = keys.shape
    size = np.abs(keys - keys.mean(axis=0)).max() or 1.0
    blocks = [
        np.hstack([-np.delete(keys[i] - keys, i, axis=0) / size, np.ones((n - 1, 1))]) for i in range(n)
    ]  # t - (k[i] - k[j]) @ u <= 0
    found = linprog(
        np.tile([0.0] * dims + [-1.0], n),
        A_ub=block_diag(blocks, format="csr"),
        b_ub=np.zeros(n * (n - 1)),
        bounds=([(-1.0, 1.0)] * dims + [(0.0, None)]) * n,
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert found.success
    return found.x.reshape(n, dims + 1)[:, -1]


def test_exactly_the_selectable_keys_of_500_sets_are_selected_to_the_wanted_precision():
    selectable = refused = 0
    for seed, (kind, keys) in enumerate(key_sets()):
        apart = separations(keys)
        assert not ((apart > 1e-8) & (apart < 1e-6)).any(), "a set too near to call is no test"
        wanted = (0.9, 0.999, 1 - 1e-6)[seed % 3]
        for i, separation in enumerate(apart):
            found = solve.find_selecting_query(keys, i, precision=wanted)
            assert found.exact == (separation > 1e-7), f"set {seed} ({kind}), key {i}: {separation}"
            weights = softmax(keys @ found.query)
            assert np.allclose(weights, found.weights, atol=1e-12)
            if found.exact:
                selectable += 1
                assert weights[i] >= wanted * (1 - 1e-12)
                assert found.norm <= found.norm_at_least * (1 + 1e-6) or found.norm < 1e-9
            else:
                refused += 1
                proves_that_it_is_a_mixture(found, keys, i)
    guide = (Path(__file__).parents[2] / "docs" / "how-to" / "design-by-hand.md").read_text(encoding="utf-8")
    assert f"{selectable + refused:,}, of which {selectable:,}" in guide, "the guide tells what was found"


def proves_that_it_is_a_mixture(found, keys, i):
    """The key is a mean of others, so its score never exceeds theirs and its weight never exceeds a half."""
    size = np.abs(keys - keys.mean(axis=0)).max() or 1.0
    shares = -np.delete(found.certificate, i)
    assert found.certificate[i] == pytest.approx(1, abs=1e-8)
    assert (shares >= -1e-8).all()
    assert shares.sum() == pytest.approx(1, abs=1e-8)
    assert np.abs(shares @ np.delete(keys, i, axis=0) - keys[i]).max() <= 1e-8 * size
    assert found.precision <= found.best * (1 + 1e-12) <= 0.5 + 1e-9


def test_the_best_weight_on_a_key_that_cannot_be_selected_is_not_beaten_by_a_general_solver():
    tried = 0
    for kind, keys in key_sets(60):
        if kind not in ("inside", "on a face", "twins"):
            continue
        size = np.abs(keys - keys.mean(axis=0)).max()
        rows = (keys - keys.mean(axis=0)) / size
        for i in range(len(keys)):
            found = solve.find_selecting_query(keys, i)
            if found.exact:
                continue
            if not found.attained:
                found = solve.find_selecting_query(keys, i, precision=1 - 1e-9)
            tried += 1
            other = minimize(lambda q, i=i, rows=rows: -log_softmax(rows @ q)[i], np.zeros(rows.shape[1]))
            assert found.precision >= np.exp(-other.fun) * (1 - 1e-6)
            assert found.best >= np.exp(-other.fun) * (1 - 1e-6)
            # The mean key under the best weights is the key itself: the slope of the weight's logarithm is 0.
            if found.attained:
                assert np.abs(found.weights @ keys - keys[i]).max() <= 1e-8 * size
    assert tried > 50


@pytest.mark.parametrize("wanted", [0.6, 0.99, 1 - 1e-8])
def test_the_query_is_the_shortest_that_reaches_the_precision(wanted):
    for kind, keys in itertools.islice(key_sets(), 7):
        i = int(np.argmax(separations(keys)))
        ours = solve.find_selecting_query(keys, i, precision=wanted)
        limit = np.log(1 / wanted - 1)
        others = np.delete(keys - keys[i], i, axis=0)

        def room(q, others=others, limit=limit):
            scores = others @ q
            return limit - scores.max() - np.log(np.exp(scores - scores.max()).sum())

        start = 1.5 * ours.query
        theirs = minimize(
            lambda q: q @ q,
            start,
            constraints={"type": "ineq", "fun": room},
            method="SLSQP",
            options={"ftol": 1e-13, "maxiter": 1000},
        )
        assert room(ours.query) >= -1e-9
        assert ours.norm <= np.sqrt(theirs.fun) * (1 + 1e-5), kind
        assert ours.norm >= ours.norm_at_least
        assert ours.norm == pytest.approx(ours.norm_at_least, rel=1e-8)
        assert softmax(keys @ (0.999 * ours.query))[i] < wanted, "a little shorter is too short"


def test_averages_are_exact_where_the_keys_are_a_face_and_only_there():
    """Against a program of its own: equal scores on the subset, lower ones elsewhere."""
    yes = no = 0
    for seed, (_, keys) in enumerate(key_sets(120)):
        rng = np.random.default_rng(seed)
        n, dims = keys.shape
        subset = sorted(rng.choice(n, int(rng.integers(2, min(n, dims) + 1)), replace=False).tolist())
        size = np.abs(keys - keys.mean(axis=0)).max()
        rows = (keys - keys[subset[0]]) / size
        others = [j for j in range(n) if j not in subset]
        program = linprog(
            [0.0] * dims + [-1.0],
            A_ub=np.array([[*rows[j], 1.0] for j in others]).reshape(-1, dims + 1),
            b_ub=np.zeros(len(others)),
            A_eq=np.array([[*rows[j], 0.0] for j in subset]),
            b_eq=np.zeros(len(subset)),
            bounds=[(-1.0, 1.0)] * dims + [(0.0, 1.0)],
            method="highs",
        )
        found = solve.find_averaging_query(keys, subset)
        assert found.exact == (program.x[-1] > 1e-6), f"set {seed}, keys {subset}"
        inside = found.weights[subset]
        if found.exact:
            yes += 1
            assert inside.sum() >= 0.999 * (1 - 1e-12)
            assert inside.max() - inside.min() <= 1e-8
            assert found.precision == pytest.approx(inside.sum())
        else:
            no += 1
            proves_that_no_query_yields(found)
            assert found.precision <= found.best * (1 + 1e-12) < 1
    assert yes > 20
    assert no > 20


def proves_that_no_query_yields(found):
    """Coefficients with a @ keys = 0 and sum(a) = 0: a @ log(weights) is 0 for every query, but not for the target."""
    proof, size = found.certificate, np.abs(found.keys - found.keys.mean(axis=0)).max()
    scale = np.abs(proof).max()
    assert abs(proof.sum()) <= 1e-8 * scale
    assert np.abs(proof @ found.keys).max() <= 1e-7 * scale * max(size, np.abs(found.keys).max())
    zeros = found.target == 0
    if np.abs(proof[zeros]).max(initial=0) > 1e-9 * scale:
        assert (proof[zeros] <= 1e-9 * scale).all(), "log 0 comes in with one sign only: the sum is infinite"
    else:
        assert abs(proof[~zeros] @ np.log(found.target[~zeros])) > 1e-9 * scale


def test_the_average_of_all_keys_is_the_query_0():
    for _, keys in key_sets(30):
        found = solve.find_averaging_query(keys)
        assert found.exact and found.attained
        assert found.norm == 0
        assert np.allclose(found.weights, 1 / len(keys))


def test_weights_that_some_query_yields_are_found_again():
    for seed, (_, keys) in enumerate(key_sets(60)):
        rng = np.random.default_rng(seed)
        size = np.abs(keys - keys.mean(axis=0)).max()
        query = rng.normal(size=keys.shape[1]) * 3 / size
        target = softmax(keys @ query)
        found = solve.find_query_for_weights(keys, target)
        assert found.exact and found.attained
        assert np.abs(found.weights - target).max() < 1e-8
        assert found.norm <= np.linalg.norm(query) * (1 + 1e-8), "and no longer than needed"
        assert solve.find_query_for_weights(keys, target, precision=0.99).norm < found.norm


def test_weights_that_no_query_yields_get_the_nearest_and_a_proof():
    tried = 0
    for seed, (_, keys) in enumerate(key_sets(60)):
        target = np.random.default_rng(seed).dirichlet(np.ones(len(keys)))
        found = solve.find_query_for_weights(keys, target)
        if len(keys) <= keys.shape[1] + 1 and np.linalg.matrix_rank(keys - keys.mean(axis=0)) == len(keys) - 1:
            assert found.exact, "keys in general position, few enough, can have any weights"
            assert np.abs(found.weights - target).max() < 1e-9
        if not found.exact:
            tried += 1
            proves_that_no_query_yields(found)
            size = np.abs(keys - keys.mean(axis=0)).max()
            assert found.attained, "a target without zeros lies inside"
            assert np.abs((found.weights - target) @ keys).max() <= 1e-8 * size
            other = minimize(
                lambda q, keys=keys, size=size, target=target: -target @ log_softmax(keys @ q / size),
                np.zeros(keys.shape[1]),
            )
            entropy = -target @ np.log(target)
            assert found.precision >= np.exp(entropy - other.fun) * (1 - 1e-6)
    assert tried > 20


def test_weights_with_zeros_need_a_face_and_keep_their_shares():
    square = [[0, 0], [2, 0], [0, 2], [2, 2], [1, 1]]
    edge = solve.find_query_for_weights(square, [0.7, 0.3, 0, 0, 0], precision=1 - 1e-6)
    assert edge.exact and not edge.attained
    assert edge.face == (0, 1)
    assert edge.weights[0] / edge.weights[1] == pytest.approx(7 / 3, rel=1e-6)
    assert edge.weights[2:].sum() <= 1e-6
    diagonal = solve.find_query_for_weights(square, [0.7, 0, 0, 0.3, 0])
    assert not diagonal.exact
    assert diagonal.face == (0, 1, 2, 3, 4)
    proves_that_no_query_yields(diagonal)
    three_on_an_edge = solve.find_query_for_weights([[0, 0], [1, 0], [2, 0], [1, 1]], [0.5, 0.2, 0.3, 0])
    assert not three_on_an_edge.exact and not three_on_an_edge.attained
    assert three_on_an_edge.face == (0, 1, 2)
    proves_that_no_query_yields(three_on_an_edge)
    assert "The keys are affinely dependent" in three_on_an_edge.reason


def test_the_middle_of_an_edge_gets_a_third_at_most():
    found = solve.find_selecting_query([[0, 0], [1, 0], [2, 0], [1, 1]], 1)
    assert not found.exact and not found.attained
    assert found.best == pytest.approx(1 / 3)
    assert found.precision == pytest.approx(0.999 / 3)
    assert found.face == (0, 1, 2)
    assert "it equals 0.5 key 0 + 0.5 key 2" in found.reason


def test_longer_queries_come_nearer_along_the_given_direction():
    for _, keys in key_sets(20):
        for i in range(len(keys)):
            found = solve.find_selecting_query(keys, i)
            if found.direction is None:
                continue
            size = np.abs(keys - keys.mean(axis=0)).max()
            far = softmax(keys @ (found.query + 1e4 / size * found.direction))
            assert far[i] == pytest.approx(found.best, abs=1e-6)
            gap = (keys[list(found.face)] @ found.direction).min() - np.delete(
                keys @ found.direction, list(found.face)
            ).max(initial=-np.inf)
            assert gap >= found.margin * (1 - 1e-6)


def test_moving_turning_and_scaling_keys_changes_nothing_but_the_scale_of_the_query():
    rng = np.random.default_rng(3)
    keys = rng.normal(size=(7, 4))
    keys[6] = keys[:5].mean(axis=0)
    turn = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    for i in range(7):
        one, other = (
            solve.find_selecting_query(keys, i),
            solve.find_selecting_query(1e3 * keys @ turn + rng.normal(size=4), i),
        )
        assert one.exact == other.exact
        assert np.allclose(one.weights, other.weights, atol=1e-8)
        assert other.norm == pytest.approx(one.norm / 1e3, rel=1e-6)


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6, 1e-8])
def test_a_key_that_hardly_stands_out_is_selected_by_a_long_query(distance):
    keys = np.vstack([2 * np.eye(3), np.zeros(3), np.full(3, 2 / 3) + distance / np.sqrt(3)])
    found = solve.find_selecting_query(keys, 4)
    assert found.exact
    assert found.margin == pytest.approx(distance, rel=1e-4)
    assert softmax(keys @ found.query)[4] >= 0.999
    assert found.norm == pytest.approx(np.log(999 * 3) / distance, rel=1e-3)
    assert found.norm == pytest.approx(found.norm_at_least, rel=1e-5)


@pytest.mark.parametrize("distance", [5e-10, 1e-12, 0, -1e-12, -1e-6])
def test_nearer_than_the_tolerance_counts_as_touching_and_says_so(distance):
    keys = np.vstack([2 * np.eye(3), np.zeros(3), np.full(3, 2 / 3) + distance / np.sqrt(3)])
    found = solve.find_selecting_query(keys, 4)
    assert not found.exact
    assert found.best == pytest.approx(0.25, abs=1e-5)
    assert found.tolerance == pytest.approx(1.65e-9, rel=0.01)
    assert ("below the tolerance 1.6e-09" in found.reason) == (distance > 1e-11)
    if distance > 1e-11:
        assert "Otherwise no query" in found.reason
        assert solve.find_selecting_query(keys, 4, tolerance=1e-11).exact


def test_equal_keys_share_their_weight():
    found = solve.find_selecting_query([[1, 0], [0, 1], [1, 0]], 2)
    assert not found.exact
    assert found.best == pytest.approx(0.5)
    assert found.reason.startswith("Keys 2 and 0 are equal")
    assert solve.find_averaging_query([[1, 0], [0, 1], [1, 0]], [0, 2]).exact
    same = solve.find_query_for_weights([[1, 2]] * 3, [0.5, 0.3, 0.2])
    assert not same.exact and same.norm == 0
    assert np.allclose(same.weights, 1 / 3)


def test_one_key_has_all_the_weight():
    found = solve.find_selecting_query([[3, 4]], 0)
    assert found.exact and found.attained
    assert found.norm == 0
    assert found.weights.tolist() == [1.0]


def test_the_identity_is_exact_where_every_key_is_a_corner():
    keys = np.random.default_rng(0).normal(size=(6, 3))
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    found = solve.find_identity_queries(keys, precision=0.9999)
    assert found.exact
    assert found.query.shape == keys.shape
    assert np.abs(softmax(found.query @ keys.T, axis=1) - np.eye(6)).max() <= 1e-4
    broken = solve.find_identity_queries(np.vstack([keys, keys.mean(axis=0)]))
    assert not broken.exact
    assert broken.reason.startswith("Key 6 cannot be selected")
    assert [row.exact for row in broken.rows] == [True] * 6 + [False]


def test_values_give_the_output_and_the_wanted_one():
    keys, values = [[1, 0], [0, 1], [-1, -1]], [[10, 0], [20, 0], [30, 1]]
    found = solve.find_averaging_query(keys, [0, 1], values=values, precision=1 - 1e-9)
    assert found.wanted.tolist() == [15, 0]
    assert np.allclose(found.output, [15, 0], atol=1e-6)
    assert np.allclose(solve.find_identity_queries(keys, values=values).wanted, values)


def test_large_and_far_away_keys_are_handled():
    rng = np.random.default_rng(1)
    for scale, offset in ((1e150, 0), (1e-150, 0), (1, 1e6), (1e8, 1e3)):
        keys = scale * rng.normal(size=(6, 3)) + offset
        for i in np.flatnonzero(separations(keys / scale) > 1e-3):
            found = solve.find_selecting_query(keys, int(i))
            assert found.exact
            assert softmax(keys @ found.query)[i] >= 0.999 * (1 - 1e-9)
    wide = rng.normal(size=(200, 64))
    assert solve.find_selecting_query(wide, 17).exact
    inside = np.vstack([wide, wide.mean(axis=0)])
    assert not solve.find_selecting_query(inside, 200).exact


def test_keys_too_close_for_any_query_are_refused_in_words():
    with pytest.raises(RequestError, match="too little for a finite query to separate them"):
        solve.find_selecting_query([[1e-320, 0], [0, 1e-320]], 0)


def test_tiny_weights_in_a_target_do_not_lead_astray():
    """Weights far below rounding have no slope that could be followed; the rest must still be right."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        keys = rng.normal(size=(8, 5))
        target = rng.dirichlet(np.full(8, 0.05))
        found = solve.find_query_for_weights(keys, target)
        assert found.precision >= np.exp(-target[target > 0] @ np.log(8 * target[target > 0])), "better than query 0"
        assert np.abs((found.weights - target) @ keys).max() < (1e-8 if found.attained else 1e-2)


def test_the_nearest_point_has_bounds_that_meet():
    rng = np.random.default_rng(5)
    for _ in range(50):
        rows = rng.normal(size=(8, 4)) + rng.normal(size=4)
        found = find_min_norm_point(rows)
        assert (found.shares >= 0).all()
        assert np.allclose(found.shares @ rows, found.point, atol=1e-12)
        assert found.norm_lower_bound <= found.at_most + 1e-14
        if found.at_most > 1e-12:
            assert found.at_most - found.norm_lower_bound <= 1e-12
