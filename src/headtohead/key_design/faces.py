"""Find which keys can share the whole attention weight: the faces of the keys' convex hull.

Weights are softmax(keys @ query), so zero weights are only approached, by queries of growing norm. The keys that retain
weight in the limit are exactly the keys on one face of the convex hull: those with the highest score in some direction
(Barndorff-Nielsen, Information and Exponential Families, 1978, section 9.3). To find the smallest face that contains
the target keys, project out the affine span of the current members, which maps them to one point. If that point lies
outside the convex hull of the other keys, the members are a face. Otherwise it is a mixture of other keys, which join
the face.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector, find_min_norm_point


@dataclass(frozen=True, eq=False)
class NormalizedKeys:
    """Keys shifted to mean 0 and scaled to maximum norm 1.

    Softmax ignores the shift, and a query for `rows` divided by `size` is a query for the keys.
    """

    rows: KeyMatrix
    size: float
    tolerance: float
    """rows closer than this are considered equal"""

    @classmethod
    def of(cls, keys: KeyMatrix, tolerance: float) -> NormalizedKeys:
        """Normalize keys."""
        max_abs = float(np.abs(keys).max()) or 1.0
        centered = keys / max_abs - (keys / max_abs).mean(axis=0)
        spread = float(np.linalg.norm(centered, axis=1).max())
        rounding = 8 * float(np.finfo(float).eps) * keys.shape[1] ** 0.5
        if spread <= rounding:  # all keys are equal
            return cls(np.zeros_like(keys), max_abs, tolerance)
        return cls(centered / spread, max_abs * spread, max(tolerance, rounding / spread))


@dataclass(frozen=True, eq=False)
class HullFace:
    """The smallest face that contains the target keys, in normalized units."""

    key_indices: tuple[int, ...]
    has_all_keys: bool
    margin: float | None
    """distance to the other keys' convex hull; None if there are none"""
    direction: Vector | None
    """unit vector with equal scores on the face and scores lower by at least `margin` elsewhere"""
    nearest_mixture: PerKeyVector | None
    """weights of the mixture of other keys nearest to the face"""
    affine_dependence: PerKeyVector | None
    """if the target keys are not a face: coefficients of a combination of them minus one of other keys that vanishes"""
    residual: float
    """norm of that combination; above rounding error it counts as 0 only because of the tolerance"""


def find_smallest_face(normalized_keys: NormalizedKeys, target_indices: tuple[int, ...]) -> HullFace:
    """Extend the target keys to the smallest face that contains them."""
    rows, count = normalized_keys.rows, len(normalized_keys.rows)
    members, dependence, residual = tuple(sorted(target_indices)), None, 0.0
    while True:
        projected = project_out_face(normalized_keys, members)
        outside = [index for index in range(count) if index not in members]
        if not outside:
            return HullFace(members, True, None, None, None, dependence, residual)
        distances = np.linalg.norm(projected[outside], axis=1)
        shares = np.zeros(count)
        if (distances <= normalized_keys.tolerance).any():
            joining = [
                index
                for index, distance in zip(outside, distances, strict=True)
                if distance <= normalized_keys.tolerance
            ]
            nearest_index = outside[int(np.argmin(distances))]
            shares[nearest_index], distance = 1.0, float(distances.min())
        else:
            nearest = find_min_norm_point(projected[outside])
            if nearest.norm_lower_bound > normalized_keys.tolerance:
                direction = -nearest.point / np.linalg.norm(nearest.point)
                return HullFace(
                    members, False, nearest.norm_lower_bound, direction, nearest.shares, dependence, residual
                )
            shares[outside], distance = nearest.shares, nearest.at_most
            joining = [index for index in outside if shares[index] > 0]
        if dependence is None:
            dependence, residual = _compute_affine_dependence(rows, members, shares), distance
        members = tuple(sorted({*members, *joining}))


def project_out_face(normalized_keys: NormalizedKeys, key_indices: tuple[int, ...]) -> KeyMatrix:
    """Project all rows onto the complement of the affine span of the members, which map to 0."""
    members = normalized_keys.rows[list(key_indices)]
    center = members.mean(axis=0)
    basis = compute_affine_basis(members - center, normalized_keys.tolerance)
    projected = normalized_keys.rows - center
    for _ in range(2):  # the second pass removes the rounding errors of the first
        projected = projected - (projected @ basis.T) @ basis
    return np.asarray(projected)


def compute_affine_basis(centered_rows: KeyMatrix, tolerance: float) -> KeyMatrix:
    """Return orthonormal directions in which centered rows extend farther than the tolerance."""
    if len(centered_rows) == 1:
        return np.zeros((0, centered_rows.shape[1]))
    _, singular_values, right_vectors = np.linalg.svd(centered_rows, full_matrices=False)
    return np.asarray(right_vectors[singular_values > tolerance])


def _compute_affine_dependence(
    rows: KeyMatrix, key_indices: tuple[int, ...], coefficients: PerKeyVector
) -> PerKeyVector:
    """Return the coefficients of an affine combination of the members minus the equal mixture of other keys."""
    members = rows[list(key_indices)]
    center = members.mean(axis=0)
    solution = np.linalg.lstsq((members - center).T, coefficients @ rows - center, rcond=None)[0]
    dependence = -coefficients
    dependence[list(key_indices)] += 1 / len(key_indices) + solution - solution.mean()
    return dependence
