"""A new key in the place of one, so that a query which stays the same averages, selects, or yields given weights.

The other keys' scores stay, and so do the shares that they have among themselves; all that a new key chooses is its own
score, k @ query, and with it its own weight. So there is one number to find, and KL(target, weights) splits in two:
what the others' shares cost, which no key changes, and what the new key's own weight costs, which is least where that
weight is the target's, or as near as its length allows: |k @ query| is at most |k| |query|. Among the keys with that
score, the one nearest to the old key is given. All of this is exact; nothing is searched but the factor `scale`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from headtohead.errors import RequestError
from headtohead.key_design import inputs as check
from headtohead.key_design import phrasing as words
from headtohead.key_design.solutions import KeyReplacement
from headtohead.key_design.solve import DEFAULT_PRECISION, DEFAULT_TOLERANCE, compute_precision
from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector, logsumexp, softmax

MAX_QUERY_SCALE = 1e6
"""the largest factor tried for the query"""


def replace_key(
    keys: Any,
    query: Any,
    key_index: int,
    *,
    average: Sequence[int] | None = None,
    select: bool = False,
    weights: Any = None,
    required_norm: float | None = None,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = DEFAULT_TOLERANCE,
) -> KeyReplacement:
    """A new key i with which the query averages some keys, selects key i, or yields the given weights.

    Say one of `average`, `select` and `weights`. With `length` the new key has that length. Where the target is only
    approached by longer and longer keys, the one given reaches `precision` (0.999 if not said) of the best.
    """
    rows = check.validate_matrix(keys)
    at = check.validate_index(key_index, len(rows))
    one = check.validate_vector(query, rows.shape[1], "query", "numbers of a key")
    target, question = _build_target(len(rows), at, average, select, weights)
    fits = "it must be a number of at least 0"
    size = (
        None
        if required_norm is None
        else check.validate_number(required_norm, "length", fits, lambda given: given >= 0)
    )
    wanted = DEFAULT_PRECISION if precision is None else check.validate_precision(precision)
    outputs = None if values is None else check.validate_matrix(values, "values", len(rows))
    task = _ReplacementProblem(rows, at, one, target, size, wanted, check.validate_tolerance(tolerance))
    return _build_replacement(task, question, outputs)


@dataclass(frozen=True, eq=False)
class _ReplacementProblem:
    """What is given, checked."""

    keys: KeyMatrix
    at: int
    query: Vector
    target: PerKeyVector
    length: float | None
    precision: float
    tolerance: float

    @property
    def others(self) -> PerKeyVector:
        """The scores of the other keys."""
        return np.delete(self.keys @ self.query, self.at)

    def compute_score_ranges(self) -> list[tuple[float, float]]:
        """The scores that a new key can have; in one dimension a length leaves two, otherwise all between."""
        norm = float(np.linalg.norm(self.query))
        if norm == 0:
            return [(0.0, 0.0)]
        if self.length is None:
            return [(-math.inf, math.inf)]
        most = norm * self.length
        return [(-most, -most), (most, most)] if len(self.query) == 1 else [(-most, most)]

    def scale_query(self, factor: float) -> _ReplacementProblem:
        return _ReplacementProblem(
            self.keys, self.at, factor * self.query, self.target, self.length, self.precision, self.tolerance
        )

    def compute_precision_at_score(self, score: float) -> float:
        """The precision that a key with this score gives; also at the ends, minus and plus infinity."""
        own = self.target[self.at]
        rest = np.delete(self.target, self.at)
        if math.isfinite(score):
            return compute_precision(self.target, np.insert(self.others, self.at, score))
        if score > 0:
            return float(own == 1)
        return compute_precision(rest, self.others) if own == 0 else 0.0

    def off(self, score: float) -> tuple[PerKeyVector, float]:
        """How far the others' shares of what the new key leaves, and its own weight, are from the target's."""
        own = float(self.target[self.at])
        rest = np.delete(self.target, self.at)
        shares = softmax(self.others) - rest / (1 - own) if own < 1 else np.zeros_like(rest)
        if not math.isfinite(score):
            return shares, float(score > 0) - own
        return shares, float(softmax(np.insert(self.others, self.at, score))[self.at]) - own


def _build_target(num_keys: int, key_index: int, average: Any, select: bool, weights: Any) -> tuple[PerKeyVector, str]:
    asked = [name for name, given in (("average", average), ("weights", weights)) if given is not None]
    asked += ["select"] if select else []
    if len(asked) != 1:
        given = " and ".join(asked) or "none of them"
        raise RequestError(f"replace_key: say one of average, select and weights; {given} given")
    if weights is not None:
        return check.validate_distribution(weights, num_keys), f"replace key {key_index} to yield given weights"
    chosen = (key_index,) if select else check.validate_indices(average, num_keys)
    target = np.zeros(num_keys)
    target[list(chosen)] = 1 / len(chosen)
    what = "be selected" if select else f"average {words.format_key_list(sorted(chosen))}"
    return target, f"replace key {key_index} to {what}"


def _compute_ideal_score(problem: _ReplacementProblem) -> float:
    """The score at which the new key has the target's weight; infinite where that weight is 0 or 1."""
    own = float(problem.target[problem.at])
    if own in (0.0, 1.0) or len(problem.target) == 1:
        return math.inf if own else -math.inf
    return math.log(own) - math.log1p(-own) + logsumexp(problem.others)


