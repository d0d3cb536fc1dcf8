"""Why an answer is what it is, in plain words. Keys are counted from 0, as in Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headtohead.key_design.faces import Face
from headtohead.key_design.solvers import OfKeys

MOST_TERMS = 6
VISIBLE = 1e-12
"""a gap below this is rounding and not worth a word"""


def figure(value: float) -> str:
    """0.999, 12.3, 4e-10: four digits, and more where a weight is nearly 1."""
    rest = 1 - value
    if 0 < rest < 5e-4:
        return f"1 - {rest:.2g}"
    return f"{value:.4g}"


def places(keys: Sequence[int]) -> str:
    """key 0; keys 0 and 1; keys 0, 1 and 3."""
    if len(keys) == 1:
        return f"key {keys[0]}"
    shown = [str(at) for at in keys[:12]]
    if len(keys) > 12:
        return f"keys {', '.join(shown)} and {len(keys) - 12} more"
    return f"keys {', '.join(shown[:-1])} and {shown[-1]}"


def combination(coefficients: OfKeys) -> str:
    """0.5 key 0 + 0.5 key 1."""
    terms = [int(at) for at in np.argsort(-np.abs(coefficients), kind="stable") if abs(coefficients[at]) > VISIBLE]
    said = ""
    for at in sorted(terms[:MOST_TERMS]):
        part = coefficients[at]
        sign = ("-" if part < 0 else "") if not said else (" - " if part < 0 else " + ")
        size = "" if abs(abs(part) - 1) < 1e-9 else f"{abs(part):.4g} "
        said += f"{sign}{size}key {at}"
    return said + (f" + {len(terms) - MOST_TERMS} smaller terms" if len(terms) > MOST_TERMS else "")


def why_no_face(wanted: tuple[int, ...], face: Face, size: float, tolerance: float) -> str:
    """The wanted keys cannot have the weight to themselves."""
    relation = face.relation
    assert relation is not None
    inside = np.zeros_like(relation)
    inside[list(wanted)] = relation[list(wanted)]
    outside = inside - relation
    others = np.flatnonzero(outside > VISIBLE)
    if len(wanted) == 1 and len(others) == 1:
        said = f"Keys {wanted[0]} and {others[0]} are equal, so every query gives them the same weight."
    elif len(wanted) == 1:
        said = (
            f"Key {wanted[0]} is no corner of the keys: it equals {combination(outside)}, so its score is that mean of "
            "theirs and never the highest."
        )
    else:
        said = (
            f"{places(wanted).capitalize()} are no face of the keys: {combination(inside)} equals "
            f"{combination(outside)}, so a query that lifts the first lifts some of the others with them."
        )
    return said + _within(face.gap, size, tolerance)


def _within(gap: float, size: float, tolerance: float) -> str:
    if gap <= VISIBLE:
        return ""
    return (
        f" (Equal to within {gap * size:.2g}, which is counted as equal: the tolerance is {tolerance * size:.2g}. "
        f"To use so small a difference a query would need a length of about {1 / (gap * size):.1g} or more.)"
    )


def why_a_face(wanted: tuple[int, ...], margin: float) -> str:
    """The wanted keys can have the weight to themselves."""
    if len(wanted) == 1:
        return (
            f"Key {wanted[0]} is a corner of the keys, {margin:.4g} away from the hull of the others: the longer the "
            "query, the more weight it gets, as near to 1 as one likes."
        )
    return (
        f"{places(wanted).capitalize()} are a face of the keys, {margin:.4g} away from the hull of the others: the "
        "longer the query, the more weight they get together, as near to 1 as one likes, in the wanted shares."
    )


def why_not_linear(relation: OfKeys, target: OfKeys) -> str:
    """The target's logarithms do not fit the keys."""
    biggest = relation / relation[int(np.argmax(np.abs(relation)))]
    used = np.abs(biggest) > VISIBLE
    off = float(biggest[used] @ np.log(target[used]))
    return (
        f"The keys are tied: {combination(biggest)} = 0, so the same sum of the weights' logarithms is 0 for every "
        f"query, and for the target it is {off:.4g}."
    )


def how_near(best: float, attained: bool, reached: float, single: bool, gap: float = 0.0) -> str:
    """What a query that cannot be exact comes to."""
    word = "weight" if single else "precision"
    none = " Short of that, no" if gap > VISIBLE else " No"
    if attained:
        if abs(reached - best) <= 1e-9:
            return f"{none} query does better than this one, with {word} {figure(best)}."
        return f" The best {word} is {figure(best)}; this is the shortest query that reaches {figure(reached)}."
    return (
        f"{none} query has a {word} of {figure(best)} or more; longer ones come as near as one likes, and this one "
        f"reaches {figure(reached)}."
    )


def how_far(reached: float, norm: float) -> str:
    """What a query that approaches its target comes to."""
    return f" This is the shortest query that reaches {figure(reached)}, of length {norm:.4g}."
