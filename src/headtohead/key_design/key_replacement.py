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
from headtohead.key_design.solutions import Replacement
from headtohead.key_design.solve import PRECISION, TOLERANCE, fit
from headtohead.key_design.solvers import OfKeys, Rows, Vector, logsumexp, softmax

FARTHEST = 1e6
"""the largest factor tried for the query"""


def replace_key(
    keys: Any,
    query: Any,
    i: int,
    *,
    average: Sequence[int] | None = None,
    select: bool = False,
    weights: Any = None,
    length: float | None = None,
    precision: float | None = None,
    values: Any = None,
    tolerance: float = TOLERANCE,
) -> Replacement:
    """A new key i with which the query averages some keys, selects key i, or yields the given weights.

    Say one of `average`, `select` and `weights`. With `length` the new key has that length. Where the target is only
    approached by longer and longer keys, the one given reaches `precision` (0.999 if not said) of the best.
    """
    rows = check.matrix(keys)
    at = check.index(i, len(rows))
    one = check.vector(query, rows.shape[1], "query", "numbers of a key")
    target, question = _target(len(rows), at, average, select, weights)
    fits = "it must be a number of at least 0"
    size = None if length is None else check.number(length, "length", fits, lambda given: given >= 0)
    wanted = PRECISION if precision is None else check.precision(precision)
    outputs = None if values is None else check.matrix(values, "values", len(rows))
    task = _Task(rows, at, one, target, size, wanted, check.tolerance(tolerance))
    return _replacement(task, question, outputs)


@dataclass(frozen=True, eq=False)
class _Task:
    """What is given, checked."""

    keys: Rows
    at: int
    query: Vector
    target: OfKeys
    length: float | None
    precision: float
    tolerance: float

    @property
    def others(self) -> OfKeys:
        """The scores of the other keys."""
        return np.delete(self.keys @ self.query, self.at)

    def ranges(self) -> list[tuple[float, float]]:
        """The scores that a new key can have; in one dimension a length leaves two, otherwise all between."""
        norm = float(np.linalg.norm(self.query))
        if norm == 0:
            return [(0.0, 0.0)]
        if self.length is None:
            return [(-math.inf, math.inf)]
        most = norm * self.length
        return [(-most, -most), (most, most)] if len(self.query) == 1 else [(-most, most)]

    def scaled(self, factor: float) -> _Task:
        return _Task(self.keys, self.at, factor * self.query, self.target, self.length, self.precision, self.tolerance)

    def with_score(self, score: float) -> float:
        """The precision that a key with this score gives; also at the ends, minus and plus infinity."""
        own = self.target[self.at]
        rest = np.delete(self.target, self.at)
        if math.isfinite(score):
            return fit(self.target, np.insert(self.others, self.at, score))
        if score > 0:
            return float(own == 1)
        return fit(rest, self.others) if own == 0 else 0.0

    def off(self, score: float) -> tuple[OfKeys, float]:
        """How far the others' shares of what the new key leaves, and its own weight, are from the target's."""
        own = float(self.target[self.at])
        rest = np.delete(self.target, self.at)
        shares = softmax(self.others) - rest / (1 - own) if own < 1 else np.zeros_like(rest)
        if not math.isfinite(score):
            return shares, float(score > 0) - own
        return shares, float(softmax(np.insert(self.others, self.at, score))[self.at]) - own


def _target(count: int, at: int, average: Any, select: bool, weights: Any) -> tuple[OfKeys, str]:
    asked = [name for name, given in (("average", average), ("weights", weights)) if given is not None]
    asked += ["select"] if select else []
    if len(asked) != 1:
        given = " and ".join(asked) or "none of them"
        raise RequestError(f"replace_key: say one of average, select and weights; {given} given")
    if weights is not None:
        return check.distribution(weights, count), f"replace key {at} to yield given weights"
    chosen = (at,) if select else check.indices(average, count)
    target = np.zeros(count)
    target[list(chosen)] = 1 / len(chosen)
    what = "be selected" if select else f"average {words.places(sorted(chosen))}"
    return target, f"replace key {at} to {what}"


