"""Design by hand: a query for given keys that selects one, averages some, or puts given weights on them.

    weights = softmax(keys @ query)

(Where a model divides the scores by sqrt(head_dim), multiply the query by that.) The weights that queries can yield are
an exponential family with the keys as statistics, and one theory answers every question (Barndorff-Nielsen, Information
and Exponential Families, 1978; Csiszár, I-divergence geometry, Annals of Probability 3, 1975):

1. Weights without zeros are yielded by some query if and only if their logarithms are a linear function of the keys
   plus a constant: a linear system.
2. Weights with zeros are never yielded, but approached by longer and longer queries, if and only if the keys with
   weight are all the keys on one face of the keys' hull, and point 1 holds on that face. A single key is such a face
   when it is a corner, an extreme point of the keys, and no other key equals it.
3. Otherwise there is one best approximation, the one with the smallest divergence KL(target, weights). It has the same
   mean key as the target. For a single key, this is the highest weight that it can get.

Which face, and the proof when there is none, is the work of `design_faces`; the arithmetic is in `design_solvers`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtohead.errors import RequestError
from headtohead.key_design import inputs as check
from headtohead.key_design import phrasing as words
from headtohead.key_design.faces import (
    HullFace,
    NormalizedKeys,
    compute_affine_basis,
    find_smallest_face,
    project_out_face,
)
from headtohead.key_design.solutions import QueryDesign, QueryMatrixDesign
from headtohead.key_design.solvers import (
    KeyMatrix,
    PerKeyVector,
    Vector,
    compute_norm_lower_bound,
    find_shortest_vector,
    logsumexp,
    minimize_logsumexp,
    softmax,
)

DEFAULT_PRECISION = 0.999
DEFAULT_TOLERANCE = 1e-9
EXACT_PRECISION_MARGIN = 1e-9
"""who wants a target that a query attains to such precision gets that query: a shorter one would gain nothing"""


def find_selecting_query(
    keys: Any,
    key_index: int,
    *,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> QueryDesign:
    """A query that puts the weight on key i (counted from 0).

    If that can be done to any precision, the shortest query is given that reaches `precision` (0.999 if not said);
    if not, a proof and the query with the highest weight on key i.
    """
    rows = check.validate_matrix(keys)
    at = check.validate_index(key_index, len(rows))
    target = np.zeros(len(rows))
    target[at] = 1.0
    return _solve_query(f"select key {at}", rows, target, precision, values, tolerance)


def find_averaging_query(
    keys: Any,
    indices: Sequence[int] | None = None,
    *,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> QueryDesign:
    """A query with equal weights on some keys (all, if not said) and none on the others."""
    rows = check.validate_matrix(keys)
    chosen = tuple(range(len(rows))) if indices is None else check.validate_indices(indices, len(rows))
    target = np.zeros(len(rows))
    target[list(chosen)] = 1 / len(chosen)
    question = "average all keys" if len(chosen) == len(rows) else f"average {words.format_key_list(sorted(chosen))}"
    return _solve_query(question, rows, target, precision, values, tolerance)


def find_query_for_weights(
    keys: Any, target: Any, *, precision: float | None = None, values: Any = None, tolerance: float = DEFAULT_TOLERANCE
) -> QueryDesign:
    """A query that yields the target's weights: one for each key, together 1.

    Where a finite query yields them, it is given itself, unless `precision` asks for the shortest that comes near.
    """
    rows = check.validate_matrix(keys)
    wanted = check.validate_distribution(target, len(rows))
    said = ", ".join(f"{weight:.4g}" for weight in wanted[:8]) + (", ..." if len(wanted) > 8 else "")
    return _solve_query(f"weights {said}", rows, wanted, precision, values, tolerance)


def find_identity_queries(
    keys: Any, *, precision: float | None = None, values: Any = None, tolerance: float = DEFAULT_TOLERANCE
) -> QueryMatrixDesign:
    """A query matrix of which row i selects key i. Exact if and only if every key is a corner."""
    rows = check.validate_matrix(keys)
    found = tuple(
        find_selecting_query(rows, at, precision=precision, values=values, tolerance=tolerance)
        for at in range(len(rows))
    )
    wrong = [at for at, answer in enumerate(found) if not answer.exact]
    if wrong:
        best = min(wrong, key=lambda at: found[at].best)
        reason = (
            f"{words.format_key_list(wrong).capitalize()} cannot be selected, so no query matrix gives the identity. "
            f"{found[best].reason}"
        )
    elif len(rows) == 1:
        reason = found[0].reason
    else:
        reason = (
            "Every key is a corner of the keys, so each row selects its own to any precision. "
            f"The rows given reach {words.format_precision(min(answer.precision for answer in found))} or more."
        )
    outputs = None if values is None else check.validate_matrix(values, "values", len(rows))
    yielded = np.stack([answer.weights for answer in found])
    return QueryMatrixDesign(
        question="identity: row i selects key i",
        keys=rows,
        target=np.eye(len(rows)),
        query=np.stack([answer.query for answer in found]),
        weights=yielded,
        exact=not wrong,
        reason=reason,
        precision=min(answer.precision for answer in found),
        best=min(answer.best for answer in found),
        attained=all(answer.attained for answer in found),
        norm=max(answer.norm for answer in found),
        rows=found,
        tolerance=max(answer.tolerance for answer in found),
        values=outputs,
        output=None if outputs is None else yielded @ outputs,
        wanted=outputs,
    )


def compute_precision(target: PerKeyVector, scores: PerKeyVector) -> float:
    """exp(-KL(target, softmax(scores))): 1 where they are equal."""
    used = target > 0
    shifted = scores - scores.max()  # before the sum: long queries have scores of which only differences keep digits
    logs = (shifted - logsumexp(shifted))[used]
    return math.exp(-max(0.0, float(target[used] @ (np.log(target[used]) - logs))))


@dataclass(frozen=True, eq=False)
class _FaceSolution:
    """The best weights on a face, and a query for the frame's rows that yields their shares."""

    query: Vector
    best: float
    affine_dependence: PerKeyVector | None
    """why these are not the target's, if so"""


