"""Find a query that selects one key, averages several, or produces given attention weights.

    weights = softmax(keys @ query)

Multiply the query by sqrt(head_dim) for a model that scales its scores. The weights that queries can produce form an
exponential family with the keys as sufficient statistics (Barndorff-Nielsen, Information and Exponential Families,
1978; Csiszár, I-divergence geometry, Annals of Probability 3, 1975). Three facts follow:

1. A query produces given positive weights if and only if their logarithms are an affine function of the keys.

2. Weights that contain zeros are only approached, by queries of growing norm, if and only if the keys with positive
weight are exactly the keys on one face of the convex hull and fact 1 holds on that face. A single key is such a face if
it is a vertex and no other key equals it.

3. Otherwise a unique best approximation minimizes KL(target, weights). It has the same mean key as the target. For a
single key it is the largest weight any query gives that key.

`hull_faces` finds the face or the proof that there is none; `convex_solvers` holds the numerical methods.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtohead.errors import RequestError
from headtohead.key_design import inputs, phrasing
from headtohead.key_design.convex_solvers import (
    KeyMatrix,
    PerKeyVector,
    Vector,
    compute_norm_lower_bound,
    find_shortest_vector,
    logsumexp,
    minimize_logsumexp,
    softmax,
)
from headtohead.key_design.hull_faces import (
    HullFace,
    NormalizedKeys,
    compute_affine_basis,
    find_smallest_face,
    project_out_face,
)
from headtohead.key_design.solutions import QueryDesign, QueryMatrixDesign, compute_precision

DEFAULT_PRECISION = 0.999
DEFAULT_TOLERANCE = 1e-9
EXACT_PRECISION_MARGIN = 1e-9
"""a request for a precision above 1 minus this value returns the exact query"""


def find_selecting_query(
    keys: Any,
    key_index: int,
    *,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> QueryDesign:
    """Find a query that puts the attention weight on key `key_index` (counted from 0).

    If the weight can come arbitrarily close to 1, return the shortest query that reaches `precision` (default 0.999).
    Otherwise return the query with the largest weight on that key, and a proof.
    """
    key_matrix = inputs.validate_matrix(keys)
    index = inputs.validate_index(key_index, len(key_matrix))
    target = np.zeros(len(key_matrix))
    target[index] = 1.0
    return _solve_query(f"select key {index}", key_matrix, target, precision, values, tolerance)


def find_averaging_query(
    keys: Any,
    indices: Sequence[int] | None = None,
    *,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> QueryDesign:
    """Find a query that puts equal weights on `indices` (default: all keys) and no weight on the remaining keys."""
    key_matrix = inputs.validate_matrix(keys)
    num_keys = len(key_matrix)
    selected_indices = tuple(range(num_keys)) if indices is None else inputs.validate_indices(indices, num_keys)
    target = np.zeros(len(key_matrix))
    target[list(selected_indices)] = 1 / len(selected_indices)
    question = (
        "average all keys"
        if len(selected_indices) == len(key_matrix)
        else f"average {phrasing.format_key_list(sorted(selected_indices))}"
    )
    return _solve_query(question, key_matrix, target, precision, values, tolerance)


def find_query_for_weights(
    keys: Any, target: Any, *, precision: float | None = None, values: Any = None, tolerance: float = DEFAULT_TOLERANCE
) -> QueryDesign:
    """Find a query that produces the `target` weights, one per key, summing to 1.

    If a finite query produces them, return it, unless `precision` asks for the shortest query that comes that close.
    """
    key_matrix = inputs.validate_matrix(keys)
    weights = inputs.validate_distribution(target, len(key_matrix))
    shown_weights = ", ".join(f"{weight:.4g}" for weight in weights[:8]) + (", ..." if len(weights) > 8 else "")
    return _solve_query(f"weights {shown_weights}", key_matrix, weights, precision, values, tolerance)


def find_identity_queries(
    keys: Any, *, precision: float | None = None, values: Any = None, tolerance: float = DEFAULT_TOLERANCE
) -> QueryMatrixDesign:
    """Find a query matrix whose row i selects key i. Exact if and only if every key is a vertex of the convex hull."""
    key_matrix = inputs.validate_matrix(keys)
    designs = tuple(
        find_selecting_query(key_matrix, index, precision=precision, values=values, tolerance=tolerance)
        for index in range(len(key_matrix))
    )
    unselectable_indices = [index for index, design in enumerate(designs) if not design.exact]
    if unselectable_indices:
        worst_index = min(unselectable_indices, key=lambda index: designs[index].best)
        reason = (
            f"{phrasing.format_key_list(unselectable_indices).capitalize()} cannot be selected, so no query matrix "
            f"produces the identity. {designs[worst_index].reason}"
        )
    elif len(key_matrix) == 1:
        reason = designs[0].reason
    else:
        reason = (
            "Every key is a vertex of the convex hull, so each row can select its key to any precision. "
            f"These rows reach {phrasing.format_precision(min(design.precision for design in designs))} or more."
        )
    return QueryMatrixDesign(
        question="identity: row i selects key i",
        keys=key_matrix,
        target=np.eye(len(key_matrix)),
        query=np.stack([design.query for design in designs]),
        weights=np.stack([design.weights for design in designs]),
        exact=not unselectable_indices,
        reason=reason,
        precision=min(design.precision for design in designs),
        best=min(design.best for design in designs),
        attained=all(design.attained for design in designs),
        norm=max(design.norm for design in designs),
        rows=designs,
        tolerance=max(design.tolerance for design in designs),
        values=designs[0].values,
    )


@dataclass(frozen=True, eq=False)
class _FaceSolution:
    """The best weights on a face, with a query for the normalized keys that produces them."""

    query: Vector
    best: float
    affine_dependence: PerKeyVector | None
    """proof that the target cannot be produced, or None"""


def _solve_query(
    question: str, keys: KeyMatrix, target: PerKeyVector, precision: float | None, values: Any, tolerance: float
) -> QueryDesign:
    """Find the shortest query whose attention weights approximate `target` with the given precision.

    The target keys must span a face of the convex hull of all keys; on that face, log-weights must be an affine
    function of the keys. Otherwise the best approximation is returned.
    """
    value_matrix = None if values is None else inputs.validate_matrix(values, "values", len(keys))
    requested_precision = None if precision is None else inputs.validate_precision(precision)
    normalized_keys = NormalizedKeys.from_keys(keys, inputs.validate_tolerance(tolerance))
    target_indices = tuple(int(index) for index in np.flatnonzero(target > 0))
    face = find_smallest_face(normalized_keys, target_indices)
    face_solution = _solve_on_face(normalized_keys, face, target)
    query, norm_lower_bound = _find_normalized_query(normalized_keys, face, face_solution, target, requested_precision)
    with np.errstate(over="ignore"):
        query, norm_lower_bound = query / normalized_keys.scale, norm_lower_bound / normalized_keys.scale
    if not np.isfinite(query).all():
        raise RequestError(
            f"keys: they differ by at most {normalized_keys.scale:.2g}, too little for a finite query to separate them"
        )
    if face.direction is not None:
        query = _lengthen_query(keys, query, face, normalized_keys.scale, requested_precision)
    scores = keys @ query
    is_exact = face_solution.affine_dependence is None and face.affine_dependence is None
    reached_precision = compute_precision(target, scores)
    norm = float(np.linalg.norm(query))
    return QueryDesign(
        question=question,
        keys=keys,
        target=target,
        query=query,
        weights=softmax(scores),
        exact=is_exact,
        reason=_explain_solution(normalized_keys, face, face_solution, target, reached_precision, norm),
        precision=reached_precision,
        best=face_solution.best,
        attained=face.has_all_keys,
        norm=norm,
        norm_at_least=min(norm_lower_bound, norm),
        face=face.key_indices,
        margin=None if face.margin is None else face.margin * normalized_keys.scale,
        direction=face.direction,
        certificate=face.affine_dependence if face.affine_dependence is not None else face_solution.affine_dependence,
        tolerance=normalized_keys.tolerance * normalized_keys.scale,
        values=value_matrix,
    )


def _solve_on_face(normalized_keys: NormalizedKeys, face: HullFace, target: PerKeyVector) -> _FaceSolution:
    """Find the best attention weights of a query among the keys of the face (facts 1 and 3 above)."""
    face_indices = list(face.key_indices)
    face_target = target[face_indices]
    face_keys = normalized_keys.keys[face_indices]
    centered_keys = face_keys - face_keys.mean(axis=0)
    basis = compute_affine_basis(centered_keys, normalized_keys.tolerance)
    dependence: PerKeyVector | None = None
    if face.affine_dependence is None:
        log_target = np.log(face_target / face_target[0])  # equal weights give exactly 0
        log_target = log_target - log_target.mean()
        query = (
            basis.T @ np.linalg.lstsq(centered_keys @ basis.T, log_target, rcond=None)[0]
            if len(basis)
            else np.zeros(face_keys.shape[1])
        )
        residual = log_target - centered_keys @ query
        if np.abs(residual).max() <= normalized_keys.tolerance * max(1.0, float(np.abs(log_target).max())):
            return _FaceSolution(query, 1.0, None)
        dependence = np.zeros(len(target))
        dependence[face_indices] = residual
    shifted_keys = face_keys - face_target @ face_keys
    query = basis.T @ minimize_logsumexp(shifted_keys @ basis.T) if len(basis) else np.zeros(face_keys.shape[1])
    return _FaceSolution(query, compute_precision(face_target, face_keys @ query), dependence)


def _find_normalized_query(
    normalized_keys: NormalizedKeys,
    face: HullFace,
    face_solution: _FaceSolution,
    target: PerKeyVector,
    requested_precision: float | None,
) -> tuple[Vector, float]:
    """Return a query for the normalized keys and a lower bound on the norm of any query that does the same."""
    if not face.has_all_keys:
        return _find_query_approaching_face(
            normalized_keys,
            face,
            face_solution,
            DEFAULT_PRECISION if requested_precision is None else requested_precision,
        )
    norm = float(np.linalg.norm(face_solution.query))
    if requested_precision is None or norm == 0 or requested_precision > 1 - EXACT_PRECISION_MARGIN:
        return face_solution.query, norm
    # KL(target, weights) = logsumexp((keys - mean) @ query) - entropy: the same program as for a face.
    positive_target = target[target > 0]
    entropy = -float(positive_target @ np.log(positive_target))
    limit = entropy - math.log(face_solution.best) - math.log(requested_precision)
    shifted_keys = normalized_keys.keys - target @ normalized_keys.keys
    num_keys, head_dim = shifted_keys.shape
    shortest = find_shortest_vector(shifted_keys, np.zeros(num_keys), limit, np.zeros(head_dim), 1.0)
    return shortest.vector, shortest.norm_lower_bound


def _find_query_approaching_face(
    normalized_keys: NormalizedKeys, face: HullFace, face_solution: _FaceSolution, precision: float
) -> tuple[Vector, float]:
    """Return the shortest query with the target's weight ratios on the face and total weight `precision` there."""
    assert face.direction is not None and face.margin is not None and face.nearest_mixture is not None
    face_indices = list(face.key_indices)
    outside_indices = [index for index in range(len(normalized_keys.keys)) if index not in face.key_indices]
    projected_keys = project_out_face(normalized_keys, face.key_indices)[outside_indices]
    scores = normalized_keys.keys @ face_solution.query
    # Projected along the face, the face is one point at 0 with score logsumexp of its keys.
    offsets = scores[outside_indices] - logsumexp(scores[face_indices])
    limit = math.log1p(-precision) - math.log(precision)
    start_norm = max(logsumexp(offsets) - limit, 0.0) / face.margin
    shortest = find_shortest_vector(
        projected_keys, offsets, limit, start_norm * face.direction, max(start_norm, 1.0) / face.margin
    )
    norm_lower_bound = max(
        shortest.norm_lower_bound, compute_norm_lower_bound(projected_keys, offsets, face.nearest_mixture, limit)
    )
    return face_solution.query + shortest.vector, math.hypot(
        float(np.linalg.norm(face_solution.query)), norm_lower_bound
    )


