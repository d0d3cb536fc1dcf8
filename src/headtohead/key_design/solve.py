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
from headtohead.key_design.faces import Face, Frame, flat_of, seen_along, smallest_face
from headtohead.key_design.solutions import Answer, Identity
from headtohead.key_design.solvers import OfKeys, Rows, Vector, length_needed, logsumexp, lowest, shortest, softmax

PRECISION = 0.999
TOLERANCE = 1e-9
NEARLY = 1e-9
"""who wants a target that a query attains to such precision gets that query: a shorter one would gain nothing"""


def select(
    keys: Any, i: int, *, precision: float | None = None, values: Any = None, tolerance: float = TOLERANCE
) -> Answer:
    """A query that puts the weight on key i (counted from 0).

    If that can be done to any precision, the shortest query is given that reaches `precision` (0.999 if not said);
    if not, a proof and the query with the highest weight on key i.
    """
    rows = check.matrix(keys)
    at = check.index(i, len(rows))
    target = np.zeros(len(rows))
    target[at] = 1.0
    return _answer(f"select key {at}", rows, target, precision, values, tolerance)


def average(
    keys: Any,
    indices: Sequence[int] | None = None,
    *,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = TOLERANCE,
) -> Answer:
    """A query with equal weights on some keys (all, if not said) and none on the others."""
    rows = check.matrix(keys)
    chosen = tuple(range(len(rows))) if indices is None else check.indices(indices, len(rows))
    target = np.zeros(len(rows))
    target[list(chosen)] = 1 / len(chosen)
    question = "average all keys" if len(chosen) == len(rows) else f"average {words.places(sorted(chosen))}"
    return _answer(question, rows, target, precision, values, tolerance)


def weights(
    keys: Any, target: Any, *, precision: float | None = None, values: Any = None, tolerance: float = TOLERANCE
) -> Answer:
    """A query that yields the target's weights: one for each key, together 1.

    Where a finite query yields them, it is given itself, unless `precision` asks for the shortest that comes near.
    """
    rows = check.matrix(keys)
    wanted = check.distribution(target, len(rows))
    said = ", ".join(f"{weight:.4g}" for weight in wanted[:8]) + (", ..." if len(wanted) > 8 else "")
    return _answer(f"weights {said}", rows, wanted, precision, values, tolerance)


