"""The one rule, and the scales it is applied on.

Helped or hurt: the 95 % interval excludes 0 and is not inside +-matters. No practical difference: the 90 % interval
lies inside +-matters, which is the test of equivalence by two one-sided tests at 5 % (Schuirmann, Journal of
Pharmacokinetics and Biopharmaceutics 15, 1987). Otherwise: cannot tell. The first that applies counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from headtohead.errors import ScoresError, suggest

PerExperiment = Float[np.ndarray, " experiments"]
MetricName = Literal["perplexity", "accuracy", "loss", "score"]
VerdictOutcome = Literal["helped", "hurt", "no practical difference", "cannot tell", "not comparable"]

HELPED: VerdictOutcome = "helped"
HURT: VerdictOutcome = "hurt"
NO_PRACTICAL_DIFFERENCE: VerdictOutcome = "no practical difference"
CANNOT_TELL: VerdictOutcome = "cannot tell"
NOT_COMPARABLE: VerdictOutcome = "not comparable"


@dataclass(frozen=True)
class Metric:
    """How a difference of means is shown, and which way is better."""

    name: MetricName
    lower_is_better: bool

    @property
    def relative(self) -> bool:
        """Perplexity is compared as a logarithm and shown as a relative change."""
        return self.name == "perplexity"

    def shown(self, difference: float) -> float:
        """A difference of means as the reader sees it: for perplexity the relative change exp(d) - 1."""
        if not self.relative:
            return difference
        with np.errstate(over="ignore"):
            return float(np.expm1(difference))

    def mean(self, mean: float) -> float:
        """A mean as the reader sees it: for perplexity exp of the mean loss per token."""
        if not self.relative:
            return mean
        with np.errstate(over="ignore"):
            return float(np.exp(mean))

    def band(self, equivalence_margin: float) -> tuple[float, float]:
        """+-matters as differences of means. A relative change of +-1 % is not quite symmetric in logarithms."""
        if not np.isfinite(equivalence_margin) or equivalence_margin < 0 or (self.relative and equivalence_margin >= 1):
            allowed = "from 0 up to, but not including, 1" if self.relative else "0 or above"
            raise ScoresError(f"matters = {equivalence_margin:g} for {self.name}; allowed: {allowed}")
        if self.relative:
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
    """The metric of this name, or an error that lists them."""
    if name not in METRICS:
        near = suggest(name, METRICS)
        hint = f"; did you mean {near!r}?" if near else ""
        raise ScoresError(f"metric {name!r} is not known; allowed: {', '.join(get_args(MetricName))}{hint}")
    return METRICS[name]


def decide_outcomes(
    difference: PerExperiment,
    half_width: PerExperiment,
    equivalence_half_width: PerExperiment,
    equivalence_band: tuple[float, float],
    *,
    lower_is_better: bool,
) -> list[VerdictOutcome]:
    """The rule for many experiments: half widths of the 95 % and of the 90 % interval, and the band of +-matters."""
    excludes_0 = np.abs(difference) > half_width
    words: list[VerdictOutcome] = []
    for d, differs, inside, inside_90 in zip(
        difference,
        excludes_0,
        _is_inside_band(difference, half_width, equivalence_band),
        _is_inside_band(difference, equivalence_half_width, equivalence_band),
        strict=True,
    ):
        if differs and not inside:
            words.append(HELPED if (d < 0) == lower_is_better else HURT)
        else:
            words.append(NO_PRACTICAL_DIFFERENCE if inside_90 else CANNOT_TELL)
    return words


def _is_inside_band(
    difference: PerExperiment, half_width: PerExperiment, equivalence_band: tuple[float, float]
) -> np.ndarray:
    low, high = equivalence_band
    return np.asarray((difference - half_width >= low) & (difference + half_width <= high))
