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

from headtohead.key_design.convex_solvers import KeyMatrix, PerKeyVector, Vector, find_min_norm_point


@dataclass(frozen=True, eq=False)
class NormalizedKeys:
    """Keys shifted to mean 0 and scaled to maximum norm 1.

    Softmax ignores the shift, and a query for the normalized keys divided by `scale` is a query for the original ones.
    """

    keys: KeyMatrix
    scale: float
    """maximum norm before the scaling"""
    tolerance: float
    """keys closer than this are considered equal"""

    @classmethod
    def from_keys(cls, keys: KeyMatrix, tolerance: float) -> NormalizedKeys:
        """Normalize the keys, whose coordinates may be of any magnitude, before their hull is computed."""
        max_abs = float(np.abs(keys).max()) or 1.0
        centered_keys = keys / max_abs - (keys / max_abs).mean(axis=0)
        spread = float(np.linalg.norm(centered_keys, axis=1).max())
        rounding_error = 8 * float(np.finfo(float).eps) * keys.shape[1] ** 0.5
        if spread <= rounding_error:  # all keys are equal
            return cls(np.zeros_like(keys), max_abs, tolerance)
        return cls(centered_keys / spread, max_abs * spread, max(tolerance, rounding_error / spread))


@dataclass(frozen=True, eq=False)
class HullFace:
    """The smallest face that contains the target keys, in normalized units."""

    key_indices: tuple[int, ...]
    """the keys on the face"""
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
    """Return the smallest face of the keys' convex hull that contains the target keys."""
    num_keys = len(normalized_keys.keys)
    face_indices = tuple(sorted(target_indices))
    dependence, residual = None, 0.0
    while True:
        projected_keys = project_out_face(normalized_keys, face_indices)
        outside_indices = [index for index in range(num_keys) if index not in face_indices]
        if not outside_indices:
            return HullFace(face_indices, True, None, None, None, dependence, residual)
        distances = np.linalg.norm(projected_keys[outside_indices], axis=1)
        mixture_weights = np.zeros(num_keys)
        if (distances <= normalized_keys.tolerance).any():
            joining_indices = [
                index
                for index, distance in zip(outside_indices, distances, strict=True)
                if distance <= normalized_keys.tolerance
            ]
            nearest_index = outside_indices[int(np.argmin(distances))]
            mixture_weights[nearest_index], distance = 1.0, float(distances.min())
        else:
            nearest = find_min_norm_point(projected_keys[outside_indices])
            if nearest.norm_lower_bound > normalized_keys.tolerance:
                direction = -nearest.point / np.linalg.norm(nearest.point)
                return HullFace(
                    face_indices, False, nearest.norm_lower_bound, direction, nearest.weights, dependence, residual
                )
            mixture_weights[outside_indices], distance = nearest.weights, nearest.norm
            joining_indices = [index for index in outside_indices if mixture_weights[index] > 0]
        if dependence is None:
            dependence = _compute_affine_dependence(normalized_keys.keys, face_indices, mixture_weights)
            residual = distance
        face_indices = tuple(sorted({*face_indices, *joining_indices}))


def project_out_face(normalized_keys: NormalizedKeys, key_indices: tuple[int, ...]) -> KeyMatrix:
    """Project all keys onto the orthogonal complement of a face's affine span; the keys on the face map to 0."""
    face_keys = normalized_keys.keys[list(key_indices)]
    center = face_keys.mean(axis=0)
    basis = compute_affine_basis(face_keys - center, normalized_keys.tolerance)
    projected_keys = normalized_keys.keys - center
    for _ in range(2):  # the second pass removes the rounding errors of the first
        projected_keys = projected_keys - (projected_keys @ basis.T) @ basis
    return np.asarray(projected_keys)


def compute_affine_basis(centered_keys: KeyMatrix, tolerance: float) -> KeyMatrix:
    """Return orthonormal directions in which the keys of a hull extend farther than the tolerance."""
    if len(centered_keys) == 1:
        return np.zeros((0, centered_keys.shape[1]))
    _, singular_values, right_vectors = np.linalg.svd(centered_keys, full_matrices=False)
    return np.asarray(right_vectors[singular_values > tolerance])


def _compute_affine_dependence(
    keys: KeyMatrix, face_indices: tuple[int, ...], mixture_weights: PerKeyVector
) -> PerKeyVector:
    """Return why keys are no face of the hull: an affine combination of them that equals a mixture of other keys."""
    face_keys = keys[list(face_indices)]
    center = face_keys.mean(axis=0)
    solution = np.linalg.lstsq((face_keys - center).T, mixture_weights @ keys - center, rcond=None)[0]
    dependence = -mixture_weights
    dependence[list(face_indices)] += 1 / len(face_indices) + solution - solution.mean()
    return dependence
