"""Replace one key so that a fixed query averages keys, selects the new key, or produces given weights.

The scores of the other keys stay, and so do the ratios of their weights. A new key determines only its own score k @
query and with it its own weight. KL(target, weights) therefore splits into the cost of the other keys' ratios, which no
key changes, and the cost of the new key's weight, which is smallest at the target weight or as close as the norm
constraint |k @ query| <= |k| |query| allows. Among the keys with that score, return the one closest to the old key.
Everything is computed in closed form except the query factor `scale`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from headtohead.errors import RequestError
from headtohead.key_design import inputs, phrasing
from headtohead.key_design.solutions import KeyReplacement
from headtohead.key_design.solve import DEFAULT_PRECISION, DEFAULT_TOLERANCE, compute_precision
from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector, logsumexp, softmax

MAX_QUERY_SCALE = 1e6
"""largest factor tried for the query"""


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
    """Return a replacement for key `key_index` with which `query` averages keys, selects the new key, or produces
    weights.

    Pass exactly one of `average`, `select` and `weights`. `required_norm` fixes the norm of the new key. If keys of
    growing norm only approach the target, the result reaches `precision` (default 0.999) of the best.
    """
    rows = inputs.validate_matrix(keys)
    index = inputs.validate_index(key_index, len(rows))
    query_vector = inputs.validate_vector(query, rows.shape[1], "query", "numbers of a key")
    target, question = _build_target(len(rows), index, average, select, weights)
    if required_norm is not None:
        required_norm = inputs.validate_number(
            required_norm, "required_norm", "must be at least 0", lambda norm: norm >= 0
        )
    required_precision = DEFAULT_PRECISION if precision is None else inputs.validate_precision(precision)
    outputs = None if values is None else inputs.validate_matrix(values, "values", len(rows))
    problem = _ReplacementProblem(
        rows, index, query_vector, target, required_norm, required_precision, inputs.validate_tolerance(tolerance)
    )
    return _build_replacement(problem, question, outputs)


@dataclass(frozen=True, eq=False)
class _ReplacementProblem:
    """The validated problem."""

    keys: KeyMatrix
    at: int
    query: Vector
    target: PerKeyVector
    length: float | None
    precision: float
    tolerance: float

    @property
    def others(self) -> PerKeyVector:
        """Scores of the other keys."""
        return np.delete(self.keys @ self.query, self.at)

    def compute_score_ranges(self) -> list[tuple[float, float]]:
        """Return the possible scores of a new key: an interval, or two values in one dimension with a fixed norm."""
        norm = float(np.linalg.norm(self.query))
        if norm == 0:
            return [(0.0, 0.0)]
        if self.length is None:
            return [(-math.inf, math.inf)]
        most = norm * self.length
        return [(-most, -most), (most, most)] if len(self.query) == 1 else [(-most, most)]

    def compute_precision_at_score(self, score: float) -> float:
        """Return the precision for a score of the new key, which may be infinite."""
        own = self.target[self.at]
        rest = np.delete(self.target, self.at)
        if math.isfinite(score):
            return compute_precision(self.target, np.insert(self.others, self.at, score))
        if score > 0:
            return float(own == 1)
        return compute_precision(rest, self.others) if own == 0 else 0.0

    def off(self, score: float) -> tuple[PerKeyVector, float]:
        """Return the errors of the other keys' relative weights and of the new key's weight."""
        own = float(self.target[self.at])
        rest = np.delete(self.target, self.at)
        shares = softmax(self.others) - rest / (1 - own) if own < 1 else np.zeros_like(rest)
        if not math.isfinite(score):
            return shares, float(score > 0) - own
        return shares, float(softmax(np.insert(self.others, self.at, score))[self.at]) - own


def _build_target(num_keys: int, key_index: int, average: Any, select: bool, weights: Any) -> tuple[PerKeyVector, str]:
    """Return the target weights and the question; raise RequestError unless exactly one goal is given."""
    requested = [name for name, value in (("average", average), ("weights", weights)) if value is not None]
    requested += ["select"] if select else []
    if len(requested) != 1:
        value = " and ".join(requested) or "none"
        raise RequestError(f"replace_key: pass exactly one of average, select and weights; got {value}")
    if weights is not None:
        return inputs.validate_distribution(weights, num_keys), f"replace key {key_index} to yield given weights"
    selected = (key_index,) if select else inputs.validate_indices(average, num_keys)
    target = np.zeros(num_keys)
    target[list(selected)] = 1 / len(selected)
    goal = "be selected" if select else f"average {phrasing.format_key_list(sorted(selected))}"
    return target, f"replace key {key_index} to {goal}"


def _compute_ideal_score(problem: _ReplacementProblem) -> float:
    """Return the score at which the new key has its target weight; infinite if that weight is 0 or 1."""
    own = float(problem.target[problem.at])
    if own in (0.0, 1.0) or len(problem.target) == 1:
        return math.inf if own else -math.inf
    return math.log(own) - math.log1p(-own) + logsumexp(problem.others)


def _find_best_score(problem: _ReplacementProblem) -> tuple[float, float]:
    """Return the best score of the new key, which may be infinite, and its precision."""
    if len(problem.target) == 1:
        return 0.0, 1.0
    ideal = _compute_ideal_score(problem)
    choices = [min(max(ideal, low), high) for low, high in problem.compute_score_ranges()]
    score = max(choices, key=problem.compute_precision_at_score)
    return score, problem.compute_precision_at_score(score)


def _choose_finite_score(problem: _ReplacementProblem, score: float) -> float:
    """Return the finite score closest to the old one that reaches the required precision."""
    if math.isfinite(score):
        return score
    ratio = math.log(problem.precision) - math.log1p(-problem.precision) + 1e-12
    total = logsumexp(problem.others)
    old = float(problem.keys[problem.at] @ problem.query)
    return max(old, total + ratio) if score > 0 else min(old, total - ratio)


def _build_key(problem: _ReplacementProblem, score: float) -> Vector:
    """Return the key closest to the old one with this score and, if required, this norm."""
    old, norm = problem.keys[problem.at], float(np.linalg.norm(problem.query))
    if norm == 0:
        return old if problem.length is None else _rescale_to_norm(old, problem.length)
    unit = problem.query / norm
    across = old - (old @ unit) * unit
    if problem.length is None:
        return np.asarray(across + score / norm * unit)
    along = score / norm
    left = math.sqrt(max(0.0, (problem.length - along) * (problem.length + along)))
    if left <= 1e-7 * problem.length:  # square root of rounding error: the key is parallel to the query
        return np.asarray(math.copysign(problem.length, along) * unit)
    if np.linalg.norm(across) <= 1e-12 * max(1.0, float(np.linalg.norm(old))):
        # The old key is parallel to the query, so every orthogonal direction is equally close.
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
    """Solve the problem and collect the new key, the reached weights and an explanation."""
    score, best = _find_best_score(problem)
    key = _build_key(problem, _choose_finite_score(problem, score))
    changed = problem.keys.copy()
    changed[problem.at] = key
    scores = changed @ problem.query
    reached = compute_precision(problem.target, scores)
    exact = _is_exact(problem, score)
    scale = 1.0 if reached >= problem.precision else _find_query_scale(problem)
    if problem.length is not None:
        question += f", with norm {problem.length:g}"
    return KeyReplacement(
        question=question,
        keys=changed,
        old=problem.keys,
        at=problem.at,
        target=problem.target,
        query=problem.query,
        key=key,
        weights=softmax(scores),
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
    )


def _is_exact(problem: _ReplacementProblem, score: float) -> bool:
    if len(problem.target) == 1:
        return True
    shares, own = problem.off(score)
    return max(float(np.abs(shares).max()), abs(own)) <= problem.tolerance


def _find_query_scale(problem: _ReplacementProblem) -> float | None:
    """Return the query factor closest to 1 at which some key reaches the precision.

    KL(target, weights) is jointly convex in the factor and the new score, so its minimum over the score is convex in
    the factor.
    """
    if not problem.query.any():
        return None
    factors = [factor for sign in (1, -1) for factor in _find_query_scales(problem, sign)]
    return min(factors, key=lambda factor: abs(math.log(factor)), default=None)


def _find_query_scales(problem: _ReplacementProblem, sign: int) -> list[float]:
    """Return at most one factor; `sign` selects one of the two scores in one dimension."""

    def short(log_factor: float) -> float:
        """Return the log ratio of required and reached precision."""
        scaled = replace(problem, query=math.exp(log_factor) * problem.query)
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
    """Return why the target is reached exactly, only in the limit, or not at all."""
    at, own = problem.at, float(problem.target[problem.at])
    if len(problem.target) == 1:
        return "There is only one key: every query gives it the whole weight."
    if not problem.query.any():
        relation = "which is the target" if is_exact else "which is not the target"
        return f"The query is 0, so every key has score 0 and the same weight, {relation}."
    if is_exact and math.isfinite(score):
        return f"With score {score:.4g}, key {at} has its target weight {own:.4g}; the other keys already have theirs."
    if is_exact:
        direction, effect = ("along", "to 1") if score > 0 else ("against", "to 0")
        reached = phrasing.format_precision(precision)
        return f"As key {at} moves {direction} the query, its weight tends {effect}. This key reaches {reached}."
    return " ".join(
        [
            *_explain_obstacles(problem, score),
            _describe_best_precision(score, best_precision, precision),
            _describe_query_scale(query_scale, problem.precision),
        ]
    ).strip()


def _explain_obstacles(problem: _ReplacementProblem, score: float) -> list[str]:
    """Explain what prevents the target: the other keys' relative weights, the norm, or both."""
    at, sentences = problem.at, []
    share_errors, _ = problem.off(score)
    worst = int(np.argmax(np.abs(share_errors)))
    if abs(share_errors[worst]) > problem.tolerance:
        actual_share = float(softmax(problem.others)[worst])
        sentences.append(
            f"The query alone determines how the remaining weight is split among the other keys: key "
            f"{worst + (worst >= at)} gets {actual_share:.4g} instead of {actual_share - share_errors[worst]:.4g}."
        )
    ideal = _compute_ideal_score(problem)
    if problem.length is not None and score != ideal:
        most = problem.length * float(np.linalg.norm(problem.query))
        needed = f"a score of {ideal:.4g}" if math.isfinite(ideal) else "an infinite score"
        possible = "is {} or {}" if len(problem.query) == 1 else "lies between {} and {}"
        possible = possible.format(f"{-most:.4g}", f"{most:.4g}")
        sentences.append(f"Key {at} would need {needed}, but with norm {problem.length:g} its score {possible}.")
    return sentences


def _describe_best_precision(score: float, best_precision: float, precision: float) -> str:
    if math.isfinite(score):
        return f"No key does better than this one, with precision {phrasing.format_precision(best_precision)}."
    best, reached = phrasing.format_precision(best_precision), phrasing.format_precision(precision)
    return f"Keys of larger norm approach precision {best}; this key reaches {reached}."


def _describe_query_scale(query_scale: float | None, precision: float) -> str:
    """Return which multiple of the query would reach the required precision."""
    if query_scale is None:
        return f"No multiple of the query reaches {phrasing.format_precision(precision)} either."
    if query_scale == 1.0:
        return ""
    return f"With the query scaled by {query_scale:.4g}, some key reaches {phrasing.format_precision(precision)}."