def _solve_query(
    question: str, keys: KeyMatrix, target: PerKeyVector, precision: float | None, values: Any, tolerance: float
) -> QueryDesign:
    outputs = None if values is None else check.validate_matrix(values, "values", len(keys))
    asked = None if precision is None else check.validate_precision(precision)
    frame = NormalizedKeys.of(keys, check.validate_tolerance(tolerance))
    wanted = tuple(int(at) for at in np.flatnonzero(target > 0))
    face = find_smallest_face(frame, wanted)
    on_face = _solve_on_face(frame, face, target)
    query, at_least = _find_query(frame, face, on_face, target, asked)
    with np.errstate(over="ignore"):
        query, at_least = query / frame.size, at_least / frame.size
    if not np.isfinite(query).all():
        raise RequestError(f"keys: they differ by {frame.size:.2g} at most, too little for a query to tell them apart")
    if face.direction is not None:
        query = _lengthen_query(keys, query, face, frame.size, asked)
    scores = keys @ query
    yielded = softmax(scores)
    exact = on_face.affine_dependence is None and face.affine_dependence is None
    reached = compute_precision(target, scores)
    norm = float(np.linalg.norm(query))
    return QueryDesign(
        question=question,
        keys=keys,
        target=target,
        query=query,
        weights=yielded,
        exact=exact,
        reason=_explain_solution(frame, face, on_face, target, reached, norm),
        precision=reached,
        best=on_face.best,
        attained=face.has_all_keys,
        norm=norm,
        norm_at_least=min(at_least, norm),
        face=face.key_indices,
        margin=None if face.margin is None else face.margin * frame.size,
        direction=face.direction,
        certificate=face.affine_dependence if face.affine_dependence is not None else on_face.affine_dependence,
        tolerance=frame.tolerance * frame.size,
        values=outputs,
        output=None if outputs is None else yielded @ outputs,
        wanted=None if outputs is None else target @ outputs,
    )


def _solve_on_face(frame: NormalizedKeys, face: HullFace, target: PerKeyVector) -> _FaceSolution:
    """Points 1 and 3 of the theory, among the keys of the face."""
    members = list(face.key_indices)
    shares = target[members]
    rows = frame.rows[members]
    moved = rows - rows.mean(axis=0)
    flat = compute_affine_basis(moved, frame.tolerance)
    relation: PerKeyVector | None = None
    if face.affine_dependence is None:
        logs = np.log(shares / shares[0])  # equal shares give 0, without rounding
        logs = logs - logs.mean()
        query = flat.T @ np.linalg.lstsq(moved @ flat.T, logs, rcond=None)[0] if len(flat) else np.zeros(rows.shape[1])
        left = logs - moved @ query
        if np.abs(left).max() <= frame.tolerance * max(1.0, float(np.abs(logs).max())):
            return _FaceSolution(query, 1.0, None)
        relation = np.zeros(len(target))
        relation[members] = left
    centred = rows - shares @ rows
    query = flat.T @ minimize_logsumexp(centred @ flat.T) if len(flat) else np.zeros(rows.shape[1])
    return _FaceSolution(query, compute_precision(shares, rows @ query), relation)


