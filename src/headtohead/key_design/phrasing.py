"""Why an answer is what it is, in plain words. Keys are counted from 0, as in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headtohead.key_design.faces import HullFace
from headtohead.key_design.solvers import PerKeyVector

MAX_TERMS = 6
ROUNDING_THRESHOLD = 1e-12
"""a gap below this is rounding and not worth a word"""


def format_precision(value: float) -> str:
    """0.999, 12.3, 4e-10: four digits, and more where a weight is nearly 1."""
    rest = 1 - value
    if 0 < rest < 5e-4:
        return f"1 - {rest:.2g}"
    return f"{value:.4g}"


def format_key_list(key_indices: Sequence[int]) -> str:
    """key 0; keys 0 and 1; keys 0, 1 and 3."""
    if len(key_indices) == 1:
        return f"key {key_indices[0]}"
    shown = [str(at) for at in key_indices[:12]]
    if len(key_indices) > 12:
        return f"keys {', '.join(shown)} and {len(key_indices) - 12} more"
    return f"keys {', '.join(shown[:-1])} and {shown[-1]}"


def format_combination(coefficients: PerKeyVector) -> str:
    """0.5 key 0 + 0.5 key 1."""
    terms = [
        int(at) for at in np.argsort(-np.abs(coefficients), kind="stable") if abs(coefficients[at]) > ROUNDING_THRESHOLD
    ]
    said = ""
    for at in sorted(terms[:MAX_TERMS]):
        part = coefficients[at]
        sign = ("-" if part < 0 else "") if not said else (" - " if part < 0 else " + ")
        size = "" if abs(abs(part) - 1) < 1e-9 else f"{abs(part):.4g} "
        said += f"{sign}{size}key {at}"
    return said + (f" + {len(terms) - MAX_TERMS} smaller terms" if len(terms) > MAX_TERMS else "")


def explain_not_a_face(target_indices: tuple[int, ...], face: HullFace, scale: float, tolerance: float) -> str:
    """The wanted keys cannot have the weight to themselves."""
    relation = face.affine_dependence
    assert relation is not None
    inside = np.zeros_like(relation)
    inside[list(target_indices)] = relation[list(target_indices)]
    outside = inside - relation
    others = np.flatnonzero(outside > ROUNDING_THRESHOLD)
    if len(target_indices) == 1 and len(others) == 1:
        said = f"Keys {target_indices[0]} and {others[0]} are equal, so every query gives them the same weight."
    elif len(target_indices) == 1:
        said = (
            f"Key {target_indices[0]} is no corner of the keys: it equals {format_combination(outside)}, so its score is that mean of "  # noqa: E501
            "theirs and never the highest."
        )
    else:
        said = (
            f"{format_key_list(target_indices).capitalize()} are no face of the keys: {format_combination(inside)} equals "  # noqa: E501
            f"{format_combination(outside)}, so a query that lifts the first lifts some of the others with them."
        )
    return said + _explain_tolerance(face.residual, scale, tolerance)


def _explain_tolerance(residual: float, scale: float, tolerance: float) -> str:
    if residual <= ROUNDING_THRESHOLD:
        return ""
    return (
        f" (Equal to within {residual * scale:.2g}, which is counted as equal: the tolerance is {tolerance * scale:.2g}. "  # noqa: E501
        f"To use so small a difference a query would need a length of about {1 / (residual * scale):.1g} or more.)"
    )


def explain_face(target_indices: tuple[int, ...], margin: float) -> str:
    """The wanted keys can have the weight to themselves."""
    if len(target_indices) == 1:
        return (
            f"Key {target_indices[0]} is a corner of the keys, {margin:.4g} away from the hull of the others: the longer the "  # noqa: E501
            "query, the more weight it gets, as near to 1 as one likes."
        )
    return (
        f"{format_key_list(target_indices).capitalize()} are a face of the keys, {margin:.4g} away from the hull of the others: the "  # noqa: E501
        "longer the query, the more weight they get together, as near to 1 as one likes, in the wanted shares."
    )


def explain_not_log_linear(affine_dependence: PerKeyVector, target: PerKeyVector) -> str:
    """The target's logarithms do not fit the keys."""
    biggest = affine_dependence / affine_dependence[int(np.argmax(np.abs(affine_dependence)))]
    used = np.abs(biggest) > ROUNDING_THRESHOLD
    off = float(biggest[used] @ np.log(target[used]))
    return (
        f"The keys are tied: {format_combination(biggest)} = 0, so the same sum of the weights' logarithms is 0 for every "  # noqa: E501
        f"query, and for the target it is {off:.4g}."
    )


def describe_best_approximation(
    best_precision: float, is_attained: bool, precision: float, is_single_key: bool, residual: float = 0.0
) -> str:
    """What a query that cannot be exact comes to."""
    word = "weight" if is_single_key else "precision"
    none = " Short of that, no" if residual > ROUNDING_THRESHOLD else " No"
    if is_attained:
        if abs(precision - best_precision) <= 1e-9:
            return f"{none} query does better than this one, with {word} {format_precision(best_precision)}."
        return f" The best {word} is {format_precision(best_precision)}; this is the shortest query that reaches {format_precision(precision)}."  # noqa: E501
    return (
        f"{none} query has a {word} of {format_precision(best_precision)} or more; longer ones come as near as one likes, and this one "  # noqa: E501
        f"reaches {format_precision(precision)}."
    )


def describe_shortest_query(precision: float, norm: float) -> str:
    """What a query that approaches its target comes to."""
    return f" This is the shortest query that reaches {format_precision(precision)}, of length {norm:.4g}."
