"""Answer a published course report's attention-design questions for four keys in three dimensions.

The report prints queries but not keys. The keys were recovered from its printed queries to two digits, so every figure
is accurate to two digits, and each step states the resulting error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtohead.key_design import phrasing
from headtohead.key_design.convex_solvers import KeyMatrix, PerKeyVector, Vector, softmax
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.query_design import (
    DEFAULT_PRECISION,
    find_averaging_query,
    find_identity_queries,
    find_selecting_query,
)
from headtohead.key_design.solutions import (
    DesignResult,
    KeyReplacement,
    QueryDesign,
    QueryMatrixDesign,
    compute_precision,
)

REPORT_KEYS = ((0.47, 0.65, 0.60), (0.64, 0.50, -0.59), (-0.03, -0.48, -0.88), (0.43, -0.83, 0.35))
"""recovered from the printed queries"""
ROUNDING_ERROR = 0.005
"""rounding error in a number with two decimals"""
REPORT_TARGET_SCORES = (3.0, 3.0, -2.0, -3.0)
"""scores that the report fits by least squares to average its first two values"""


@dataclass(frozen=True, eq=False)
class PublishedAnswer:
    """The answer printed in the report; unknown fields are None."""

    description: str
    query: Vector
    weights: PerKeyVector
    precision: float


@dataclass(frozen=True, eq=False)
class WalkthroughStep:
    """One of the report's questions with our answer and its limits."""

    question: str
    solution: QueryDesign | QueryMatrixDesign | KeyReplacement
    published: PublishedAnswer | None
    limits: tuple[str, ...]
    """limits of our answer"""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Walkthrough(DesignResult):
    """All questions of the report in order, with our answers."""

    kind = "tour"
    steps: tuple[WalkthroughStep, ...]


def build_walkthrough(*, precision: float | None = None) -> Walkthrough:
    """Answer every question; `precision` has the same meaning as in `find_selecting_query`."""
    keys = np.array(REPORT_KEYS)
    steps = (
        _solve_single_selection(keys, precision),
        _solve_identity(keys, precision),
        WalkthroughStep("A query that averages all values", find_averaging_query(keys), None, ()),
        *_solve_pair_average_and_replacements(keys, precision),
    )
    inexact_questions = [step.solution.question for step in steps if not step.solution.exact]
    reason = (
        f"{len(steps) - len(inexact_questions)} of {len(steps)} questions can be answered to any precision. Only the "
        "average of all keys is reached by a finite query, because softmax weights are positive. "
        f"Not exact: {'; '.join(inexact_questions)}. The keys are known to two digits only."
    )
    return Walkthrough(
        question="design questions of a course report",
        keys=keys,
        exact=not inexact_questions,
        reason=reason,
        precision=DEFAULT_PRECISION if precision is None else precision,
        steps=steps,
    )


def _solve_single_selection(keys: KeyMatrix, precision: float | None) -> WalkthroughStep:
    """Find a query that returns only the first value."""
    design = find_selecting_query(keys, 0, precision=precision)
    min_weight = _compute_min_weight(design)
    limits = (
        _describe_leftover_weight(design),
        f"Rounding of the keys to two digits may lower the weight to {phrasing.format_precision(min_weight)}.",
    )
    return WalkthroughStep("A query that returns one value, here the first", design, None, limits)


def _solve_identity(keys: KeyMatrix, precision: float | None) -> WalkthroughStep:
    """Find one query per key so that the attention weights are close to the identity matrix."""
    design = find_identity_queries(keys, precision=precision)
    min_weight = min(_compute_min_weight(row) for row in design.rows)
    max_leftover_weight = 1 - float(np.diagonal(design.weights).min())
    limits = (
        f"The weights are the identity only in the limit: rows leave up to {max_leftover_weight:.2g} to other keys.",
        f"Rounding of the keys to two digits may lower a diagonal weight to {phrasing.format_precision(min_weight)}.",
    )
    return WalkthroughStep("A query matrix that is an identity mapping", design, None, limits)


