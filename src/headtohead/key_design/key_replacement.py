"""Replace one key so that a fixed query averages keys, selects the new key, or produces given weights.

The other keys' scores do not change, nor do the ratios of their weights. A new key determines only its own score k @
query and hence its own weight. KL(target, weights) therefore splits into the cost of the other keys' ratios, which no
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
from headtohead.key_design.convex_solvers import KeyMatrix, PerKeyVector, Vector, logsumexp, softmax
from headtohead.key_design.query_design import DEFAULT_PRECISION, DEFAULT_TOLERANCE
from headtohead.key_design.solutions import KeyReplacement, compute_precision

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
    """Return a replacement for key `key_index` so that `query` averages keys, selects the new key, or produces weights.

    Pass exactly one of `average`, `select` and `weights`. `required_norm` fixes the norm of the new key. If keys of
    growing norm only approach the target, the result reaches `precision` (default 0.999) of the best.
    """
    key_matrix = inputs.validate_matrix(keys)
    index = inputs.validate_index(key_index, len(key_matrix))
    query_vector = inputs.validate_vector(query, key_matrix.shape[1], "query", "numbers of a key")
    target, question = _build_target(len(key_matrix), index, average, select, weights)
    if required_norm is not None:
        required_norm = inputs.validate_number(
            required_norm, "required_norm", "must be at least 0", lambda norm: norm >= 0
        )
    required_precision = DEFAULT_PRECISION if precision is None else inputs.validate_precision(precision)
    value_matrix = None if values is None else inputs.validate_matrix(values, "values", len(key_matrix))
    problem = _ReplacementProblem(
        key_matrix, index, query_vector, target, required_norm, required_precision, inputs.validate_tolerance(tolerance)
    )
    return _solve_replacement(problem, question, value_matrix)


@dataclass(frozen=True, eq=False)
class _ReplacementProblem:
    """A validated key-replacement problem."""

    keys: KeyMatrix
    key_index: int
    query: Vector
    target: PerKeyVector
    required_norm: float | None
    precision: float
    tolerance: float

    @property
    def other_scores(self) -> PerKeyVector:
        """The other keys' scores."""
        return np.delete(self.keys @ self.query, self.key_index)

    def compute_score_ranges(self) -> list[tuple[float, float]]:
        """Return a new key's possible scores: an interval, or two values in one dimension with a fixed norm."""
        norm = float(np.linalg.norm(self.query))
        if norm == 0:
            return [(0.0, 0.0)]
        if self.required_norm is None:
            return [(-math.inf, math.inf)]
        max_score = norm * self.required_norm
        return [(-max_score, -max_score), (max_score, max_score)] if len(self.query) == 1 else [(-max_score, max_score)]

    def compute_precision_at_score(self, score: float) -> float:
        """Return the precision for a given score of the new key, which may be infinite."""
        target_weight = self.target[self.key_index]
        other_targets = np.delete(self.target, self.key_index)
        if math.isfinite(score):
            return compute_precision(self.target, np.insert(self.other_scores, self.key_index, score))
        if score > 0:
            return float(target_weight == 1)
        return compute_precision(other_targets, self.other_scores) if target_weight == 0 else 0.0

    def compute_weight_errors(self, score: float) -> tuple[PerKeyVector, float]:
        """Return the errors of the other keys' relative weights and of the new key's weight, for its score."""
        target_weight = float(self.target[self.key_index])
        other_targets = np.delete(self.target, self.key_index)
        relative_weight_errors = (
            softmax(self.other_scores) - other_targets / (1 - target_weight)
            if target_weight < 1
            else np.zeros_like(other_targets)
        )
        if not math.isfinite(score):
            return relative_weight_errors, float(score > 0) - target_weight
        weights = softmax(np.insert(self.other_scores, self.key_index, score))
        return relative_weight_errors, float(weights[self.key_index]) - target_weight


def _build_target(num_keys: int, key_index: int, average: Any, select: bool, weights: Any) -> tuple[PerKeyVector, str]:
    """Return the target weights of a replacement and the question; raise RequestError unless one goal is given."""
    requested_goals = [name for name, value in (("average", average), ("weights", weights)) if value is not None]
    requested_goals += ["select"] if select else []
    if len(requested_goals) != 1:
        given_goals = " and ".join(requested_goals) or "none"
        raise RequestError(f"replace_key: pass exactly one of average, select and weights; got {given_goals}")
    if weights is not None:
        return inputs.validate_distribution(weights, num_keys), f"replace key {key_index} to yield given weights"
    selected_indices = (key_index,) if select else inputs.validate_indices(average, num_keys)
    target = np.zeros(num_keys)
    target[list(selected_indices)] = 1 / len(selected_indices)
    goal = "be selected" if select else f"average {phrasing.format_key_list(sorted(selected_indices))}"
    return target, f"replace key {key_index} to {goal}"


