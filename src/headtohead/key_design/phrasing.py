"""Sentences that explain key-design solutions: why a target is reached, only approached, or impossible.

Keys are counted from 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headtohead.key_design.convex_solvers import PerKeyVector
from headtohead.key_design.hull_faces import HullFace

MAX_LISTED_KEYS = 12
MAX_TERMS = 6
"""largest number of terms of a linear combination that are written out"""
ROUNDING_THRESHOLD = 1e-12
"""smaller values are rounding errors and are not reported"""


def format_precision(value: float) -> str:
    """Phrase a precision with four digits, as 1 - x if it is nearly 1."""
    complement = 1 - value
    if 0 < complement < 5e-4:
        return f"1 - {complement:.2g}"
    return f"{value:.4g}"


def format_key_list(key_indices: Sequence[int]) -> str:
    """Phrase key indices: key 0; keys 0 and 1; keys 0, 1 and 3."""
    if len(key_indices) == 1:
        return f"key {key_indices[0]}"
    numbers = [str(index) for index in key_indices[:MAX_LISTED_KEYS]]
    if len(key_indices) > MAX_LISTED_KEYS:
        return f"keys {', '.join(numbers)} and {len(key_indices) - MAX_LISTED_KEYS} more"
    return f"keys {', '.join(numbers[:-1])} and {numbers[-1]}"


def format_combination(coefficients: PerKeyVector) -> str:
    """Phrase a linear combination of keys: 0.5 key 0 + 0.5 key 1."""
    term_indices = [
        int(index)
        for index in np.argsort(-np.abs(coefficients), kind="stable")
        if abs(coefficients[index]) > ROUNDING_THRESHOLD
    ]
    text = ""
    for index in sorted(term_indices[:MAX_TERMS]):
        coefficient = coefficients[index]
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        factor = "" if abs(abs(coefficient) - 1) < 1e-9 else f"{abs(coefficient):.4g} "
        text += f"{sign}{factor}key {index}"
    return text + (f" + {len(term_indices) - MAX_TERMS} smaller terms" if len(term_indices) > MAX_TERMS else "")


def explain_not_a_face(target_indices: tuple[int, ...], face: HullFace, scale: float, tolerance: float) -> str:
    """Phrase why the target keys cannot share all of the attention weight."""
    dependence = face.affine_dependence
    assert dependence is not None
    target_coefficients = np.zeros_like(dependence)
    target_coefficients[list(target_indices)] = dependence[list(target_indices)]
    other_coefficients = target_coefficients - dependence
    other_indices = np.flatnonzero(other_coefficients > ROUNDING_THRESHOLD)
    if len(target_indices) == 1 and len(other_indices) == 1:
        explanation = (
            f"Keys {target_indices[0]} and {other_indices[0]} are equal, so every query gives them the same weight."
        )
    elif len(target_indices) == 1:
        explanation = (
            f"Key {target_indices[0]} is not a vertex of the convex hull: it equals "
            f"{format_combination(other_coefficients)}, so its score "
            "is the same mean of their scores and never the highest."
        )
    else:
        explanation = (
            f"{format_key_list(target_indices).capitalize()} are not a face of the convex hull: "
            f"{format_combination(target_coefficients)} equals {format_combination(other_coefficients)}, "
            "so a query that raises the scores of the first raises some of the others too."
        )
    if face.residual <= ROUNDING_THRESHOLD:
        return explanation
    residual = face.residual * scale
    return (
        f"{explanation} (Equal to within {residual:.2g}, below the tolerance {tolerance * scale:.2g}. "
        f"A query would need a norm of about {1 / residual:.1g} or more to use the difference.)"
    )


def explain_face(target_indices: tuple[int, ...], margin: float) -> str:
    """Phrase the reason that the target keys can share all of the attention weight."""
    if len(target_indices) == 1:
        return (
            f"Key {target_indices[0]} is a vertex of the convex hull, at distance {margin:.4g} from the hull of the "
            "other keys: its weight tends to 1 as the norm of the query grows."
        )
    return (
        f"{format_key_list(target_indices).capitalize()} are a face of the convex hull, at distance {margin:.4g} from "
        "the hull of the other keys: their total weight tends to 1, with the target shares, as the query grows."
    )


def explain_not_log_linear(affine_dependence: PerKeyVector, target: PerKeyVector) -> str:
    """Phrase why the target's log-weights are not an affine function of the keys."""
    coefficients = affine_dependence / affine_dependence[int(np.argmax(np.abs(affine_dependence)))]
    nonzero = np.abs(coefficients) > ROUNDING_THRESHOLD
    log_sum = float(coefficients[nonzero] @ np.log(target[nonzero]))
    return (
        f"The keys are affinely dependent: {format_combination(coefficients)} = 0, so the same combination of "
        f"log-weights is 0 for every query, but {log_sum:.4g} for the target."
    )


def describe_best_approximation(
    best_precision: float, is_attained: bool, precision: float, is_single_key: bool, residual: float = 0.0
) -> str:
    """Phrase the best approximation to an unreachable target."""
    quantity = "weight" if is_single_key else "precision"
    prefix = " Otherwise no" if residual > ROUNDING_THRESHOLD else " No"
    if is_attained:
        if abs(precision - best_precision) <= 1e-9:
            return f"{prefix} query does better than this one, with {quantity} {format_precision(best_precision)}."
        best, achieved = format_precision(best_precision), format_precision(precision)
        return f" The best {quantity} is {best}; this is the shortest query that reaches {achieved}."
    return (
        f"{prefix} query reaches a {quantity} of {format_precision(best_precision)}; queries of growing norm approach "
        f"it, and this one has {format_precision(precision)}."
    )


def describe_best_replacement(best_precision: float, precision: float, *, is_attained: bool) -> str:
    """Phrase how close any replacement of a key comes to an unreachable target."""
    best = format_precision(best_precision)
    if is_attained:
        return f"No key does better than this one, with precision {best}."
    return f"Keys of larger norm approach precision {best}; this key reaches {format_precision(precision)}."


def describe_required_query_scale(query_scale: float | None, precision: float) -> str:
    """Phrase by which factor the query must be scaled so that a replaced key reaches the required precision."""
    if query_scale is None:
        return f"No multiple of the query reaches {format_precision(precision)} either."
    if query_scale == 1.0:
        return ""
    return f"With the query scaled by {query_scale:.4g}, some key reaches {format_precision(precision)}."