def _find_query(
    frame: NormalizedKeys,
    face: HullFace,
    face_solution: _FaceSolution,
    target: PerKeyVector,
    requested_precision: float | None,
) -> tuple[Vector, float]:
    """A query for the frame's rows, and a length that none that does the same is shorter than."""
    if not face.has_all_keys:
        return _find_query_approaching_face(
            frame, face, face_solution, DEFAULT_PRECISION if requested_precision is None else requested_precision
        )
    length = float(np.linalg.norm(face_solution.query))
    if requested_precision is None or length == 0 or requested_precision > 1 - EXACT_PRECISION_MARGIN:
        return face_solution.query, length
    # KL(target, weights) = log-sum-exp((rows - mean) @ query) - entropy: the same program as for a face.
    used = target[target > 0]
    entropy = -float(used @ np.log(used))
    limit = entropy - math.log(face_solution.best) - math.log(requested_precision)
    rows = frame.rows - target @ frame.rows
    found = find_shortest_vector(rows, np.zeros(len(rows)), limit, np.zeros(rows.shape[1]), 1.0)
    return found.vector, found.norm_lower_bound


def _find_query_approaching_face(
    frame: NormalizedKeys, face: HullFace, face_solution: _FaceSolution, precision: float
) -> tuple[Vector, float]:
    """The shortest query with the right shares on the face and all but 1 - `wanted` of the weight there."""
    assert face.direction is not None and face.margin is not None and face.nearest_mixture is not None
    members = list(face.key_indices)
    others = [at for at in range(len(frame.rows)) if at not in face.key_indices]
    beside = project_out_face(frame, face.key_indices)[others]
    scores = frame.rows @ face_solution.query
    # Seen along the face it is one point at 0, whose score is the log-sum-exp of its keys.
    offsets = scores[others] - logsumexp(scores[members])
    limit = math.log1p(-precision) - math.log(precision)
    reach = max(logsumexp(offsets) - limit, 0.0) / face.margin
    found = find_shortest_vector(beside, offsets, limit, reach * face.direction, max(reach, 1.0) / face.margin)
    at_least = max(found.norm_lower_bound, compute_norm_lower_bound(beside, offsets, face.nearest_mixture, limit))
    return face_solution.query + found.vector, math.hypot(float(np.linalg.norm(face_solution.query)), at_least)


def _lengthen_query(
    keys: KeyMatrix, query: Vector, face: HullFace, scale: float, requested_precision: float | None
) -> Vector:
    """The scores of long queries round: a little more in the direction that lowers every other key, until the wanted
    precision is reached as the user will compute it."""
    assert face.direction is not None and face.margin is not None
    members = list(face.key_indices)
    wanted = DEFAULT_PRECISION if requested_precision is None else requested_precision
    for attempt in range(20):
        reached = float(softmax(keys @ query)[members].sum())
        if reached >= wanted:
            break
        short = max((wanted - reached) / (wanted * (1 - wanted)), 1e-15 * 2**attempt)
        query = query + 2 * short / (face.margin * scale) * face.direction
    return query


def _explain_solution(
    frame: NormalizedKeys,
    face: HullFace,
    face_solution: _FaceSolution,
    target: PerKeyVector,
    precision: float,
    norm: float,
) -> str:
    wanted = tuple(int(at) for at in np.flatnonzero(target > 0))
    if face.affine_dependence is not None:
        why = words.explain_not_a_face(wanted, face, frame.size, frame.tolerance)
        return why + words.describe_best_approximation(
            face_solution.best, face.has_all_keys, precision, len(wanted) == 1, face.residual
        )
    if face_solution.affine_dependence is not None:
        why = words.explain_not_log_linear(face_solution.affine_dependence, target)
        return why + words.describe_best_approximation(face_solution.best, face.has_all_keys, precision, False)
    if face.margin is not None:
        return words.explain_face(wanted, face.margin * frame.size) + words.describe_shortest_query(precision, norm)
    if len(target) == 1:
        return "There is only one key: every query gives it all the weight."
    if norm == 0:
        return "The query 0 gives every key the same score, and so the same weight."
    if precision < 1 - 1e-9:
        return f"A finite query yields the target itself; this is the shortest that reaches {words.format_precision(precision)}."  # noqa: E501
    return "The logarithms of the target are a linear function of the keys: this query yields it, to rounding."
