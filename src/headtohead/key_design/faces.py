"""Which keys can share all the weight: the geometry behind design by hand.

Weights are softmax(keys @ query), so weights that are 0 on some keys are only approached, by ever longer queries, and
those that keep a share are then all the keys on one face of the keys' convex hull: the keys with the highest score in
some direction (Barndorff-Nielsen, Information and Exponential Families, 1978, section 9.3). The smallest face that
holds the wanted keys is found by growing. Seen along the keys it holds so far, they are one point; if that point stands
out from the hull of the others, they are a face; if not, it is a mixture of others, and those belong to the face too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector, find_min_norm_point


@dataclass(frozen=True, eq=False)
class NormalizedKeys:
    """Keys moved and scaled so that their mean is 0 and the farthest has length 1: softmax does not see the move, and a
    query for the rows, divided by `size`, is one for the keys."""

    rows: KeyMatrix
    size: float
    tolerance: float
    """a distance below which rows count as one point"""

    @classmethod
    def of(cls, keys: KeyMatrix, tolerance: float) -> NormalizedKeys:
        largest = float(np.abs(keys).max()) or 1.0
        moved = keys / largest - (keys / largest).mean(axis=0)
        spread = float(np.linalg.norm(moved, axis=1).max())
        rounding = 8 * float(np.finfo(float).eps) * keys.shape[1] ** 0.5
        if spread <= rounding:  # all keys are equal
            return cls(np.zeros_like(keys), largest, tolerance)
        return cls(moved / spread, largest * spread, max(tolerance, rounding / spread))


@dataclass(frozen=True, eq=False)
class HullFace:
    """The smallest face that holds some keys. All in units of the frame."""

    key_indices: tuple[int, ...]
    has_all_keys: bool
    margin: float | None
    """how far the face stands out from the hull of the other keys; none if there are no others"""
    direction: Vector | None
    """of length 1: equal scores on the face, lower by at least `margin` elsewhere"""
    nearest_mixture: PerKeyVector | None
    """of the other keys, that lies nearest to the face"""
    affine_dependence: PerKeyVector | None
    """where the wanted keys are no face: one combination of them minus one of others, together 0"""
    residual: float
    """how far from 0 that combination is; beyond rounding, the keys count as inside only by the tolerance"""


def find_smallest_face(normalized_keys: NormalizedKeys, target_indices: tuple[int, ...]) -> HullFace:
    """Grow the wanted keys to the smallest face that holds them."""
    rows, count = normalized_keys.rows, len(normalized_keys.rows)
    members, relation, gap = tuple(sorted(target_indices)), None, 0.0
    while True:
        beside = project_out_face(normalized_keys, members)
        others = [at for at in range(count) if at not in members]
        if not others:
            return HullFace(members, True, None, None, None, relation, gap)
        distances = np.linalg.norm(beside[others], axis=1)
        shares = np.zeros(count)
        if (distances <= normalized_keys.tolerance).any():
            joining = [
                at for at, distance in zip(others, distances, strict=True) if distance <= normalized_keys.tolerance
            ]
            closest = others[int(np.argmin(distances))]
            shares[closest], distance = 1.0, float(distances.min())
        else:
            found = find_min_norm_point(beside[others])
            if found.norm_lower_bound > normalized_keys.tolerance:
                direction = -found.point / np.linalg.norm(found.point)
                return HullFace(members, False, found.norm_lower_bound, direction, found.shares, relation, gap)
            shares[others], distance = found.shares, found.at_most
            joining = [at for at in others if shares[at] > 0]
        if relation is None:
            relation, gap = _compute_affine_dependence(rows, members, shares), distance
        members = tuple(sorted({*members, *joining}))


def project_out_face(normalized_keys: NormalizedKeys, key_indices: tuple[int, ...]) -> KeyMatrix:
    """Every row as it looks along the flat of the members, which themselves fall on 0."""
    own = normalized_keys.rows[list(key_indices)]
    centre = own.mean(axis=0)
    along = compute_affine_basis(own - centre, normalized_keys.tolerance)
    beside = normalized_keys.rows - centre
    for _ in range(2):  # the second time takes away what rounding left
        beside = beside - (beside @ along.T) @ along
    return np.asarray(beside)


def compute_affine_basis(centered_rows: KeyMatrix, tolerance: float) -> KeyMatrix:
    """Orthonormal directions in which rows around 0 extend farther than the tolerance."""
    if len(centered_rows) == 1:
        return np.zeros((0, centered_rows.shape[1]))
    _, sizes, turns = np.linalg.svd(centered_rows, full_matrices=False)
    return np.asarray(turns[sizes > tolerance])


def _compute_affine_dependence(
    rows: KeyMatrix, key_indices: tuple[int, ...], coefficients: PerKeyVector
) -> PerKeyVector:
    """The mixture of others by `shares` written as a combination of the members, minus that mixture."""
    own = rows[list(key_indices)]
    centre = own.mean(axis=0)
    parts = np.linalg.lstsq((own - centre).T, coefficients @ rows - centre, rcond=None)[0]
    relation = -coefficients
    relation[list(key_indices)] += 1 / len(key_indices) + parts - parts.mean()
    return relation