def _ideal(task: _Task) -> float:
    """The score at which the new key has the target's weight; infinite where that weight is 0 or 1."""
    own = float(task.target[task.at])
    if own in (0.0, 1.0) or len(task.target) == 1:
        return math.inf if own else -math.inf
    return math.log(own) - math.log1p(-own) + logsumexp(task.others)


def _best_score(task: _Task) -> tuple[float, float]:
    """The score that a new key should have, perhaps infinite, and the precision it gives."""
    if len(task.target) == 1:
        return 0.0, 1.0
    ideal = _ideal(task)
    choices = [min(max(ideal, low), high) for low, high in task.ranges()]
    score = max(choices, key=task.with_score)
    return score, task.with_score(score)


def _finite_score(task: _Task, score: float) -> float:
    """A score that reaches the wanted part of the best, where the best is a limit: the nearest to the old score."""
    if math.isfinite(score):
        return score
    ratio = math.log(task.precision) - math.log1p(-task.precision) + 1e-12
    total = logsumexp(task.others)
    old = float(task.keys[task.at] @ task.query)
    return max(old, total + ratio) if score > 0 else min(old, total - ratio)


def _key(task: _Task, score: float) -> Vector:
    """The key with this score, and this length if there is one, that is nearest to the old one."""
    old, norm = task.keys[task.at], float(np.linalg.norm(task.query))
    if norm == 0:
        return old if task.length is None else _stretched(old, task.length)
    unit = task.query / norm
    across = old - (old @ unit) * unit
    if task.length is None:
        return np.asarray(across + score / norm * unit)
    along = score / norm
    left = math.sqrt(max(0.0, (task.length - along) * (task.length + along)))
    if left <= 1e-7 * task.length:  # the root of rounding: the key lies along the query
        return np.asarray(math.copysign(task.length, along) * unit)
    if np.linalg.norm(across) <= 1e-12 * max(1.0, float(np.linalg.norm(old))):
        # The old key lies along the query: any direction across it is as near as any other.
        axis = np.zeros_like(unit)
        axis[int(np.argmin(np.abs(unit)))] = 1.0
        across = axis - (axis @ unit) * unit
    return np.asarray(along * unit + _stretched(across, left))


def _stretched(vector: Vector, length: float) -> Vector:
    norm = float(np.linalg.norm(vector))
    if norm == 0:
        vector, norm = np.eye(len(vector))[0], 1.0
    return np.asarray(vector * (length / norm))


def _replacement(task: _Task, question: str, outputs: Rows | None) -> Replacement:
    score, best = _best_score(task)
    key = _key(task, _finite_score(task, score))
    changed = task.keys.copy()
    changed[task.at] = key
    scores = changed @ task.query
    yielded, reached = softmax(scores), fit(task.target, scores)
    exact = _is_exact(task, score)
    scale = 1.0 if reached >= task.precision else _scale(task)
    if task.length is not None:
        question += f", with length {task.length:g}"
    return Replacement(
        question=question,
        keys=changed,
        old=task.keys,
        at=task.at,
        target=task.target,
        query=task.query,
        key=key,
        weights=yielded,
        exact=exact,
        reason=_reason(task, score, exact, best, reached, scale),
        precision=reached,
        best=best,
        attained=math.isfinite(score),
        norm=float(np.linalg.norm(key)),
        length=task.length,
        moved=float(np.linalg.norm(key - task.keys[task.at])),
        scale=scale,
        tolerance=task.tolerance,
        values=outputs,
        output=None if outputs is None else yielded @ outputs,
        wanted=None if outputs is None else task.target @ outputs,
    )


def _is_exact(task: _Task, score: float) -> bool:
    if len(task.target) == 1:
        return True
    shares, own = task.off(score)
    return max(float(np.abs(shares).max()), abs(own)) <= task.tolerance


