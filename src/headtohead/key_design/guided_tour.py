"""A walk through the questions that one of the published reports (report C, part 1) asks of four keys in three
dimensions: its answers where they are known, ours, and where ours fall short.

The report prints queries, not keys. The keys were recovered from its printed queries to two digits, so every figure
here is as good as two digits allow, and the walk says how far off that can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from headtohead.key_design import phrasing as words
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.solutions import DesignResult, KeyReplacement, QueryDesign, QueryMatrixDesign
from headtohead.key_design.solve import (
    DEFAULT_PRECISION,
    compute_precision,
    find_averaging_query,
    find_identity_queries,
    find_selecting_query,
)
from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector, softmax

REPORT_KEYS = ((0.47, 0.65, 0.60), (0.64, 0.50, -0.59), (-0.03, -0.48, -0.88), (0.43, -0.83, 0.35))
"""recovered from the queries that the report prints"""
ROUNDING_ERROR = 0.005
"""how far off a number with two decimals can be"""
REPORT_TARGET_SCORES = (3.0, 3.0, -2.0, -3.0)
"""the scores that the report aims at, by least squares, so as to average its first two values"""


@dataclass(frozen=True, eq=False)
class PublishedAnswer:
    """What the report's answer gives, as far as it is known."""

    said: str
    query: Vector
    weights: PerKeyVector
    precision: float


@dataclass(frozen=True, eq=False)
class WalkthroughStep:
    """One question of the report."""

    task: str
    ours: QueryDesign | QueryMatrixDesign | KeyReplacement
    theirs: PublishedAnswer | None
    short: tuple[str, ...]
    """where our own answer falls short"""


@dataclass(frozen=True, eq=False, repr=False)
class Walkthrough(DesignResult):
    """All questions in the report's order."""

    kind = "tour"

    question: str
    keys: KeyMatrix
    exact: bool
    reason: str
    precision: float
    steps: tuple[WalkthroughStep, ...]

    def to_dict(self) -> dict[str, object]:
        row = super().to_dict()
        row["steps"] = [
            {
                "asks": step.task,
                "ours": step.ours.to_dict(),
                "theirs": None
                if step.theirs is None
                else {
                    "said": step.theirs.said,
                    "query": step.theirs.query.tolist(),
                    "weights": step.theirs.weights.tolist(),
                    "precision": step.theirs.precision,
                },
                "short": list(step.short),
            }
            for step in self.steps
        ]
        return row


def build_walkthrough(*, precision: float | None = None) -> Walkthrough:
    """Every question of report C, part 1, answered; `precision` as in `select`."""
    keys = np.array(REPORT_KEYS)
    steps = (
        _solve_single_selection(keys, precision),
        _solve_identity(keys, precision),
        _solve_full_average(keys),
        *_solve_pair_average_and_replacements(keys, precision),
    )
    inexact = [step.ours.question for step in steps if not step.ours.exact]
    reason = (
        f"{len(steps) - len(inexact)} of {len(steps)} questions can be answered to any precision, and only the average "
        "of all is met by a query itself: wherever a key should get nothing, softmax leaves it a little. "
        f"Not exact: {'; '.join(inexact)}. The keys are known to two digits only."
    )
    wanted = DEFAULT_PRECISION if precision is None else precision
    return Walkthrough("the questions of report C, part 1", keys, not inexact, reason, wanted, steps)


def _solve_single_selection(keys: KeyMatrix, precision: float | None) -> WalkthroughStep:
    ours = find_selecting_query(keys, 0, precision=precision)
    worst = _compute_min_weight(ours)
    short = (
        _describe_leftover_weight(ours),
        f"With keys known to two digits, the true weight of this query may be as low as {words.format_precision(worst)}.",  # noqa: E501
    )
    return WalkthroughStep("A query that returns one value, here the first", ours, None, short)


def _solve_identity(keys: KeyMatrix, precision: float | None) -> WalkthroughStep:
    ours = find_identity_queries(keys, precision=precision)
    worst = min(_compute_min_weight(row) for row in ours.rows)
    rest = 1 - float(np.diagonal(ours.weights).min())
    short = (
        f"The matrix of weights is the identity only in the limit: its rows leave up to {rest:.2g} to other keys.",
        f"With keys known to two digits, the lowest weight on the diagonal may be as low as {words.format_precision(worst)}.",  # noqa: E501
    )
    return WalkthroughStep("A query matrix that is an identity mapping", ours, None, short)