def _compute_ideal_score(problem: _ReplacementProblem) -> float:
    """Return the score at which the new key has its target weight, which is infinite if that weight is 0 or 1."""
    target_weight = float(problem.target[problem.key_index])
    if target_weight in (0.0, 1.0) or len(problem.target) == 1:
        return math.inf if target_weight else -math.inf
    return math.log(target_weight) - math.log1p(-target_weight) + logsumexp(problem.other_scores)


def _find_best_score(problem: _ReplacementProblem) -> tuple[float, float]:
    """Return the new key's best score, which may be infinite, and its precision."""
    if len(problem.target) == 1:
        return 0.0, 1.0
    ideal_score = _compute_ideal_score(problem)
    possible_scores = [min(max(ideal_score, low), high) for low, high in problem.compute_score_ranges()]
    score = max(possible_scores, key=problem.compute_precision_at_score)
    return score, problem.compute_precision_at_score(score)


def _choose_finite_score(problem: _ReplacementProblem, score: float) -> float:
    """Return the finite score closest to the old one that reaches the required precision."""
    if math.isfinite(score):
        return score
    log_odds = math.log(problem.precision) - math.log1p(-problem.precision) + 1e-12
    others_logsumexp = logsumexp(problem.other_scores)
    old_score = float(problem.keys[problem.key_index] @ problem.query)
    return max(old_score, others_logsumexp + log_odds) if score > 0 else min(old_score, others_logsumexp - log_odds)


def _build_replacement_key(problem: _ReplacementProblem, score: float) -> Vector:
    """Return the key closest to the old one with this score and, if required, this norm."""
    old_key, query_norm = problem.keys[problem.key_index], float(np.linalg.norm(problem.query))
    if query_norm == 0:
        return old_key if problem.required_norm is None else _rescale_to_norm(old_key, problem.required_norm)
    query_direction = problem.query / query_norm
    orthogonal_part = old_key - (old_key @ query_direction) * query_direction
    if problem.required_norm is None:
        return np.asarray(orthogonal_part + score / query_norm * query_direction)
    parallel_length = score / query_norm
    orthogonal_length = math.sqrt(
        max(0.0, (problem.required_norm - parallel_length) * (problem.required_norm + parallel_length))
    )
    if orthogonal_length <= 1e-7 * problem.required_norm:
        # Square root of a rounding error: the key is parallel to the query.
        return np.asarray(math.copysign(problem.required_norm, parallel_length) * query_direction)
    if np.linalg.norm(orthogonal_part) <= 1e-12 * max(1.0, float(np.linalg.norm(old_key))):
        # The old key is parallel to the query, so every orthogonal direction is equally close.
        axis = np.zeros_like(query_direction)
        axis[int(np.argmin(np.abs(query_direction)))] = 1.0
        orthogonal_part = axis - (axis @ query_direction) * query_direction
    return np.asarray(parallel_length * query_direction + _rescale_to_norm(orthogonal_part, orthogonal_length))


def _rescale_to_norm(vector: Vector, target_norm: float) -> Vector:
    """Return the replacement key scaled to a norm; the zero vector is replaced by the first axis."""
    norm = float(np.linalg.norm(vector))
    if norm == 0:
        vector, norm = np.eye(len(vector))[0], 1.0
    return np.asarray(vector * (target_norm / norm))


def _solve_replacement(problem: _ReplacementProblem, question: str, value_matrix: KeyMatrix | None) -> KeyReplacement:
    """Solve the problem and collect the new key, the resulting weights and an explanation."""
    score, best_precision = _find_best_score(problem)
    key = _build_replacement_key(problem, _choose_finite_score(problem, score))
    new_keys = problem.keys.copy()
    new_keys[problem.key_index] = key
    scores = new_keys @ problem.query
    precision = compute_precision(problem.target, scores)
    is_exact = _is_target_reached(problem, score)
    scale = 1.0 if precision >= problem.precision else _find_query_scale(problem)
    if problem.required_norm is not None:
        question += f", with norm {problem.required_norm:g}"
    return KeyReplacement(
        question=question,
        keys=new_keys,
        old=problem.keys,
        at=problem.key_index,
        target=problem.target,
        query=problem.query,
        key=key,
        weights=softmax(scores),
        exact=is_exact,
        reason=_explain_replacement(problem, score, is_exact, best_precision, precision, scale),
        precision=precision,
        best=best_precision,
        attained=math.isfinite(score),
        norm=float(np.linalg.norm(key)),
        length=problem.required_norm,
        moved=float(np.linalg.norm(key - problem.keys[problem.key_index])),
        scale=scale,
        tolerance=problem.tolerance,
        values=value_matrix,
    )