def _scale(task: _Task) -> float | None:
    """The factor for the query nearest to 1 at which some key reaches the wanted precision.

    KL(target, weights) is convex in the factor and the new score together, so its lowest value over the scores is
    convex in the factor: it has one valley, and from 1 there is one way down.
    """
    if not task.query.any():
        return None
    found = [factor for sign in (1, -1) for factor in _factors(task, sign)]
    return min(found, key=lambda factor: abs(math.log(factor)), default=None)


def _factors(task: _Task, sign: int) -> list[float]:
    """At most one factor; `sign` picks the half of the two that a length leaves in one dimension."""

    def short(log_factor: float) -> float:
        """How far the precision is below the wanted one, in logarithms."""
        scaled = task.scaled(math.exp(log_factor))
        ranges = scaled.ranges()
        low, high = ranges[0] if sign < 0 else ranges[-1]
        reached = scaled.with_score(min(max(_ideal(scaled), low), high))
        return math.log(task.precision) - math.log(max(reached, 1e-300))

    most = math.log(FARTHEST)
    valley = minimize_scalar(short, bounds=(-most, most), method="bounded", options={"xatol": 1e-6})
    lowest = min((float(valley.x), -most, most), key=short)
    if short(lowest) > 0:
        return []
    if short(0.0) <= 0:
        return [1.0]
    return [math.exp(float(brentq(short, 0.0, lowest, xtol=1e-12)))]


def _reason(task: _Task, score: float, exact: bool, best: float, reached: float, scale: float | None) -> str:
    at, own = task.at, float(task.target[task.at])
    if len(task.target) == 1:
        return "There is only one key: every query gives it all the weight."
    if not task.query.any():
        same = "which is the target" if exact else "which is not the target"
        return f"The query is 0: every key has the score 0 and the same weight, {same}."
    if exact and math.isfinite(score):
        return f"With the score {score:.4g}, key {at} has its weight of {own:.4g}; the others already have theirs."
    if exact:
        way, end = "along", "more weight it gets, as near to 1"
        if score < 0:
            way, end = "against", "less it keeps, as near to 0"
        reach = words.figure(reached)
        return f"The farther key {at} lies {way} the query, the {end} as one likes. This one reaches {reach}."
    return " ".join([*_costs(task, score), _near(score, best, reached), _longer(scale, task.precision)]).strip()


def _costs(task: _Task, score: float) -> list[str]:
    """What keeps the target away: the other keys' shares, the length, or both."""
    at, said = task.at, []
    off, _ = task.off(score)
    worst = int(np.argmax(np.abs(off)))
    if abs(off[worst]) > task.tolerance:
        gets = float(softmax(task.others)[worst])
        said.append(
            f"The query divides what key {at} leaves among the other keys, and no new key changes that: key "
            f"{worst + (worst >= at)} gets {gets:.4g} of it and should get {gets - off[worst]:.4g}."
        )
    ideal = _ideal(task)
    if task.length is not None and score != ideal:
        most = task.length * float(np.linalg.norm(task.query))
        need = f"a score of {ideal:.4g}" if math.isfinite(ideal) else "an infinite score"
        can = "is {} or {}" if len(task.query) == 1 else "lies between {} and {}"
        can = can.format(f"{-most:.4g}", f"{most:.4g}")
        said.append(f"Key {at} would need {need}, and with length {task.length:g} its score {can}.")
    return said


def _near(score: float, best: float, reached: float) -> str:
    if math.isfinite(score):
        return f"No key does better than this one, with precision {words.figure(best)}."
    return f"Longer keys come near to precision {words.figure(best)}; this one reaches {words.figure(reached)}."


def _longer(scale: float | None, wanted: float) -> str:
    if scale is None:
        return f"No multiple of the query reaches {words.figure(wanted)} either."
    if scale == 1.0:
        return ""
    return f"With the query times {scale:.4g}, some key reaches {words.figure(wanted)}."
