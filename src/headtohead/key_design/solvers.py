"""Convex solvers for key design. Each returns a bound on its own error.

    find_min_norm_point     point of a convex hull closest to the origin. Wolfe, Finding the nearest point in a
                            polytope, Mathematical Programming 11 (1976)
    minimize_logsumexp      best query for an unreachable target, by Newton's method
    find_shortest_vector    shortest query that reaches a precision, with a lower bound from the dual problem. Boyd and
                            Vandenberghe, Convex Optimization, 2004, chapter 5

These are not general solvers because queries near the limit are long: scipy's solvers stop at absolute tolerances
around 1e-7, at which a key that lies 1e-8 outside a hull cannot be distinguished from one inside it. Rows are expected
to have norms around 1.
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
"""stop Newton's method when the predicted decrease falls below this"""
MAX_ITERATIONS = 500
MAX_MULTIPLIER_UPDATES = 100
MACHINE_EPSILON = float(np.finfo(float).eps)


def logsumexp(scores: PerKeyVector) -> float:
    """Return log(sum(exp(scores))). For a few numbers, this is about twenty times as fast as scipy."""
    highest = scores.max()
    return float(highest + np.log(np.exp(scores - highest).sum()))


def softmax(scores: PerKeyVector) -> PerKeyVector:
    powers = np.exp(scores - scores.max())
    return np.asarray(powers / powers.sum())


@dataclass(frozen=True, eq=False)
class MinNormPoint:
    """The point in the convex hull closest to the origin, its mixture weights, and bounds on its norm."""

    point: Vector
    shares: PerKeyVector
    norm_lower_bound: float
    at_most: float


def find_min_norm_point(rows: KeyMatrix) -> MinNormPoint:
    """Find the point in the convex hull of `rows` closest to the origin, using Wolfe's method.

    `norm_lower_bound` is the distance of a separating hyperplane, evaluated on all rows, so it holds even if the method
    stopped early.
    """
    members = [int(np.argmin(np.linalg.norm(rows, axis=1)))]
    shares, point = np.ones(1), rows[members[0]]
    for _ in range(MAX_ITERATIONS):
        distance = float(np.linalg.norm(point))
        if distance <= ROUNDING_TOLERANCE:
            break
        projections = rows @ (point / distance)
        entering = int(np.argmin(projections))
        if distance - projections[entering] <= ROUNDING_TOLERANCE or entering in members:
            break
        new_members, new_shares, new_point = _run_minor_cycle(rows, [*members, entering], np.append(shares, 0.0))
        if np.linalg.norm(new_point) >= distance:
            break  # rounding errors dominate
        members, shares, point = new_members, new_shares, new_point
    all_shares = np.zeros(len(rows))
    all_shares[members] = shares / shares.sum()
    distance = float(np.linalg.norm(point))
    lower_bound = float((rows @ (point / distance)).min()) if distance > 0 else 0.0
    return MinNormPoint(point, all_shares, max(lower_bound, 0.0), distance)


def _run_minor_cycle(
    rows: KeyMatrix, active_indices: list[int], coefficients: PerKeyVector
) -> tuple[list[int], PerKeyVector, Vector]:
    """Return the point of the affine span of the active rows closest to the origin; drop rows of negative weight."""
    while True:
        affine_weights, point = _find_affine_min_norm_point(rows[active_indices])
        negative = affine_weights <= ROUNDING_TOLERANCE
        if not negative.any() or len(active_indices) == 1:
            return active_indices, affine_weights, point
        steps = np.full(len(active_indices), np.inf)
        steps[negative] = coefficients[negative] / np.maximum(
            coefficients[negative] - affine_weights[negative], ROUNDING_TOLERANCE
        )
        first = int(np.argmin(steps))
        coefficients = coefficients + min(1.0, steps[first]) * (affine_weights - coefficients)
        kept_positions = [
            index for index in range(len(active_indices)) if index != first and coefficients[index] > ROUNDING_TOLERANCE
        ]
        active_indices, coefficients = [active_indices[index] for index in kept_positions], coefficients[kept_positions]


def _find_affine_min_norm_point(corners: KeyMatrix) -> tuple[PerKeyVector, Vector]:
    """Return mixture weights and the point of the affine span of `corners` closest to the origin.

    Solve twice: the first solution is orthogonal to the span only up to rounding, and its direction matters later.
    """
    sides = (corners[1:] - corners[0]).T
    if sides.shape[1] == 0:
        return np.ones(1), corners[0]
    first = np.linalg.lstsq(sides, -corners[0], rcond=None)[0]
    point = corners[0] + sides @ first
    second = np.linalg.lstsq(sides, -point, rcond=None)[0]
    other_coefficients = first + second
    return np.concatenate(([1 - other_coefficients.sum()], other_coefficients)), point + sides @ second


def minimize_logsumexp(rows: KeyMatrix) -> Vector:
    """Return the shortest vector that minimizes logsumexp(rows @ vector).

    The minimum exists if the origin lies in the relative interior of the convex hull, which the caller ensures.
    """
    vector = np.zeros(rows.shape[1])
    for _ in range(MAX_ITERATIONS):
        value = logsumexp(rows @ vector)
        gradient, axes, curvature_roots = _compute_gradient_and_curvature(rows, rows @ vector)
        components = axes @ gradient
        # The gradient is a mean of rows of norm 1: components below their rounding error carry no information.
        used = (curvature_roots > ROUNDING_TOLERANCE * max(float(curvature_roots.max()), ROUNDING_TOLERANCE)) & (
            np.abs(components) > 4 * MACHINE_EPSILON
        )
        step = -axes[used].T @ (components[used] / curvature_roots[used] ** 2)
        decrease = -float(gradient @ step)
        step_size, rounding = 1.0, 4 * MACHINE_EPSILON * (1 + abs(value))
        while logsumexp(rows @ (vector + step_size * step)) > value - 0.25 * step_size * decrease + rounding:
            step_size /= 2
        vector = vector + step_size * step
        if decrease <= NEWTON_TOLERANCE:
            break
    return vector