def _find_best_score(problem: _ReplacementProblem) -> tuple[float, float]:
    """The score that a new key should have, perhaps infinite, and the precision it gives."""
    if len(problem.target) == 1:
        return 0.0, 1.0
    ideal = _compute_ideal_score(problem)
    choices = [min(max(ideal, low), high) for low, high in problem.compute_score_ranges()]
    score = max(choices, key=problem.compute_precision_at_score)
    return score, problem.compute_precision_at_score(score)


def _choose_finite_score(problem: _ReplacementProblem, score: float) -> float:
    """A score that reaches the wanted part of the best, where the best is a limit: the nearest to the old score."""
    if math.isfinite(score):
        return score
    ratio = math.log(problem.precision) - math.log1p(-problem.precision) + 1e-12
    total = logsumexp(problem.others)
    old = float(problem.keys[problem.at] @ problem.query)
    return max(old, total + ratio) if score > 0 else min(old, total - ratio)


def _build_key(problem: _ReplacementProblem, score: float) -> Vector:
    """The key with this score, and this length if there is one, that is nearest to the old one."""
    old, norm = problem.keys[problem.at], float(np.linalg.norm(problem.query))
    if norm == 0:
        return old if problem.length is None else _rescale_to_norm(old, problem.length)
    unit = problem.query / norm
    across = old - (old @ unit) * unit
    if problem.length is None:
        return np.asarray(across + score / norm * unit)
    along = score / norm
    left = math.sqrt(max(0.0, (problem.length - along) * (problem.length + along)))
    if left <= 1e-7 * problem.length:  # the root of rounding: the key lies along the query
        return np.asarray(math.copysign(problem.length, along) * unit)
    if np.linalg.norm(across) <= 1e-12 * max(1.0, float(np.linalg.norm(old))):
        # The old key lies along the query: any direction across it is as near as any other.
        axis = np.zeros_like(unit)
        axis[int(np.argmin(np.abs(unit)))] = 1.0
        across = axis - (axis @ unit) * unit
    return np.asarray(along * unit + _rescale_to_norm(across, left))


def _rescale_to_norm(vector: Vector, target_norm: float) -> Vector:
    norm = float(np.linalg.norm(vector))
    if norm == 0:
        vector, norm = np.eye(len(vector))[0], 1.0
    return np.asarray(vector * (target_norm / norm))


def _build_replacement(problem: _ReplacementProblem, question: str, outputs: KeyMatrix | None) -> KeyReplacement:
    score, best = _find_best_score(problem)
    key = _build_key(problem, _choose_finite_score(problem, score))
    changed = problem.keys.copy()
    changed[problem.at] = key
    scores = changed @ problem.query
    yielded, reached = softmax(scores), compute_precision(problem.target, scores)
    exact = _is_exact(problem, score)
    scale = 1.0 if reached >= problem.precision else _find_query_scale(problem)
    if problem.length is not None:
        question += f", with length {problem.length:g}"
    return KeyReplacement(
        question=question,
        keys=changed,
        old=problem.keys,
        at=problem.at,
        target=problem.target,
        query=problem.query,
        key=key,
        weights=yielded,
        exact=exact,
        reason=_explain_replacement(problem, score, exact, best, reached, scale),
        precision=reached,
        best=best,
        attained=math.isfinite(score),
        norm=float(np.linalg.norm(key)),
        length=problem.length,
        moved=float(np.linalg.norm(key - problem.keys[problem.at])),
        scale=scale,
        tolerance=problem.tolerance,
        values=outputs,
        output=None if outputs is None else yielded @ outputs,
        wanted=None if outputs is None else problem.target @ outputs,
    )


