"""Determinism: the same input must give the same output.

Random draws during evaluation are a flaw that does not withhold the verdict: they leak nothing, and the confidence
interval across seeds accounts for their noise. If the output changes even with the same RNG state, no other check is
conclusive and no score can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator

from headtohead.audit.model_checks.base import Failure, Measurement, ModelCheck
from headtohead.audit.probe import ModelProbe
from headtohead.audit.result import CheckResult
from headtohead.audit.tolerance import select_worst


class DeterminismCheck(ModelCheck):
    """Repeated passes over the same input agree."""

    name = "determinism"
    success = ("repeated passes agree", "Evaluating again gives the same score.")
    failure = Failure(
        "repeated passes differ",
        "The model draws random numbers during evaluation: each score is one of many possible ones. The interval over "
        "seeds contains that noise, so the verdict stands.",
        "nondeterministic",
    )

    def describe_procedure(self, probe: ModelProbe) -> str:
        return "repeated passes, from the same and from 3 other random states"

    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        return (probe.measure_repeat(draw_index=index, training=training) for index in range(4))

    def run(self, probe: ModelProbe) -> CheckResult:
        """Run the check; fail with a blocking result if passes differ even with the same RNG state."""
        if probe.nondeterminism != "hidden":
            return super().run(probe)
        worst = select_worst(probe.measure_repeat(draw_index=index) for index in range(4))
        return CheckResult(
            self.name,
            False,
            f"{self.describe_procedure(probe)}; evaluation mode, {probe.setup_description}",
            f"repeated passes differ even from the same random state: {worst}",
            "State outside the input changes the output (kept between passes, a clock, a separate random generator): "
            "no other check is conclusive, and no score can be trusted.",
            is_blocking=True,
            failure_reason=self.failure.reason,
        )
