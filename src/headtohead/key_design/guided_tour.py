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
from headtohead.key_design.solutions import Answer, Identity, Replacement, Shown
from headtohead.key_design.solve import PRECISION, average, fit, identity, select
from headtohead.key_design.solvers import OfKeys, Rows, Vector, softmax

KEYS = ((0.47, 0.65, 0.60), (0.64, 0.50, -0.59), (-0.03, -0.48, -0.88), (0.43, -0.83, 0.35))
"""recovered from the queries that the report prints"""
HALF_DIGIT = 0.005
"""how far off a number with two decimals can be"""
AVERAGING_SCORES = (3.0, 3.0, -2.0, -3.0)
"""the scores that the report aims at, by least squares, so as to average its first two values"""


@dataclass(frozen=True, eq=False)
class Theirs:
    """What the report's answer gives, as far as it is known."""

    said: str
    query: Vector
    weights: OfKeys
    precision: float


@dataclass(frozen=True, eq=False)
class Step:
    """One question of the report."""

    asks: str
    ours: Answer | Identity | Replacement
    theirs: Theirs | None
    short: tuple[str, ...]
    """where our own answer falls short"""


@dataclass(frozen=True, eq=False, repr=False)
class Tour(Shown):
    """All questions in the report's order."""

    question: str
    keys: Rows
    exact: bool
    reason: str
    precision: float
    steps: tuple[Step, ...]

    def as_row(self) -> dict[str, object]:
        row = super().as_row()
        row["steps"] = [
            {
                "asks": step.asks,
                "ours": step.ours.as_row(),
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


def tour(*, precision: float | None = None) -> Tour:
    """Every question of report C, part 1, answered; `precision` as in `select`."""
    keys = np.array(KEYS)
    steps = (
        _one_value(keys, precision),
        _identity(keys, precision),
        _all_values(keys),
        *_two_and_a_new_key(keys, precision),
    )
    inexact = [step.ours.question for step in steps if not step.ours.exact]
    reason = (
        f"{len(steps) - len(inexact)} of {len(steps)} questions can be answered to any precision, and only the average "
        "of all is met by a query itself: wherever a key should get nothing, softmax leaves it a little. "
        f"Not exact: {'; '.join(inexact)}. The keys are known to two digits only."
    )
    wanted = PRECISION if precision is None else precision
    return Tour("the questions of report C, part 1", keys, not inexact, reason, wanted, steps)


def _one_value(keys: Rows, precision: float | None) -> Step:
    ours = select(keys, 0, precision=precision)
    worst = _least_weight(ours)
    short = (
        _never_all(ours),
        f"With keys known to two digits, the true weight of this query may be as low as {words.figure(worst)}.",
    )
    return Step("A query that returns one value, here the first", ours, None, short)


def _identity(keys: Rows, precision: float | None) -> Step:
    ours = identity(keys, precision=precision)
    worst = min(_least_weight(row) for row in ours.rows)
    rest = 1 - float(np.diagonal(ours.weights).min())
    short = (
        f"The matrix of weights is the identity only in the limit: its rows leave up to {rest:.2g} to other keys.",
        f"With keys known to two digits, the lowest weight on the diagonal may be as low as {words.figure(worst)}.",
    )
    return Step("A query matrix that is an identity mapping", ours, None, short)


def _all_values(keys: Rows) -> Step:
    return Step("A query that averages all values", average(keys), None, ())


def _two_and_a_new_key(keys: Rows, precision: float | None) -> list[Step]:
    """The last three questions share a query: each side goes on with its own."""
    ours = average(keys, [0, 1], precision=precision)
    query = np.linalg.lstsq(keys, np.array(AVERAGING_SCORES), rcond=None)[0]
    scores = ", ".join(f"{score:g}" for score in AVERAGING_SCORES)
    together = float(softmax(keys @ query)[:2].sum())
    fair = average(keys, [0, 1], precision=together)
    theirs = Theirs(
        f"Least squares towards the scores {scores}: four scores, three numbers, so they are not met, and the two "
        f"weights differ. Ours with the same weight on both together, {together:.4f}, has length {fair.norm:.4g}; the "
        f"report's has {np.linalg.norm(query):.4g}.",
        query,
        softmax(keys @ query),
        fit(ours.target, keys @ query),
    )
    factor = _most_ratio(ours.query)
    two = Step(
        "A query that averages the first two values",
        ours,
        theirs,
        (
            _never_all(ours),
            f"With keys known to two digits, the two weights may differ by a factor of up to {factor:.3g}.",
        ),
    )
    return [two, _third_averages(keys, ours.query, query, precision), _third_alone(keys, ours.query, query, precision)]


def _third_averages(keys: Rows, query: Vector, their_query: Vector, precision: float | None) -> Step:
    ours = replace_key(keys, query, 2, average=[0, 1, 2], precision=precision)
    theirs = replace_key(keys, their_query, 2, average=[0, 1, 2], precision=precision)
    return Step(
        "A new third key with which the same query averages three values",
        ours,
        _with_its_query(theirs, "The best that any third key does with the report's query; its key is not printed."),
        (f"Not exact: the fourth key keeps {ours.weights[3]:.2g}, which only a longer query takes away.",),
    )


def _third_alone(keys: Rows, query: Vector, their_query: Vector, precision: float | None) -> Step:
    ours = replace_key(keys, query, 2, select=True, length=1.0, precision=precision)
    theirs = replace_key(keys, their_query, 2, select=True, length=1.0, precision=precision)
    most = f"{np.linalg.norm(query):.4g}"
    reached = f"and that gives {words.figure(ours.precision)}."
    short = [f"Not exact: a key of length 1 has at most the score {most}, the length of the query, {reached}"]
    if ours.scale is not None and ours.scale != 1.0:
        wanted = words.figure(PRECISION if precision is None else precision)
        short.append(f"To reach {wanted} the same query must be {ours.scale:.3g} times as long.")
    return Step(
        "A new third key of length 1 that the same query returns alone",
        ours,
        _with_its_query(theirs, "The best that any third key of length 1 does with the report's query."),
        tuple(short),
    )


def _with_its_query(found: Replacement, said: str) -> Theirs:
    return Theirs(said, found.query, found.weights, found.precision)


def _never_all(ours: Answer) -> str:
    return f"Reached only in the limit: this query leaves {1 - ours.precision:.2g} to the other keys."


def _most_ratio(query: Vector) -> float:
    """By how much the ratio of two weights can be off: each score moves by half a digit times |query| in the 1-norm."""
    return math.exp(2 * HALF_DIGIT * float(np.abs(query).sum()))


def _least_weight(ours: Answer) -> float:
    return 1 / (1 + (1 - ours.precision) / ours.precision * _most_ratio(ours.query))