def _lengthen_query(
    keys: KeyMatrix, query: Vector, face: HullFace, scale: float, requested_precision: float | None
) -> Vector:
    """Extend a query along the face direction until it reaches the precision in floating point.

    Scores of long queries round, so the precision is evaluated exactly as a caller would evaluate it.
    """
    assert face.direction is not None and face.margin is not None
    face_indices = list(face.key_indices)
    required_precision = DEFAULT_PRECISION if requested_precision is None else requested_precision
    for attempt in range(20):
        reached_precision = float(softmax(keys @ query)[face_indices].sum())
        if reached_precision >= required_precision:
            break
        shortfall = max(
            (required_precision - reached_precision) / (required_precision * (1 - required_precision)),
            1e-15 * 2**attempt,
        )
        query = query + 2 * shortfall / (face.margin * scale) * face.direction
    return query


def _explain_solution(
    normalized_keys: NormalizedKeys,
    face: HullFace,
    face_solution: _FaceSolution,
    target: PerKeyVector,
    precision: float,
    norm: float,
) -> str:
    """Explain why a designed query reaches the target exactly, only in the limit, or not at all."""
    target_indices = tuple(int(index) for index in np.flatnonzero(target > 0))
    if face.affine_dependence is not None:
        explanation = phrasing.explain_not_a_face(
            target_indices, face, normalized_keys.scale, normalized_keys.tolerance
        )
        return explanation + phrasing.describe_best_approximation(
            face_solution.best, face.has_all_keys, precision, len(target_indices) == 1, face.residual
        )
    if face_solution.affine_dependence is not None:
        explanation = phrasing.explain_not_log_linear(face_solution.affine_dependence, target)
        return explanation + phrasing.describe_best_approximation(
            face_solution.best, face.has_all_keys, precision, False
        )
    reached_precision = phrasing.format_precision(precision)
    if face.margin is not None:
        explanation = phrasing.explain_face(target_indices, face.margin * normalized_keys.scale)
        return f"{explanation} This is the shortest query that reaches {reached_precision}, with norm {norm:.4g}."
    if len(target) == 1:
        return "There is only one key: every query gives it the whole weight."
    if norm == 0:
        return "The zero query gives every key the same score and so the same weight."
    if precision < 1 - 1e-9:
        return (
            f"A finite query produces the target exactly; this is the shortest query that reaches {reached_precision}."
        )
    return "The log-weights of the target are an affine function of the keys: this query produces them up to rounding."
