"""The three small programs that every question of design by hand comes down to. All are convex, so that an answer is
the answer, and each says how far off it can be.

nearest     the point of a convex hull that is nearest to the origin: how far a key stands out, and a proof when it
            does not. Wolfe, Finding the nearest point in a polytope, Mathematical Programming 11 (1976)
lowest      the query that is best where no target can be met: Newton's method on log-sum-exp
shortest    the shortest query that reaches a wanted precision, with a lower bound from the dual program (Boyd and
            Vandenberghe, Convex Optimization, 2004, chapter 5)

Written here and not handed to a general solver, because a query near the limit is long: the solvers of scipy stop at
absolute tolerances of 1e-7 or so, where a key that stands out by 1e-8 cannot be told from one that does not. The rows
are taken to be of size about 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

KeyMatrix = Float[np.ndarray, "key head_dim"]
PerKeyVector = Float[np.ndarray, " key"]
Vector = Float[np.ndarray, " head_dim"]

ROUNDING_TOLERANCE = 1e-14
NEWTON_TOLERANCE = 1e-24
"""a step of Newton's method that would gain less than half of this is the last"""
MAX_ITERATIONS = 500
MAX_MULTIPLIER_UPDATES = 100
MACHINE_EPSILON = float(np.finfo(float).eps)


def logsumexp(scores: PerKeyVector) -> float:
    """As scipy's, which takes twenty times as long over so few numbers."""
    highest = scores.max()
    return float(highest + np.log(np.exp(scores - highest).sum()))


def softmax(scores: PerKeyVector) -> PerKeyVector:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


@dataclass(frozen=True, eq=False)
class MinNormPoint:
    """The point of the hull nearest to the origin, how it is mixed from the rows, and two bounds on its distance."""

    point: Vector
    shares: PerKeyVector
    norm_lower_bound: float
    at_most: float


def find_min_norm_point(rows: KeyMatrix) -> MinNormPoint:
    """Wolfe's method: grow a small set of corners whose flat is nearest to the origin.

    `at_least` is how far the hull lies beyond a plane, measured on all rows, and so holds whatever the method did.
    """
    members = [int(np.argmin(np.linalg.norm(rows, axis=1)))]
    shares, point = np.ones(1), rows[members[0]]
    for _ in range(MAX_ITERATIONS):
        distance = float(np.linalg.norm(point))
        if distance <= ROUNDING_TOLERANCE:
            break
        along = rows @ (point / distance)
        entering = int(np.argmin(along))
        if distance - along[entering] <= ROUNDING_TOLERANCE or entering in members:
            break
        grown, grown_shares, nearer = _run_minor_cycle(rows, [*members, entering], np.append(shares, 0.0))
        if np.linalg.norm(nearer) >= distance:
            break  # rounding has the last word
        members, shares, point = grown, grown_shares, nearer
    all_shares = np.zeros(len(rows))
    all_shares[members] = shares / shares.sum()
    distance = float(np.linalg.norm(point))
    at_least = float((rows @ (point / distance)).min()) if distance > 0 else 0.0
    return MinNormPoint(point, all_shares, max(at_least, 0.0), distance)


def _run_minor_cycle(
    rows: KeyMatrix, active_indices: list[int], coefficients: PerKeyVector
) -> tuple[list[int], PerKeyVector, Vector]:
    """The nearest point of the members' flat, without those members that would get a share below 0."""
    while True:
        flat, point = _find_affine_min_norm_point(rows[active_indices])
        outside = flat <= ROUNDING_TOLERANCE
        if not outside.any() or len(active_indices) == 1:
            return active_indices, flat, point
        steps = np.full(len(active_indices), np.inf)
        steps[outside] = coefficients[outside] / np.maximum(coefficients[outside] - flat[outside], ROUNDING_TOLERANCE)
        first = int(np.argmin(steps))
        coefficients = coefficients + min(1.0, steps[first]) * (flat - coefficients)
        kept = [at for at in range(len(active_indices)) if at != first and coefficients[at] > ROUNDING_TOLERANCE]
        active_indices, coefficients = [active_indices[at] for at in kept], coefficients[kept]


def _find_affine_min_norm_point(corners: KeyMatrix) -> tuple[PerKeyVector, Vector]:
    """The nearest point of the flat through the corners. Twice, because the first result is only as orthogonal to the
    flat as its own rounding errors, and what matters later is its direction."""
    sides = (corners[1:] - corners[0]).T
    if sides.shape[1] == 0:
        return np.ones(1), corners[0]
    first = np.linalg.lstsq(sides, -corners[0], rcond=None)[0]
    point = corners[0] + sides @ first
    second = np.linalg.lstsq(sides, -point, rcond=None)[0]
    others = first + second
    return np.concatenate(([1 - others.sum()], others)), point + sides @ second


def minimize_logsumexp(rows: KeyMatrix) -> Vector:
    """The shortest vector that makes log-sum-exp(rows @ vector) lowest. There is one if the origin lies inside the
    rows' hull, not on its rim; whoever calls sees to that."""
    vector = np.zeros(rows.shape[1])
    for _ in range(MAX_ITERATIONS):
        value = logsumexp(rows @ vector)
        slope, turns, bends = _compute_gradient_and_curvature(rows, rows @ vector)
        along = turns @ slope
        # The slope is a mean of rows of size 1: what is smaller than their rounding has no direction.
        used = (bends > ROUNDING_TOLERANCE * max(float(bends.max()), ROUNDING_TOLERANCE)) & (
            np.abs(along) > 4 * MACHINE_EPSILON
        )
        step = -turns[used].T @ (along[used] / bends[used] ** 2)
        gain = -float(slope @ step)
        size, least = 1.0, 4 * MACHINE_EPSILON * (1 + abs(value))
        while logsumexp(rows @ (vector + size * step)) > value - 0.25 * size * gain + least:
            size /= 2
        vector = vector + size * step
        if gain <= NEWTON_TOLERANCE:
            break
    return vector


