"""Verbal explanations of key-design solutions. Keys are counted from 0."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headtohead.key_design.faces import HullFace
from headtohead.key_design.solvers import PerKeyVector

MAX_TERMS = 6
ROUNDING_THRESHOLD = 1e-12
"""smaller values are rounding errors and are not reported"""


def format_precision(value: float) -> str:
    """Format a precision with four digits, as 1 - x if it is nearly 1."""
    complement = 1 - value
    if 0 < complement < 5e-4:
        return f"1 - {complement:.2g}"
    return f"{value:.4g}"


def format_key_list(key_indices: Sequence[int]) -> str:
    """Format indices: key 0; keys 0 and 1; keys 0, 1 and 3."""
    if len(key_indices) == 1:
        return f"key {key_indices[0]}"
    names = [str(index) for index in key_indices[:12]]
    if len(key_indices) > 12:
        return f"keys {', '.join(names)} and {len(key_indices) - 12} more"
    return f"keys {', '.join(names[:-1])} and {names[-1]}"


def format_combination(coefficients: PerKeyVector) -> str:
    """Format a linear combination: 0.5 key 0 + 0.5 key 1."""
    terms = [
        int(index)
        for index in np.argsort(-np.abs(coefficients), kind="stable")
        if abs(coefficients[index]) > ROUNDING_THRESHOLD
    ]
    text = ""
    for index in sorted(terms[:MAX_TERMS]):
        coefficient = coefficients[index]
        sign = ("-" if coefficient < 0 else "") if not text else (" - " if coefficient < 0 else " + ")
        factor = "" if abs(abs(coefficient) - 1) < 1e-9 else f"{abs(coefficient):.4g} "
        text += f"{sign}{factor}key {index}"
    return text + (f" + {len(terms) - MAX_TERMS} smaller terms" if len(terms) > MAX_TERMS else "")


def explain_not_a_face(target_indices: tuple[int, ...], face: HullFace, scale: float, tolerance: float) -> str:
    """Explain why the target keys cannot share all of the attention weight."""
    dependence = face.affine_dependence
    assert dependence is not None
    inside = np.zeros_like(dependence)
    inside[list(target_indices)] = dependence[list(target_indices)]
    outside = inside - dependence
    other_indices = np.flatnonzero(outside > ROUNDING_THRESHOLD)
    if len(target_indices) == 1 and len(other_indices) == 1:
        text = f"Keys {target_indices[0]} and {other_indices[0]} are equal, so every query gives them the same weight."
    elif len(target_indices) == 1:
        text = (
            f"Key {target_indices[0]} is not a vertex of the convex hull: it equals {format_combination(outside)}, "
            "so its score is the same mean of their scores and never the highest."
        )
    else:
        text = (
            f"{format_key_list(target_indices).capitalize()} are not a face of the convex hull: "
            f"{format_combination(inside)} equals {format_combination(outside)}, so a query that raises the scores of "
            "the first raises some of the others too."
        )
    if face.residual <= ROUNDING_THRESHOLD:
        return text
    residual = face.residual * scale
    return (
        f"{text} (Equal to within {residual:.2g}, below the tolerance {tolerance * scale:.2g}. "
        f"A query would need a norm of about {1 / residual:.1g} or more to use the difference.)"
    )


def explain_face(target_indices: tuple[int, ...], margin: float) -> str:
    """Explain that the target keys can share all of the attention weight."""
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
    """Explain why the target's log-weights are not an affine function of the keys."""
    scaled = affine_dependence / affine_dependence[int(np.argmax(np.abs(affine_dependence)))]
    nonzero = np.abs(scaled) > ROUNDING_THRESHOLD
    log_sum = float(scaled[nonzero] @ np.log(target[nonzero]))
    return (
        f"The keys are affinely dependent: {format_combination(scaled)} = 0, so the same combination of log-weights is "
        f"0 for every query, but {log_sum:.4g} for the target."
    )


def describe_best_approximation(
    best_precision: float, is_attained: bool, precision: float, is_single_key: bool, residual: float = 0.0
) -> str:
    """Describe the best approximation to an unreachable target."""
    quantity = "weight" if is_single_key else "precision"
    prefix = " Otherwise no" if residual > ROUNDING_THRESHOLD else " No"
    if is_attained:
        if abs(precision - best_precision) <= 1e-9:
            return f"{prefix} query does better than this one, with {quantity} {format_precision(best_precision)}."
        best, reached = format_precision(best_precision), format_precision(precision)
        return f" The best {quantity} is {best}; this is the shortest query that reaches {reached}."
    return (
        f"{prefix} query reaches a {quantity} of {format_precision(best_precision)}; queries of growing norm approach "
        f"it, and this one has {format_precision(precision)}."
    )