def _solve_full_average(keys: KeyMatrix) -> WalkthroughStep:
    return WalkthroughStep("A query that averages all values", find_averaging_query(keys), None, ())


def _solve_pair_average_and_replacements(keys: KeyMatrix, precision: float | None) -> list[WalkthroughStep]:
    """The last three questions share a query: each side goes on with its own."""
    ours = find_averaging_query(keys, [0, 1], precision=precision)
    query = np.linalg.lstsq(keys, np.array(REPORT_TARGET_SCORES), rcond=None)[0]
    scores = ", ".join(f"{score:g}" for score in REPORT_TARGET_SCORES)
    together = float(softmax(keys @ query)[:2].sum())
    fair = find_averaging_query(keys, [0, 1], precision=together)
    theirs = PublishedAnswer(
        f"Least squares towards the scores {scores}: four scores, three numbers, so they are not met, and the two "
        f"weights differ. Ours with the same weight on both together, {together:.4f}, has length {fair.norm:.4g}; the "
        f"report's has {np.linalg.norm(query):.4g}.",
        query,
        softmax(keys @ query),
        compute_precision(ours.target, keys @ query),
    )
    factor = _compute_max_weight_ratio(ours.query)
    two = WalkthroughStep(
        "A query that averages the first two values",
        ours,
        theirs,
        (
            _describe_leftover_weight(ours),
            f"With keys known to two digits, the two weights may differ by a factor of up to {factor:.3g}.",
        ),
    )
    return [
        two,
        _replace_third_key_to_average(keys, ours.query, query, precision),
        _replace_third_key_to_select(keys, ours.query, query, precision),
    ]


def _replace_third_key_to_average(
    keys: KeyMatrix, query: Vector, published_query: Vector, precision: float | None
) -> WalkthroughStep:
    ours = replace_key(keys, query, 2, average=[0, 1, 2], precision=precision)
    theirs = replace_key(keys, published_query, 2, average=[0, 1, 2], precision=precision)
    return WalkthroughStep(
        "A new third key with which the same query averages three values",
        ours,
        _build_published_answer(
            theirs, "The best that any third key does with the report's query; its key is not printed."
        ),
        (f"Not exact: the fourth key keeps {ours.weights[3]:.2g}, which only a longer query takes away.",),
    )


def _replace_third_key_to_select(
    keys: KeyMatrix, query: Vector, published_query: Vector, precision: float | None
) -> WalkthroughStep:
    ours = replace_key(keys, query, 2, select=True, required_norm=1.0, precision=precision)
    theirs = replace_key(keys, published_query, 2, select=True, required_norm=1.0, precision=precision)
    most = f"{np.linalg.norm(query):.4g}"
    reached = f"and that gives {words.format_precision(ours.precision)}."
    short = [f"Not exact: a key of length 1 has at most the score {most}, the length of the query, {reached}"]
    if ours.scale is not None and ours.scale != 1.0:
        wanted = words.format_precision(DEFAULT_PRECISION if precision is None else precision)
        short.append(f"To reach {wanted} the same query must be {ours.scale:.3g} times as long.")
    return WalkthroughStep(
        "A new third key of length 1 that the same query returns alone",
        ours,
        _build_published_answer(theirs, "The best that any third key of length 1 does with the report's query."),
        tuple(short),
    )


def _build_published_answer(replacement: KeyReplacement, description: str) -> PublishedAnswer:
    return PublishedAnswer(description, replacement.query, replacement.weights, replacement.precision)


def _describe_leftover_weight(result: QueryDesign) -> str:
    return f"Reached only in the limit: this query leaves {1 - result.precision:.2g} to the other keys."


def _compute_max_weight_ratio(query: Vector) -> float:
    """By how much the ratio of two weights can be off: each score moves by half a digit times |query| in the 1-norm."""
    return math.exp(2 * ROUNDING_ERROR * float(np.abs(query).sum()))


def _compute_min_weight(result: QueryDesign) -> float:
    return 1 / (1 + (1 - result.precision) / result.precision * _compute_max_weight_ratio(result.query))
