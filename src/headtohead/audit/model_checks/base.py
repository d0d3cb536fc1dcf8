"""Base class for checks that compare passes of one model.

`measure_differences` is applied both to trained models, by `run`, and to small models built around one part, by the
conformance suite, which compares the outcome with the violations that the part declares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from torch import Tensor

from headtohead.audit.audited_model import AuditedModel
from headtohead.audit.result import CheckResult, build_inapplicable_result, build_inconclusive_result
from headtohead.audit.tolerance import Difference, select_worst

Measurement = Difference | str
"""the difference of one comparison, or a description of a comparison that the model does not support"""


class SuccessWording(NamedTuple):
    """How a passed check is worded."""

    observation: str
    interpretation: str


class FailureWording(NamedTuple):
    """How a failed check is worded."""

    observation: str
    interpretation: str
    reason: str
    """short form for the verdict, such as 'reads the future'"""


class ModelCheck(ABC):
    """A property of a model: its outputs must not depend on something irrelevant."""

    name: ClassVar[str]
    is_blocking: ClassVar[bool] = False
    has_training_mode: ClassVar[bool] = False
    """whether the property is measured in training mode as well; a failure there is not blocking"""
    requires_determinism: ClassVar[bool] = False
    """whether a difference is inconclusive for a model that draws random numbers"""
    success: ClassVar[SuccessWording]
    failure: ClassVar[FailureWording]
    training_failure: ClassVar[FailureWording]
    """of a property that is violated in training mode only"""

    def find_inapplicable_reason(self, audited_model: AuditedModel) -> str:
        """Return the reason why the property cannot be measured on this model, or an empty string if it can."""
        return ""

    @abstractmethod
    def describe_procedure(self, audited_model: AuditedModel) -> str:
        """Return a phrase on the passes that are compared."""

    @abstractmethod
    def measure_differences(self, audited_model: AuditedModel, *, training: bool = False) -> Iterator[Measurement]:
        """Yield one measurement per comparison of passes, in evaluation or training mode."""

    def describe_violation(self, differences: list[Difference]) -> str:
        """Return the observation of a failed check, with the worst difference."""
        return f"{self.failure.observation}: {select_worst(differences)}"

    def run(self, audited_model: AuditedModel) -> CheckResult:
        """Return the result of the check for a trained model: compare its passes, and judge the largest difference."""
        if reason := self.find_inapplicable_reason(audited_model):
            return build_inapplicable_result(self.name, reason)
        if audited_model.nondeterminism == "hidden":
            return build_inconclusive_result(self.name)
        measurements = list(self.measure_differences(audited_model))
        differences = [measurement for measurement in measurements if isinstance(measurement, Difference)]
        unsupported_inputs = [measurement for measurement in measurements if isinstance(measurement, str)]
        if not differences:
            return build_inapplicable_result(self.name, f"the model does not support {', '.join(unsupported_inputs)}")
        modes, training_difference = "evaluation mode", None
        if self.has_training_mode and audited_model.can_check_training_mode:
            modes = "evaluation and training mode"
            training_difference = select_worst(
                measurement
                for measurement in self.measure_differences(audited_model, training=True)
                if isinstance(measurement, Difference)
            )
        procedure = f"{self.describe_procedure(audited_model)}; {modes}, {audited_model.setup_description}"
        if unsupported_inputs:
            procedure += f"; not supported by the model: {', '.join(unsupported_inputs)}"
        worst = select_worst(differences)
        if not worst.is_within_tolerance:
            if self.requires_determinism and audited_model.nondeterminism == "drawn":
                return build_inconclusive_result(self.name)
            _, interpretation, reason = self.failure
            observation = self.describe_violation(differences)
            return CheckResult(self.name, False, procedure, observation, interpretation, self.is_blocking, reason)
        if training_difference is not None and not training_difference.is_within_tolerance:
            observation, interpretation, reason = self.training_failure
            observation = f"{observation}: {training_difference}"
            return CheckResult(self.name, False, procedure, observation, interpretation, failure_reason=reason)
        observation, interpretation = self.success
        return CheckResult(self.name, True, procedure, f"{observation}: {worst}", interpretation, self.is_blocking)


def select_positions(logits: Tensor, position_mask: Tensor | None) -> Tensor:
    """Return the logits (batch, length, classes) at the marked positions (batch, length), or all without a mask."""
    return logits if position_mask is None else logits[position_mask]
