"""The decision rule and the metrics it applies to.

Helped or hurt: the 95 % interval excludes 0 and does not lie within the equivalence margin. No practical difference:
the 90 % interval lies within the margin, which amounts to two one-sided equivalence tests at 5 % (TOST; Schuirmann,
Journal of Pharmacokinetics and Biopharmaceutics 15, 1987). Otherwise: cannot tell. The first case that applies decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Bool, Float

from headtohead.errors import ScoresError, suggest

PerExperiment = Float[np.ndarray, " experiments"]
MetricName = Literal["perplexity", "accuracy", "loss", "score"]
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


@dataclass(frozen=True)
class Metric:
    """How means and differences are displayed, and which direction is better."""

    name: MetricName
    lower_is_better: bool

    @property
    def is_relative(self) -> bool:
        """Whether means are logarithms and differences are displayed as relative changes."""
        return self.name == "perplexity"

    def to_display_effect(self, difference: float) -> float:
        """Return the displayed effect: exp(difference) - 1 for perplexity, the difference itself otherwise.

        Accuracy cannot change by more than 1.
        """
        if not self.is_relative:
            return min(max(difference, -1.0), 1.0) if self.name == "accuracy" else difference
        with np.errstate(over="ignore"):
            return float(np.expm1(difference))

    def to_display_mean(self, mean: float) -> float:
        """Return the displayed mean: exp(mean loss per token) for perplexity, the mean itself otherwise."""
        if not self.is_relative:
            return mean
        with np.errstate(over="ignore"):
            return float(np.exp(mean))

    def compute_equivalence_band(self, equivalence_margin: float) -> tuple[float, float]:
        """Return the margin as the (lowest, highest) difference in means.

        For perplexity the bounds are not symmetric: log(1 - m) and log(1 + m).
        """
        if (
            not np.isfinite(equivalence_margin)
            or equivalence_margin < 0
            or (self.is_relative and equivalence_margin >= 1)
        ):
            allowed = "from 0 up to, but not including, 1" if self.is_relative else "0 or above"
            raise ScoresError(f"equivalence margin {equivalence_margin:g} for {self.name}; allowed: {allowed}")
        if self.is_relative:
            return float(np.log1p(-equivalence_margin)), float(np.log1p(equivalence_margin))
        return -equivalence_margin, equivalence_margin

    def is_better(self, difference: float) -> bool:
        return difference < 0 if self.lower_is_better else difference > 0


METRICS: dict[str, Metric] = {
    "perplexity": Metric("perplexity", lower_is_better=True),
    "accuracy": Metric("accuracy", lower_is_better=False),
    "loss": Metric("loss", lower_is_better=True),
    "score": Metric("score", lower_is_better=False),
}


def get_metric(name: str) -> Metric:
    """Return the metric with this name."""
    if name not in METRICS:
        near = suggest(name, METRICS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ScoresError(f"unknown metric {name!r}; allowed: {', '.join(get_args(MetricName))}{hint}")
    return METRICS[name]


def decide_outcomes(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_band: tuple[float, float],
    *,
    lower_is_better: bool,
) -> list[VerdictOutcome]:
    """Return the outcomes of many experiments at once.

    `half_width` and `equivalence_half_width` are those of the 95 % and the 90 % interval for `difference`. All three
    arrays have the shape (experiments,).
    """
    differs, is_equivalent = _apply_rule(difference, half_width, equivalence_half_width, equivalence_band)
    is_helpful = (difference < 0) == lower_is_better
    settled = np.where(differs, np.where(is_helpful, HELPED, HURT), NO_PRACTICAL_DIFFERENCE)
    return [VERDICT_OUTCOMES[outcome] for outcome in np.where(differs | is_equivalent, settled, CANNOT_TELL)]


def find_settled(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_band: tuple[float, float],
) -> Bool[np.ndarray, " experiments"]:
    """Return which experiments have an outcome other than "cannot tell"."""
    differs, is_equivalent = _apply_rule(difference, half_width, equivalence_half_width, equivalence_band)
    return np.asarray(differs | is_equivalent)


def answer_claim(outcome: VerdictOutcome, expected_outcome: str) -> ClaimAnswer:
    """Return whether a claim that predicts an outcome holds. Without a judgement, the claim cannot be tested."""
    if outcome in OPEN_OUTCOMES:
        return "cannot tell"
    if outcome not in (HELPED, HURT, NO_PRACTICAL_DIFFERENCE):
        return "cannot be tested"
    return "holds" if outcome == expected_outcome else "does not hold"


def _apply_rule(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_band: tuple[float, float],
) -> tuple[Bool[np.ndarray, " experiments"], Bool[np.ndarray, " experiments"]]:
    """Return which experiments show a difference, and which show that it is too small to matter."""
    excludes_zero = np.abs(difference) > half_width
    is_inside = _is_inside_band(difference, half_width, equivalence_band)
    return excludes_zero & ~is_inside, _is_inside_band(difference, equivalence_half_width, equivalence_band)


def _is_inside_band(
    difference: PerExperiment, half_width: PerExperiment, equivalence_band: tuple[float, float]
) -> Bool[np.ndarray, " experiments"]:
    """Return whether each interval lies within the equivalence band."""
    low, high = equivalence_band
    return np.asarray((difference - half_width >= low) & (difference + half_width <= high))
