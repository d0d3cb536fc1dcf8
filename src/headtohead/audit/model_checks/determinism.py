"""Determinism: the same input must give the same output.

Random draws during evaluation are a flaw that does not withhold the verdict: they leak nothing, and the confidence
interval across seeds accounts for their noise. If the output changes even with the same RNG state, no other check is
conclusive and no score can be trusted.
"""

from __future__ import annotations

from collections.abc import Iterator

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.model_checks.base import FailureWording, Measurement, ModelCheck, SuccessWording
from headtohead.audit.result import CheckResult
from headtohead.audit.tolerance import select_worst


class DeterminismCheck(ModelCheck):
    """Repeated passes over the same input agree."""

    name = "determinism"
    success = SuccessWording("repeated passes agree", "Evaluating again gives the same score.")
    failure = FailureWording(
        "repeated passes differ",
        "The model draws random numbers during evaluation: each score is one of many possible ones. The interval over "
        "seeds contains that noise, so the verdict stands.",
        "nondeterministic",
    )

    def describe_procedure(self, audited_model: AuditedModel) -> str:
        return "repeated passes, from the same and from 3 other random states"

    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        for draw_index in range(4):
            yield audited_model.measure_repeat_difference(draw_index=draw_index, training=training)

    def run(self, audited_model: AuditedModel) -> CheckResult:
        """Run the check; fail with a blocking result if passes differ even with the same RNG state."""
        if audited_model.nondeterminism != "hidden":
            return super().run(audited_model)
        worst = select_worst(audited_model.measure_repeat_difference(draw_index=draw_index) for draw_index in range(4))
        return CheckResult(
            self.name,
            False,
            f"{self.describe_procedure(audited_model)}; evaluation mode, {audited_model.setup_description}",
            f"repeated passes differ even from the same random state: {worst}",
            "State outside the input changes the output (kept between passes, a clock, a separate random generator): "
            "no other check is conclusive, and no score can be trusted.",
            is_blocking=True,
            failure_reason=self.failure.reason,
        )