def _compute_gradient_and_curvature(rows: KeyMatrix, scores: PerKeyVector) -> tuple[Vector, KeyMatrix, PerKeyVector]:
    """Return the gradient and Hessian of logsumexp, the latter as eigenvectors and square roots of eigenvalues.

    The singular value decomposition keeps twice the digits of the Hessian itself.
    """
    weights = softmax(scores)
    gradient = weights @ rows
    _, curvature_roots, axes = np.linalg.svd(np.sqrt(weights)[:, None] * (rows - gradient), full_matrices=False)
    return gradient, axes, curvature_roots


@dataclass(frozen=True, eq=False)
class ShortestVector:
    """A vector that satisfies the constraint, and a lower bound on the norm of any such vector."""

    vector: Vector
    norm_lower_bound: float


def find_shortest_vector(
    rows: KeyMatrix, offsets: PerKeyVector, limit: float, start: Vector, multiplier: float
) -> ShortestVector:
    """Return the shortest vector with logsumexp(offsets + rows @ vector) <= limit, which must exist.

    For a fixed multiplier, Newton's method minimizes the Lagrangian |vector|^2 / 2 + multiplier * logsumexp. The
    multiplier that meets the limit is found by Newton's method too, bracketed by the largest value known to be too
    small and the smallest known to be sufficient.
    """
    if logsumexp(offsets) <= limit:
        return ShortestVector(np.zeros(rows.shape[1]), 0.0)
    vector, low, high = start, 0.0, math.inf
    best: Vector | None = None
    for _ in range(MAX_MULTIPLIER_UPDATES):
        vector, gradient, derivative = _minimize_lagrangian(rows, offsets, vector, multiplier)
        excess = logsumexp(offsets + rows @ vector) - limit
        slack = 1e-12 + 4 * MACHINE_EPSILON * float(np.linalg.norm(vector))
        if excess > 0:
            low = multiplier
        else:
            high, best = multiplier, vector
        if (best is not None and -4 * slack <= excess <= 0) or high - low <= 1e-14 * multiplier:
            break
        new_multiplier = _update_multiplier(multiplier, excess + 2 * slack, float(gradient @ derivative), low, high)
        vector, multiplier = vector - (new_multiplier - multiplier) * derivative, new_multiplier
    solution = vector if best is None else best
    return ShortestVector(solution, compute_norm_lower_bound(rows, offsets, softmax(offsets + rows @ solution), limit))


def compute_norm_lower_bound(rows: KeyMatrix, offsets: PerKeyVector, weights: PerKeyVector, limit: float) -> float:
    """Return a lower bound on the norm of any vector that satisfies the constraint.

    For any weights w, logsumexp(o + rows @ v) >= w @ (o - log w) + w @ rows @ v (Gibbs), and the last term is at least
    -|w @ rows| |v|. The weights of the shortest vector give its own norm.
    """
    positive = weights > 0
    excess = float(weights[positive] @ (offsets[positive] - np.log(weights[positive]))) - limit
    return max(0.0, excess / max(float(np.linalg.norm(weights @ rows)), MACHINE_EPSILON))


def _update_multiplier(multiplier: float, excess: float, slope: float, low: float, high: float) -> float:
    newton_value = multiplier + excess / max(slope, 1e-300)
    if low < newton_value < high and newton_value < 10 * multiplier:
        return newton_value
    return 10 * multiplier if high == math.inf else (low + high) / 2


def _minimize_lagrangian(
    rows: KeyMatrix, offsets: PerKeyVector, vector: Vector, multiplier: float
) -> tuple[Vector, Vector, Vector]:
    """Return the minimizer of the Lagrangian, the gradient of logsumexp there, and the derivative of the minimizer."""
    for _ in range(MAX_ITERATIONS):
        gradient, axes, curvature_roots = _compute_gradient_and_curvature(rows, offsets + rows @ vector)
        residual = vector + multiplier * gradient
        step = -_solve_newton_system(residual, axes, curvature_roots, multiplier)
        decrease = -float(residual @ step)
        if decrease <= (4 * MACHINE_EPSILON * (multiplier + float(np.linalg.norm(vector)))) ** 2:
            break  # the residual is a difference of vectors of that norm: the rest is rounding
        step_size = 1.0
        if decrease > 1e-8:
            value = _compute_lagrangian(rows, offsets, vector, multiplier)
            rounding = MACHINE_EPSILON * (1 + abs(value))
            while (
                _compute_lagrangian(rows, offsets, vector + step_size * step, multiplier)
                > value - 0.25 * step_size * decrease + rounding
            ):
                step_size /= 2
        vector = vector + step_size * step
        if np.abs(rows @ step).max() < 1e-7:
            break  # Newton's method converges quadratically: this step leaves about 14 digits
    return vector, gradient, _solve_newton_system(gradient, axes, curvature_roots, multiplier)


def _compute_lagrangian(rows: KeyMatrix, offsets: PerKeyVector, vector: Vector, multiplier: float) -> float:
    return float(vector @ vector) / 2 + multiplier * logsumexp(offsets + rows @ vector)


def _solve_newton_system(
    rhs: Vector, curvature_axes: KeyMatrix, curvature_roots: PerKeyVector, multiplier: float
) -> Vector:
    """Return (identity + multiplier * curvature)^-1 rhs."""
    components = curvature_axes @ rhs
    return np.asarray(
        rhs - curvature_axes.T @ components + curvature_axes.T @ (components / (1 + multiplier * curvature_roots**2))
    )
