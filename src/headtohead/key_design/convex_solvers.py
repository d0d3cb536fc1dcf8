"""Convex solvers for key design. Each returns a bound on its own error.

    find_min_norm_point     point of a convex hull closest to the origin. Wolfe, Finding the nearest point in a
                            polytope, Mathematical Programming 11 (1976)
    minimize_logsumexp      best query for an unreachable target, by Newton's method
    find_shortest_vector    shortest query that reaches a precision, with a lower bound from the dual problem. Boyd and
                            Vandenberghe, Convex Optimization, 2004, chapter 5

These are not general solvers because queries near the limit are long: scipy's solvers stop at absolute tolerances
around 1e-7, at which a key that lies 1e-8 outside a hull cannot be distinguished from one inside it. Points, which are
normalized keys, are expected to have norms around 1.
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
    exponentials = np.exp(scores - scores.max())
    return np.asarray(exponentials / exponentials.sum())


@dataclass(frozen=True, eq=False)
class MinNormPoint:
    """The point in the convex hull closest to the origin, its mixture weights, and bounds on its norm."""

    point: Vector
    weights: PerKeyVector
    """mixture weights of the given points that produce this point"""
    norm_lower_bound: float
    norm: float


def find_min_norm_point(points: KeyMatrix) -> MinNormPoint:
    """Find the point in the convex hull of `points` closest to the origin, using Wolfe's method.

    `norm_lower_bound` is the distance of a separating hyperplane, evaluated on all points, so it holds even if the
    method stopped early.
    """
    active_indices = [int(np.argmin(np.linalg.norm(points, axis=1)))]
    weights, min_norm_point = np.ones(1), points[active_indices[0]]
    for _ in range(MAX_ITERATIONS):
        distance = float(np.linalg.norm(min_norm_point))
        if distance <= ROUNDING_TOLERANCE:
            break
        projections = points @ (min_norm_point / distance)
        entering_index = int(np.argmin(projections))
        if distance - projections[entering_index] <= ROUNDING_TOLERANCE or entering_index in active_indices:
            break
        new_indices, new_weights, new_point = _run_minor_cycle(
            points, [*active_indices, entering_index], np.append(weights, 0.0)
        )
        if np.linalg.norm(new_point) >= distance:
            break  # rounding errors dominate
        active_indices, weights, min_norm_point = new_indices, new_weights, new_point
    all_weights = np.zeros(len(points))
    all_weights[active_indices] = weights / weights.sum()
    distance = float(np.linalg.norm(min_norm_point))
    lower_bound = float((points @ (min_norm_point / distance)).min()) if distance > 0 else 0.0
    return MinNormPoint(min_norm_point, all_weights, max(lower_bound, 0.0), distance)


def _run_minor_cycle(
    points: KeyMatrix, active_indices: list[int], weights: PerKeyVector
) -> tuple[list[int], PerKeyVector, Vector]:
    """Run a minor cycle of Wolfe's method: find the point closest to the origin in the hull of the active points."""
    while True:
        affine_weights, point = _find_affine_min_norm_point(points[active_indices])
        is_negative = affine_weights <= ROUNDING_TOLERANCE
        if not is_negative.any() or len(active_indices) == 1:
            return active_indices, affine_weights, point
        step_sizes = np.full(len(active_indices), np.inf)
        step_sizes[is_negative] = weights[is_negative] / np.maximum(
            weights[is_negative] - affine_weights[is_negative], ROUNDING_TOLERANCE
        )
        leaving_position = int(np.argmin(step_sizes))
        weights = weights + min(1.0, step_sizes[leaving_position]) * (affine_weights - weights)
        remaining_positions = [
            position
            for position in range(len(active_indices))
            if position != leaving_position and weights[position] > ROUNDING_TOLERANCE
        ]
        active_indices = [active_indices[position] for position in remaining_positions]
        weights = weights[remaining_positions]


def _find_affine_min_norm_point(corners: KeyMatrix) -> tuple[PerKeyVector, Vector]:
    """Return mixture weights and the point of the affine span of `corners` closest to the origin.

    Solve twice: the first solution is orthogonal to the span only up to rounding, and its direction matters later.
    """
    edges = (corners[1:] - corners[0]).T
    if edges.shape[1] == 0:
        return np.ones(1), corners[0]
    coefficients = np.linalg.lstsq(edges, -corners[0], rcond=None)[0]
    point = corners[0] + edges @ coefficients
    correction = np.linalg.lstsq(edges, -point, rcond=None)[0]
    other_weights = coefficients + correction
    return np.concatenate(([1 - other_weights.sum()], other_weights)), point + edges @ correction


def minimize_logsumexp(points: KeyMatrix) -> Vector:
    """Return the shortest vector that minimizes logsumexp(points @ vector).

    The minimum exists if the origin lies in the relative interior of the convex hull, which the caller ensures.
    """
    vector = np.zeros(points.shape[1])
    for _ in range(MAX_ITERATIONS):
        value = logsumexp(points @ vector)
        gradient, axes, curvature_roots = _compute_gradient_and_curvature(points, points @ vector)
        components = axes @ gradient
        # The gradient is a mean of points of norm 1: components below their rounding error carry no information.
        used_directions = (
            curvature_roots > ROUNDING_TOLERANCE * max(float(curvature_roots.max()), ROUNDING_TOLERANCE)
        ) & (np.abs(components) > 4 * MACHINE_EPSILON)
        step = -axes[used_directions].T @ (components[used_directions] / curvature_roots[used_directions] ** 2)
        decrease = -float(gradient @ step)
        step_size, rounding = 1.0, 4 * MACHINE_EPSILON * (1 + abs(value))
        while logsumexp(points @ (vector + step_size * step)) > value - 0.25 * step_size * decrease + rounding:
            step_size /= 2
        vector = vector + step_size * step
        if decrease <= NEWTON_TOLERANCE:
            break
    return vector