def _is_target_reached(problem: _ReplacementProblem, score: float) -> bool:
    """Return whether a score of the new key gives all keys their target weights within the tolerance."""
    if len(problem.target) == 1:
        return True
    relative_weight_errors, weight_error = problem.compute_weight_errors(score)
    return max(float(np.abs(relative_weight_errors).max()), abs(weight_error)) <= problem.tolerance


def _find_query_scale(problem: _ReplacementProblem) -> float | None:
    """Return the query factor closest to 1 at which some key reaches the precision.

    KL(target, weights) is jointly convex in the factor and the new score, so its minimum over the score is convex in
    the factor.
    """
    if not problem.query.any():
        return None
    factors = [factor for sign in (1, -1) for factor in _find_query_scale_for_sign(problem, sign)]
    return min(factors, key=lambda factor: abs(math.log(factor)), default=None)


def _find_query_scale_for_sign(problem: _ReplacementProblem, sign: int) -> list[float]:
    """Return at most one query factor; in one dimension, `sign` selects one of the two possible scores."""

    def compute_shortfall(log_factor: float) -> float:
        """Return the log ratio of the required to the achieved precision."""
        scaled_problem = replace(problem, query=math.exp(log_factor) * problem.query)
        ranges = scaled_problem.compute_score_ranges()
        low, high = ranges[0] if sign < 0 else ranges[-1]
        score = min(max(_compute_ideal_score(scaled_problem), low), high)
        reached_precision = scaled_problem.compute_precision_at_score(score)
        return math.log(problem.precision) - math.log(max(reached_precision, 1e-300))

    max_log_factor = math.log(MAX_QUERY_SCALE)
    minimum = minimize_scalar(
        compute_shortfall, bounds=(-max_log_factor, max_log_factor), method="bounded", options={"xatol": 1e-6}
    )
    best_log_factor = min((float(minimum.x), -max_log_factor, max_log_factor), key=compute_shortfall)
    if compute_shortfall(best_log_factor) > 0:
        return []
    if compute_shortfall(0.0) <= 0:
        return [1.0]
    return [math.exp(float(brentq(compute_shortfall, 0.0, best_log_factor, xtol=1e-12)))]


def _explain_replacement(
    problem: _ReplacementProblem,
    score: float,
    is_exact: bool,
    best_precision: float,
    precision: float,
    query_scale: float | None,
) -> str:
    """Explain why the target is reached exactly, only in the limit, or not at all."""
    key_index, target_weight = problem.key_index, float(problem.target[problem.key_index])
    if len(problem.target) == 1:
        return "There is only one key: every query gives it the whole weight."
    if not problem.query.any():
        relation = "which is the target" if is_exact else "which is not the target"
        return f"The query is 0, so every key has score 0 and the same weight, {relation}."
    if is_exact and math.isfinite(score):
        return (
            f"With score {score:.4g}, key {key_index} has its target weight {target_weight:.4g}; the other keys "
            "already have theirs."
        )
    if is_exact:
        direction, effect = ("along", "to 1") if score > 0 else ("against", "to 0")
        precision_text = phrasing.format_precision(precision)
        return (
            f"As key {key_index} moves {direction} the query, its weight tends {effect}. "
            f"This key reaches {precision_text}."
        )
    return " ".join(
        [
            *_explain_obstacles(problem, score),
            phrasing.describe_best_replacement(best_precision, precision, is_attained=math.isfinite(score)),
            phrasing.describe_required_query_scale(query_scale, problem.precision),
        ]
    ).strip()


def _explain_obstacles(problem: _ReplacementProblem, score: float) -> list[str]:
    """Explain what prevents a replacement from reaching the target: the other keys' weights, the norm, or both."""
    key_index = problem.key_index
    sentences = []
    relative_weight_errors, _ = problem.compute_weight_errors(score)
    worst_index = int(np.argmax(np.abs(relative_weight_errors)))
    if abs(relative_weight_errors[worst_index]) > problem.tolerance:
        actual_weight = float(softmax(problem.other_scores)[worst_index])
        sentences.append(
            f"The query alone determines how the remaining weight is split among the other keys: key "
            f"{worst_index + (worst_index >= key_index)} gets {actual_weight:.4g} instead of "
            f"{actual_weight - relative_weight_errors[worst_index]:.4g}."
        )
    ideal_score = _compute_ideal_score(problem)
    if problem.required_norm is not None and score != ideal_score:
        max_score = problem.required_norm * float(np.linalg.norm(problem.query))
        needed_score = f"a score of {ideal_score:.4g}" if math.isfinite(ideal_score) else "an infinite score"
        template = "is {} or {}" if len(problem.query) == 1 else "lies between {} and {}"
        possible_scores = template.format(f"{-max_score:.4g}", f"{max_score:.4g}")
        sentences.append(
            f"Key {key_index} would need {needed_score}, but with norm {problem.required_norm:g} its score "
            f"{possible_scores}."
        )
    return sentences
