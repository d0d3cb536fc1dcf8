"""Issues of scores from other sources: what the checks report, and what the checks have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import scipy
from jaxtyping import Float

from headtohead.verdict.scores import Scores, infer_resolution

ScoreIssueKind = Literal[
    "copied runs",
    "computed scores",
    "different units",
    "different texts",
    "empty evaluation",
    "repeated scores",
    "ordered scores",
    "outlier",
    "negative loss",
]
MAX_DENOMINATOR = 20_000
MAX_COINCIDENCE = 1e-3
"""probability with which independent runs may produce what withholds a verdict"""


class ScoreWarning(UserWarning):
    """Scores may not be those of independent runs on the same examples."""


@dataclass(frozen=True)
class ScoreIssue:
    """Something that independent runs of two models, scored on the same examples, do not show."""

    kind: ScoreIssueKind
    variant: str
    message: str
    advice: str
    is_blocking: bool = False
    """whether the issue withholds the verdict"""


def format_blocking_issues(issues: Sequence[ScoreIssue], baseline_name: str, variant_name: str) -> list[str]:
    """Return the issues of a variant and of the baseline that withhold the verdict, each as one reason."""
    return [
        f"{issue.message} {issue.advice}".rstrip(".")
        for issue in issues
        if issue.is_blocking and issue.variant in (baseline_name, variant_name)
    ]


@dataclass(frozen=True, eq=False)
class VariantSummary:
    """The scores of one variant, with one mean per seed."""

    name: str
    scores: Scores
    seed_means: Float[np.ndarray, " seeds"]
    resolution: float
    """rounding step of the means; 0 if they are not rounded"""

    @property
    def seed_mean_range(self) -> float:
        """Difference between the largest and the smallest mean of a seed."""
        return float(np.ptp(self.seed_means)) if self.seed_means.size else 0.0

    @property
    def relative_resolution(self) -> float:
        """Rounding step relative to the range of the means, at most 1: the probability that two means are equal."""
        return min(1.0, self.resolution / self.seed_mean_range) if self.seed_mean_range else 1.0


def summarize_variant(name: str, scores: Scores) -> VariantSummary:
    """Return what the checks need to find issues: scores, means and the rounding step, inferred if it is unknown."""
    seed_means = scores.compute_seed_means()
    if scores.resolution is not None or len(scores.weights) > 1:
        return VariantSummary(name, scores, seed_means, scores.resolution or 0.0)
    resolution = max(infer_resolution(seed_means.tolist()), _infer_accuracy_step(seed_means.tolist()))
    return VariantSummary(name, scores, seed_means, resolution)


def _infer_accuracy_step(means: Sequence[float]) -> float:
    """Return 1 / n if all values are multiples of 1 / n, as accuracies of n examples are, or 0, to judge score issues.

    Accuracies of few examples are often equal by chance, so a check of copies must not take them for copies.
    """
    fractions = [Fraction(mean).limit_denominator(MAX_DENOMINATOR) for mean in means]
    if not fractions or any(
        abs(float(fraction) - mean) > 1e-12 for fraction, mean in zip(fractions, means, strict=True)
    ):
        return 0.0
    return 1 / math.lcm(*(fraction.denominator for fraction in fractions))


def is_coincidence(num_observed: int, num_pairs: int, probability: float) -> bool:
    """Return whether independent runs produce this many equal pairs. The factor 2 allows for clustered scores."""
    expected = 2 * num_pairs * min(1.0, probability)
    return num_observed == 0 or float(scipy.special.pdtrc(num_observed - 1, expected)) > MAX_COINCIDENCE