def _solve_pair_average_and_replacements(keys: KeyMatrix, precision: float | None) -> list[WalkthroughStep]:
    """Answer the last three questions, which reuse the query from the first of them."""
    design = find_averaging_query(keys, [0, 1], precision=precision)
    published_query = np.linalg.lstsq(keys, np.array(REPORT_TARGET_SCORES), rcond=None)[0]
    scores = ", ".join(f"{score:g}" for score in REPORT_TARGET_SCORES)
    total_weight = float(softmax(keys @ published_query)[:2].sum())
    matched_design = find_averaging_query(keys, [0, 1], precision=total_weight)
    published_answer = PublishedAnswer(
        f"A least-squares fit to the scores {scores}: four scores but three dimensions, so the fit is not exact and "
        f"the two weights differ. Our query with the same total weight {total_weight:.4f} has norm "
        f"{matched_design.norm:.4g}; the report's query has {np.linalg.norm(published_query):.4g}.",
        published_query,
        softmax(keys @ published_query),
        compute_precision(design.target, keys @ published_query),
    )
    max_ratio = _compute_max_weight_ratio(design.query)
    average_step = WalkthroughStep(
        "A query that averages the first two values",
        design,
        published_answer,
        (
            _describe_leftover_weight(design),
            f"Rounding of the keys to two digits may make the two weights differ by a factor of up to {max_ratio:.3g}.",
        ),
    )

    def replace_third_key(
        question: str, published_description: str, describe_limits: Callable[[KeyReplacement], list[str]], **goal: Any
    ) -> WalkthroughStep:
        """Replace the third key, both for our query and for the published query, and return both answers."""
        replacement, published = (
            replace_key(keys, query, 2, precision=precision, **goal) for query in (design.query, published_query)
        )
        published_answer = PublishedAnswer(
            published_description, published.query, published.weights, published.precision
        )
        return WalkthroughStep(question, replacement, published_answer, tuple(describe_limits(replacement)))

    def describe_average_limits(replacement: KeyReplacement) -> list[str]:
        """State how much weight remains on the fourth key."""
        fourth_weight = replacement.weights[3]
        return [f"Not exact: the fourth key has weight {fourth_weight:.2g}, which only a longer query reduces."]

    def describe_selection_limits(replacement: KeyReplacement) -> list[str]:
        """Explain how close a key with norm 1 can come to being selected."""
        max_score = f"{np.linalg.norm(design.query):.4g}"
        achieved_precision = phrasing.format_precision(replacement.precision)
        achieved = f"which gives precision {achieved_precision}."
        limits = [f"Not exact: a key of norm 1 has a score of at most {max_score}, the norm of the query, {achieved}"]
        if replacement.scale is not None and replacement.scale != 1.0:
            required_precision = phrasing.format_precision(DEFAULT_PRECISION if precision is None else precision)
            limits.append(f"Reaching {required_precision} requires scaling the query by {replacement.scale:.3g}.")
        return limits

    return [
        average_step,
        replace_third_key(
            "A new third key for which the same query averages three values",
            "The best third key for the report's query; the report does not print its key.",
            describe_average_limits,
            average=[0, 1, 2],
        ),
        replace_third_key(
            "A new third key of norm 1 that the same query selects",
            "The best third key of norm 1 for the report's query.",
            describe_selection_limits,
            select=True,
            required_norm=1.0,
        ),
    ]


def _describe_leftover_weight(design: QueryDesign) -> str:
    """State how much weight the query leaves on keys that should have none."""
    return f"Reached only in the limit: this query leaves weight {1 - design.precision:.2g} on the other keys."


def _compute_max_weight_ratio(query: Vector) -> float:
    """Return the largest factor by which rounding the keys can change the ratio of two weights."""
    return math.exp(2 * ROUNDING_ERROR * float(np.abs(query).sum()))


def _compute_min_weight(design: QueryDesign) -> float:
    """Return the smallest weight that the selected key can have with the unrounded keys."""
    return 1 / (1 + (1 - design.precision) / design.precision * _compute_max_weight_ratio(design.query))
