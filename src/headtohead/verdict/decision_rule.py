"""The decision rule: which outcome a verdict has, given the intervals for the difference and the equivalence margin.

Helped or hurt: the 95 % interval excludes 0 and does not lie within the equivalence margin. No practical difference:
the 90 % interval lies within the margin, which amounts to two one-sided equivalence tests at 5 % (TOST; Schuirmann,
Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Otherwise: cannot tell. The first case that applies decides.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

PerExperiment = Float[np.ndarray, " experiments"]
VerdictOutcome = Literal[
    "helped", "hurt", "no practical difference", "cannot tell", "too few seeds", "not comparable", "quick look"
]
ClaimAnswer = Literal["holds", "does not hold", "cannot tell", "cannot be tested"]

HELPED: VerdictOutcome = "helped"
HURT: VerdictOutcome = "hurt"
NO_PRACTICAL_DIFFERENCE: VerdictOutcome = "no practical difference"
CANNOT_TELL: VerdictOutcome = "cannot tell"
TOO_FEW_SEEDS: VerdictOutcome = "too few seeds"
"""fewer than three seeds: the scores are shown, without an interval"""
NOT_COMPARABLE: VerdictOutcome = "not comparable"
QUICK_LOOK: VerdictOutcome = "quick look"
"""a difference that is not judged, because the run had fewer seeds, steps and rows than its experiment"""
OPEN_OUTCOMES = (CANNOT_TELL, TOO_FEW_SEEDS)
"""outcomes that more seeds may change"""
VERDICT_OUTCOMES: dict[str, VerdictOutcome] = {outcome: outcome for outcome in get_args(VerdictOutcome)}


def decide_outcomes(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_bounds: tuple[float, float],
    *,
    lower_is_better: bool,
) -> list[VerdictOutcome]:
    """Return the outcomes of the decision rule for many experiments at once.

    `half_width` and `equivalence_half_width` are those of the 95 % and the 90 % interval for `difference`. All three
    arrays have the shape (experiments,).
    """
    differs, is_equivalent = _test_difference_and_equivalence(
        difference, half_width, equivalence_half_width, equivalence_bounds
    )
    is_helpful = (difference < 0) == lower_is_better
    settled = np.where(differs, np.where(is_helpful, HELPED, HURT), NO_PRACTICAL_DIFFERENCE)
    return [VERDICT_OUTCOMES[outcome] for outcome in np.where(differs | is_equivalent, settled, CANNOT_TELL)]


def find_settled_experiments(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_bounds: tuple[float, float],
) -> Bool[np.ndarray, " experiments"]:
    """Return which experiments the decision rule settles: those with an outcome that is not "cannot tell"."""
    differs, is_equivalent = _test_difference_and_equivalence(
        difference, half_width, equivalence_half_width, equivalence_bounds
    )
    return np.asarray(differs | is_equivalent)


def answer_claim(outcome: VerdictOutcome, expected_outcome: str) -> ClaimAnswer:
    """Return the answer of the decision rule to a published claim: whether the outcome is the one that it predicts.

    Without a judgment, such as in a quick look, the claim cannot be tested.
    """
    if outcome in OPEN_OUTCOMES:
        return "cannot tell"
    if outcome not in (HELPED, HURT, NO_PRACTICAL_DIFFERENCE):
        return "cannot be tested"
    return "holds" if outcome == expected_outcome else "does not hold"


def _test_difference_and_equivalence(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_bounds: tuple[float, float],
) -> tuple[Bool[np.ndarray, " experiments"], Bool[np.ndarray, " experiments"]]:
    """Return for which experiments the rule finds a difference, and for which equivalence by TOST."""
    excludes_zero = np.abs(difference) > half_width
    is_irrelevant = _lies_within_bounds(difference, half_width, equivalence_bounds)
    is_equivalent = _lies_within_bounds(difference, equivalence_half_width, equivalence_bounds)
    return excludes_zero & ~is_irrelevant, is_equivalent


def _lies_within_bounds(
    difference: PerExperiment, half_width: PerExperiment, equivalence_bounds: tuple[float, float]
) -> Bool[np.ndarray, " experiments"]:
    """Return whether each interval lies within the equivalence bounds of the decision rule."""
    low, high = equivalence_bounds
    return np.asarray((difference - half_width >= low) & (difference + half_width <= high))
