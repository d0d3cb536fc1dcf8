"""The metrics that verdicts compare: which direction is better, and the units of displayed effects and margins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from headtohead.errors import ScoresError, suggest

MetricName = Literal["perplexity", "accuracy", "loss", "score"]


@dataclass(frozen=True)
class Metric:
    """What a score measures: which direction is better, and how means, effects and margins are displayed."""

    name: MetricName
    lower_is_better: bool

    @property
    def is_relative(self) -> bool:
        """Whether means are logarithms and differences are displayed as relative changes."""
        return self.name == "perplexity"

    def to_display_effect(self, difference: float) -> float:
        """Return the effect that a verdict displays: exp(difference) - 1 for perplexity, the difference otherwise.

        Accuracy cannot change by more than 1.
        """
        if not self.is_relative:
            return min(max(difference, -1.0), 1.0) if self.name == "accuracy" else difference
        with np.errstate(over="ignore"):
            return float(np.expm1(difference))

    def to_display_mean(self, mean: float) -> float:
        """Return the mean that a verdict displays: exp(mean loss per token) for perplexity, the mean otherwise."""
        if not self.is_relative:
            return mean
        with np.errstate(over="ignore"):
            return float(np.exp(mean))

    def compute_equivalence_bounds(self, equivalence_margin: float) -> tuple[float, float]:
        """Return the equivalence margin as the (lowest, highest) difference in means that has no practical relevance.

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
        """Return whether a variant that differs from the baseline by this much is better."""
        return difference < 0 if self.lower_is_better else difference > 0


METRICS: dict[str, Metric] = {
    "perplexity": Metric("perplexity", lower_is_better=True),
    "accuracy": Metric("accuracy", lower_is_better=False),
    "loss": Metric("loss", lower_is_better=True),
    "score": Metric("score", lower_is_better=False),
}


def get_metric(name: str) -> Metric:
    """Return the definition of a metric: its direction and its unit. Raise ScoresError if the name is unknown."""
    if name not in METRICS:
        suggestion = suggest(name, METRICS)
        hint = f"; did you mean {suggestion!r}?" if suggestion else ""
        raise ScoresError(f"unknown metric {name!r}; allowed: {', '.join(get_args(MetricName))}{hint}")
    return METRICS[name]