def identity(
    keys: Any, *, precision: float | None = None, values: Any = None, tolerance: float = TOLERANCE
) -> Identity:
    """A query matrix of which row i selects key i. Exact if and only if every key is a corner."""
    rows = check.matrix(keys)
    found = tuple(select(rows, at, precision=precision, values=values, tolerance=tolerance) for at in range(len(rows)))
    wrong = [at for at, answer in enumerate(found) if not answer.exact]
    if wrong:
        best = min(wrong, key=lambda at: found[at].best)
        reason = (
            f"{words.places(wrong).capitalize()} cannot be selected, so no query matrix gives the identity. "
            f"{found[best].reason}"
        )
    elif len(rows) == 1:
        reason = found[0].reason
    else:
        reason = (
            "Every key is a corner of the keys, so each row selects its own to any precision. "
            f"The rows given reach {words.figure(min(answer.precision for answer in found))} or more."
        )
    outputs = None if values is None else check.matrix(values, "values", len(rows))
    yielded = np.stack([answer.weights for answer in found])
    return Identity(
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


def fit(target: OfKeys, scores: OfKeys) -> float:
    """exp(-KL(target, softmax(scores))): 1 where they are equal."""
    used = target > 0
    shifted = scores - scores.max()  # before the sum: long queries have scores of which only differences keep digits
    logs = (shifted - logsumexp(shifted))[used]
    return math.exp(-max(0.0, float(target[used] @ (np.log(target[used]) - logs))))


@dataclass(frozen=True, eq=False)
class _OnFace:
    """The best weights on a face, and a query for the frame's rows that yields their shares."""

    query: Vector
    best: float
    relation: OfKeys | None
    """why these are not the target's, if so"""


def _answer(
    question: str, keys: Rows, target: OfKeys, precision: float | None, values: Any, tolerance: float
) -> Answer:
    outputs = None if values is None else check.matrix(values, "values", len(keys))
    asked = None if precision is None else check.precision(precision)
    frame = Frame.of(keys, check.tolerance(tolerance))
    wanted = tuple(int(at) for at in np.flatnonzero(target > 0))
    face = smallest_face(frame, wanted)
    on_face = _on_face(frame, face, target)
    query, at_least = _query(frame, face, on_face, target, asked)
    with np.errstate(over="ignore"):
        query, at_least = query / frame.size, at_least / frame.size
    if not np.isfinite(query).all():
        raise RequestError(f"keys: they differ by {frame.size:.2g} at most, too little for a query to tell them apart")
    if face.direction is not None:
        query = _lengthened(keys, query, face, frame.size, asked)
    scores = keys @ query
    yielded = softmax(scores)
    exact = on_face.relation is None and face.relation is None
    reached = fit(target, scores)
    norm = float(np.linalg.norm(query))
    return Answer(
        question=question,
        keys=keys,
        target=target,
        query=query,
        weights=yielded,
        exact=exact,
        reason=_reason(frame, face, on_face, target, reached, norm),
        precision=reached,
        best=on_face.best,
        attained=face.is_all,
        norm=norm,
        norm_at_least=min(at_least, norm),
        face=face.members,
        margin=None if face.margin is None else face.margin * frame.size,
        direction=face.direction,
        certificate=face.relation if face.relation is not None else on_face.relation,
        tolerance=frame.tolerance * frame.size,
        values=outputs,
        output=None if outputs is None else yielded @ outputs,
        wanted=None if outputs is None else target @ outputs,
    )


def _on_face(frame: Frame, face: Face, target: OfKeys) -> _OnFace:
    """Points 1 and 3 of the theory, among the keys of the face."""
    members = list(face.members)
    shares = target[members]
    rows = frame.rows[members]
    moved = rows - rows.mean(axis=0)
    flat = flat_of(moved, frame.tolerance)
    relation: OfKeys | None = None
    if face.relation is None:
        logs = np.log(shares / shares[0])  # equal shares give 0, without rounding
        logs = logs - logs.mean()
        query = flat.T @ np.linalg.lstsq(moved @ flat.T, logs, rcond=None)[0] if len(flat) else np.zeros(rows.shape[1])
        left = logs - moved @ query
        if np.abs(left).max() <= frame.tolerance * max(1.0, float(np.abs(logs).max())):
            return _OnFace(query, 1.0, None)
        relation = np.zeros(len(target))
        relation[members] = left
    centred = rows - shares @ rows
    query = flat.T @ lowest(centred @ flat.T) if len(flat) else np.zeros(rows.shape[1])
    return _OnFace(query, fit(shares, rows @ query), relation)


def _query(frame: Frame, face: Face, on_face: _OnFace, target: OfKeys, asked: float | None) -> tuple[Vector, float]:
    """A query for the frame's rows, and a length that none that does the same is shorter than."""
    if not face.is_all:
        return _towards(frame, face, on_face, PRECISION if asked is None else asked)
    length = float(np.linalg.norm(on_face.query))
    if asked is None or length == 0 or asked > 1 - NEARLY:
        return on_face.query, length
    # KL(target, weights) = log-sum-exp((rows - mean) @ query) - entropy: the same program as for a face.
    used = target[target > 0]
    entropy = -float(used @ np.log(used))
    limit = entropy - math.log(on_face.best) - math.log(asked)
    rows = frame.rows - target @ frame.rows
    found = shortest(rows, np.zeros(len(rows)), limit, np.zeros(rows.shape[1]), 1.0)
    return found.vector, found.at_least


def _towards(frame: Frame, face: Face, on_face: _OnFace, wanted: float) -> tuple[Vector, float]:
    """The shortest query with the right shares on the face and all but 1 - `wanted` of the weight there."""
    assert face.direction is not None and face.margin is not None and face.mixture is not None
    members = list(face.members)
    others = [at for at in range(len(frame.rows)) if at not in face.members]
    beside = seen_along(frame, face.members)[others]
    scores = frame.rows @ on_face.query
    # Seen along the face it is one point at 0, whose score is the log-sum-exp of its keys.
    offsets = scores[others] - logsumexp(scores[members])
    limit = math.log1p(-wanted) - math.log(wanted)
    reach = max(logsumexp(offsets) - limit, 0.0) / face.margin
    found = shortest(beside, offsets, limit, reach * face.direction, max(reach, 1.0) / face.margin)
    at_least = max(found.at_least, length_needed(beside, offsets, face.mixture, limit))
    return on_face.query + found.vector, math.hypot(float(np.linalg.norm(on_face.query)), at_least)


def _lengthened(keys: Rows, query: Vector, face: Face, size: float, asked: float | None) -> Vector:
    """The scores of long queries round: a little more in the direction that lowers every other key, until the wanted
    precision is reached as the user will compute it."""
    assert face.direction is not None and face.margin is not None
    members = list(face.members)
    wanted = PRECISION if asked is None else asked
    for attempt in range(20):
        reached = float(softmax(keys @ query)[members].sum())
        if reached >= wanted:
            break
        short = max((wanted - reached) / (wanted * (1 - wanted)), 1e-15 * 2**attempt)
        query = query + 2 * short / (face.margin * size) * face.direction
    return query


def _reason(frame: Frame, face: Face, on_face: _OnFace, target: OfKeys, reached: float, norm: float) -> str:
    wanted = tuple(int(at) for at in np.flatnonzero(target > 0))
    if face.relation is not None:
        why = words.why_no_face(wanted, face, frame.size, frame.tolerance)
        return why + words.how_near(on_face.best, face.is_all, reached, len(wanted) == 1, face.gap)
    if on_face.relation is not None:
        why = words.why_not_linear(on_face.relation, target)
        return why + words.how_near(on_face.best, face.is_all, reached, False)
    if face.margin is not None:
        return words.why_a_face(wanted, face.margin * frame.size) + words.how_far(reached, norm)
    if len(target) == 1:
        return "There is only one key: every query gives it all the weight."
    if norm == 0:
        return "The query 0 gives every key the same score, and so the same weight."
    if reached < 1 - 1e-9:
        return f"A finite query yields the target itself; this is the shortest that reaches {words.figure(reached)}."
    return "The logarithms of the target are a linear function of the keys: this query yields it, to rounding."