def _is_exact(problem: _ReplacementProblem, score: float) -> bool:
    if len(problem.target) == 1:
        return True
    shares, own = problem.off(score)
    return max(float(np.abs(shares).max()), abs(own)) <= problem.tolerance


def _find_query_scale(problem: _ReplacementProblem) -> float | None:
    """The factor for the query nearest to 1 at which some key reaches the wanted precision.

    KL(target, weights) is convex in the factor and the new score together, so its lowest value over the scores is
    convex in the factor: it has one valley, and from 1 there is one way down.
    """
    if not problem.query.any():
        return None
    found = [factor for sign in (1, -1) for factor in _find_query_scales(problem, sign)]
    return min(found, key=lambda factor: abs(math.log(factor)), default=None)


def _find_query_scales(problem: _ReplacementProblem, sign: int) -> list[float]:
    """At most one factor; `sign` picks the half of the two that a length leaves in one dimension."""

    def short(log_factor: float) -> float:
        """How far the precision is below the wanted one, in logarithms."""
        scaled = problem.scale_query(math.exp(log_factor))
        ranges = scaled.compute_score_ranges()
        low, high = ranges[0] if sign < 0 else ranges[-1]
        reached = scaled.compute_precision_at_score(min(max(_compute_ideal_score(scaled), low), high))
        return math.log(problem.precision) - math.log(max(reached, 1e-300))

    most = math.log(MAX_QUERY_SCALE)
    valley = minimize_scalar(short, bounds=(-most, most), method="bounded", options={"xatol": 1e-6})
    lowest = min((float(valley.x), -most, most), key=short)
    if short(lowest) > 0:
        return []
    if short(0.0) <= 0:
        return [1.0]
    return [math.exp(float(brentq(short, 0.0, lowest, xtol=1e-12)))]


def _explain_replacement(
    problem: _ReplacementProblem,
    score: float,
    is_exact: bool,
    best_precision: float,
    precision: float,
    query_scale: float | None,
) -> str:
    at, own = problem.at, float(problem.target[problem.at])
    if len(problem.target) == 1:
        return "There is only one key: every query gives it all the weight."
    if not problem.query.any():
        same = "which is the target" if is_exact else "which is not the target"
        return f"The query is 0: every key has the score 0 and the same weight, {same}."
    if is_exact and math.isfinite(score):
        return f"With the score {score:.4g}, key {at} has its weight of {own:.4g}; the others already have theirs."
    if is_exact:
        way, end = "along", "more weight it gets, as near to 1"
        if score < 0:
            way, end = "against", "less it keeps, as near to 0"
        reach = words.format_precision(precision)
        return f"The farther key {at} lies {way} the query, the {end} as one likes. This one reaches {reach}."
    return " ".join(
        [
            *_explain_obstacles(problem, score),
            _describe_best_precision(score, best_precision, precision),
            _describe_query_scale(query_scale, problem.precision),
        ]
    ).strip()


def _explain_obstacles(problem: _ReplacementProblem, score: float) -> list[str]:
    """What keeps the target away: the other keys' shares, the length, or both."""
    at, said = problem.at, []
    off, _ = problem.off(score)
    worst = int(np.argmax(np.abs(off)))
    if abs(off[worst]) > problem.tolerance:
        gets = float(softmax(problem.others)[worst])
        said.append(
            f"The query divides what key {at} leaves among the other keys, and no new key changes that: key "
            f"{worst + (worst >= at)} gets {gets:.4g} of it and should get {gets - off[worst]:.4g}."
        )
    ideal = _compute_ideal_score(problem)
    if problem.length is not None and score != ideal:
        most = problem.length * float(np.linalg.norm(problem.query))
        need = f"a score of {ideal:.4g}" if math.isfinite(ideal) else "an infinite score"
        can = "is {} or {}" if len(problem.query) == 1 else "lies between {} and {}"
        can = can.format(f"{-most:.4g}", f"{most:.4g}")
        said.append(f"Key {at} would need {need}, and with length {problem.length:g} its score {can}.")
    return said


def _describe_best_precision(score: float, best_precision: float, precision: float) -> str:
    if math.isfinite(score):
        return f"No key does better than this one, with precision {words.format_precision(best_precision)}."
    return f"Longer keys come near to precision {words.format_precision(best_precision)}; this one reaches {words.format_precision(precision)}."  # noqa: E501


def _describe_query_scale(query_scale: float | None, precision: float) -> str:
    if query_scale is None:
        return f"No multiple of the query reaches {words.format_precision(precision)} either."
    if query_scale == 1.0:
        return ""
    return f"With the query times {query_scale:.4g}, some key reaches {words.format_precision(precision)}."