def _compute_gradient_and_curvature(rows: KeyMatrix, scores: PerKeyVector) -> tuple[Vector, KeyMatrix, PerKeyVector]:
    """Slope and curvature of log-sum-exp: the curvature as axes and the roots of its size along them, which a singular
    value decomposition gives with twice the digits that the matrix itself would."""
    weights = softmax(scores)
    slope = weights @ rows
    _, bends, turns = np.linalg.svd(np.sqrt(weights)[:, None] * (rows - slope), full_matrices=False)
    return slope, turns, bends


@dataclass(frozen=True, eq=False)
class ShortestVector:
    """A vector that keeps log-sum-exp below the limit, and a length below which none does."""

    vector: Vector
    norm_lower_bound: float


def find_shortest_vector(
    rows: KeyMatrix, offsets: PerKeyVector, limit: float, start: Vector, multiplier: float
) -> ShortestVector:
    """The shortest vector with log-sum-exp(offsets + rows @ vector) <= limit; there must be one.

    For each price of exceeding the limit, |vector|^2 / 2 + price log-sum-exp has one lowest point, which Newton's
    method finds. The right price is the one at which the limit is just met; it is found by Newton's method too, kept
    between the highest price known to be too low and the lowest known to be enough.
    """
    if logsumexp(offsets) <= limit:
        return ShortestVector(np.zeros(rows.shape[1]), 0.0)
    vector, low, high = start, 0.0, math.inf
    best: Vector | None = None
    for _ in range(MAX_MULTIPLIER_UPDATES):
        vector, slope, turn = _minimize_lagrangian(rows, offsets, vector, multiplier)
        excess = logsumexp(offsets + rows @ vector) - limit
        hair = 1e-12 + 4 * MACHINE_EPSILON * float(np.linalg.norm(vector))
        if excess > 0:
            low = multiplier
        else:
            high, best = multiplier, vector
        if (best is not None and -4 * hair <= excess <= 0) or high - low <= 1e-14 * multiplier:
            break
        new = _update_multiplier(multiplier, excess + 2 * hair, float(slope @ turn), low, high)
        vector, multiplier = vector - (new - multiplier) * turn, new
    found = vector if best is None else best
    return ShortestVector(found, compute_norm_lower_bound(rows, offsets, softmax(offsets + rows @ found), limit))


def compute_norm_lower_bound(rows: KeyMatrix, offsets: PerKeyVector, weights: PerKeyVector, limit: float) -> float:
    """A length below which no vector keeps the limit. For any weights w, log-sum-exp(o + rows @ v) is at least
    w @ (o - log w) + w @ rows @ v (Gibbs), of which the last term is at least -|w @ rows| |v|. All weights give a
    bound; those of the shortest vector give its own length."""
    used = weights > 0
    free = float(weights[used] @ (offsets[used] - np.log(weights[used]))) - limit
    return max(0.0, free / max(float(np.linalg.norm(weights @ rows)), MACHINE_EPSILON))


def _update_multiplier(multiplier: float, excess: float, slope: float, low: float, high: float) -> float:
    wanted = multiplier + excess / max(slope, 1e-300)
    if low < wanted < high and wanted < 10 * multiplier:
        return wanted
    return 10 * multiplier if high == math.inf else (low + high) / 2


def _minimize_lagrangian(
    rows: KeyMatrix, offsets: PerKeyVector, vector: Vector, multiplier: float
) -> tuple[Vector, Vector, Vector]:
    """The lowest point at this price, the slope of log-sum-exp there, and how the point goes as the price falls."""
    for _ in range(MAX_ITERATIONS):
        slope, turns, bends = _compute_gradient_and_curvature(rows, offsets + rows @ vector)
        left = vector + multiplier * slope
        step = -_solve_newton_system(left, turns, bends, multiplier)
        gain = -float(left @ step)
        if gain <= (4 * MACHINE_EPSILON * (multiplier + float(np.linalg.norm(vector)))) ** 2:
            break  # the slope is the difference of two vectors of that size: the rest is rounding
        size = 1.0
        if gain > 1e-8:
            value = _compute_lagrangian(rows, offsets, vector, multiplier)
            least = MACHINE_EPSILON * (1 + abs(value))
            while (
                _compute_lagrangian(rows, offsets, vector + size * step, multiplier)
                > value - 0.25 * size * gain + least
            ):
                size /= 2
        vector = vector + size * step
        if np.abs(rows @ step).max() < 1e-7:
            break  # Newton's method doubles the digits: after this step there are 14
    return vector, slope, _solve_newton_system(slope, turns, bends, multiplier)


def _compute_lagrangian(rows: KeyMatrix, offsets: PerKeyVector, vector: Vector, multiplier: float) -> float:
    return float(vector @ vector) / 2 + multiplier * logsumexp(offsets + rows @ vector)


def _solve_newton_system(
    rhs: Vector, curvature_axes: KeyMatrix, curvature_roots: PerKeyVector, multiplier: float
) -> Vector:
    """(identity + price curvature)^-1 right."""
    along = curvature_axes @ rhs
    return np.asarray(
        rhs - curvature_axes.T @ along + curvature_axes.T @ (along / (1 + multiplier * curvature_roots**2))
    )