def _compute_gradient_and_curvature(points: KeyMatrix, scores: PerKeyVector) -> tuple[Vector, KeyMatrix, PerKeyVector]:
    """Return the gradient and Hessian of the convex logsumexp, the latter as eigenvectors and roots of eigenvalues.

    The singular value decomposition keeps twice the digits of the Hessian itself.
    """
    weights = softmax(scores)
    gradient = weights @ points
    _, curvature_roots, axes = np.linalg.svd(np.sqrt(weights)[:, None] * (points - gradient), full_matrices=False)
    return gradient, axes, curvature_roots


@dataclass(frozen=True, eq=False)
class ShortestVector:
    """A vector that satisfies the constraint, and a lower bound on the norm of any such vector."""

    vector: Vector
    norm_lower_bound: float


def find_shortest_vector(
    points: KeyMatrix, offsets: PerKeyVector, limit: float, start: Vector, multiplier: float
) -> ShortestVector:
    """Return the shortest vector with logsumexp(offsets + points @ vector) <= limit, which must exist.

    For a fixed multiplier, Newton's method minimizes the Lagrangian |vector|^2 / 2 + multiplier * logsumexp. The
    multiplier that meets the limit is found by Newton's method too, bracketed by the largest value known to be too
    small and the smallest known to be sufficient.
    """
    if logsumexp(offsets) <= limit:
        return ShortestVector(np.zeros(points.shape[1]), 0.0)
    vector, low, high = start, 0.0, math.inf
    best: Vector | None = None
    for _ in range(MAX_MULTIPLIER_UPDATES):
        vector, gradient, derivative = _minimize_lagrangian(points, offsets, vector, multiplier)
        excess = logsumexp(offsets + points @ vector) - limit
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
    return ShortestVector(
        solution, compute_norm_lower_bound(points, offsets, softmax(offsets + points @ solution), limit)
    )


def compute_norm_lower_bound(points: KeyMatrix, offsets: PerKeyVector, weights: PerKeyVector, limit: float) -> float:
    """Return a lower bound on the norm of any vector that satisfies the constraint, from the convex dual problem.

    For any weights w, logsumexp(o + points @ v) >= w @ (o - log w) + w @ points @ v (Gibbs), and the last term is at
    least -|w @ points| |v|. The weights of the shortest vector give its own norm.
    """
    positive = weights > 0
    excess = float(weights[positive] @ (offsets[positive] - np.log(weights[positive]))) - limit
    return max(0.0, excess / max(float(np.linalg.norm(weights @ points)), MACHINE_EPSILON))


def _update_multiplier(multiplier: float, excess: float, slope: float, low: float, high: float) -> float:
    """Return the next Lagrange multiplier: Newton's value if it lies in the bracket, else bisect or multiply by ten."""
    newton_value = multiplier + excess / max(slope, 1e-300)
    if low < newton_value < high and newton_value < 10 * multiplier:
        return newton_value
    return 10 * multiplier if high == math.inf else (low + high) / 2


def _minimize_lagrangian(
    points: KeyMatrix, offsets: PerKeyVector, vector: Vector, multiplier: float
) -> tuple[Vector, Vector, Vector]:
    """Return the minimizer of the Lagrangian, the gradient of logsumexp there, and the derivative of the minimizer."""
    for _ in range(MAX_ITERATIONS):
        gradient, axes, curvature_roots = _compute_gradient_and_curvature(points, offsets + points @ vector)
        residual = vector + multiplier * gradient
        step = -_solve_newton_system(residual, axes, curvature_roots, multiplier)
        decrease = -float(residual @ step)
        if decrease <= (4 * MACHINE_EPSILON * (multiplier + float(np.linalg.norm(vector)))) ** 2:
            break  # the residual is a difference of vectors of that norm: the rest is rounding
        step_size = 1.0
        if decrease > 1e-8:
            value = _compute_lagrangian(points, offsets, vector, multiplier)
            rounding = MACHINE_EPSILON * (1 + abs(value))
            while (
                _compute_lagrangian(points, offsets, vector + step_size * step, multiplier)
                > value - 0.25 * step_size * decrease + rounding
            ):
                step_size /= 2
        vector = vector + step_size * step
        if np.abs(points @ step).max() < 1e-7:
            break  # Newton's method converges quadratically: this step leaves about 14 digits
    return vector, gradient, _solve_newton_system(gradient, axes, curvature_roots, multiplier)


def _compute_lagrangian(points: KeyMatrix, offsets: PerKeyVector, vector: Vector, multiplier: float) -> float:
    """Return |vector|^2 / 2 + multiplier * logsumexp(offsets + points @ vector)."""
    return float(vector @ vector) / 2 + multiplier * logsumexp(offsets + points @ vector)


def _solve_newton_system(
    rhs: Vector, curvature_axes: KeyMatrix, curvature_roots: PerKeyVector, multiplier: float
) -> Vector:
    """Return (identity + multiplier * Hessian)^-1 rhs, the Newton step for the Lagrangian."""
    components = curvature_axes @ rhs
    return np.asarray(
        rhs - curvature_axes.T @ components + curvature_axes.T @ (components / (1 + multiplier * curvature_roots**2))
    )
