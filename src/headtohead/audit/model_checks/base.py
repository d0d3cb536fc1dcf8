"""Base class for checks that compare one model's passes.

`measure` is applied both to trained models, by `run`, and to small models built around one part, by the conformance
suite, which compares the outcome with the violations that the part declares.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from headtohead.audit.probe import ModelProbe, PaddingMask
from headtohead.audit.result import CheckResult, build_inconclusive, build_not_applicable
from headtohead.audit.tolerance import Difference, select_worst

Measurement = Difference | str
"""the difference of one comparison, or a description of a comparison that the model does not support"""


class Failure(NamedTuple):
    """How a failed check is worded."""

    observation: str
    interpretation: str
    reason: str


class ModelCheck(ABC):
    """A property of a model: its outputs must not depend on something irrelevant."""

    name: ClassVar[str]
    is_blocking: ClassVar[bool] = False
    has_training_mode: ClassVar[bool] = False
    """whether the property is measured in training mode as well; a failure there is not blocking"""
    requires_determinism: ClassVar[bool] = False
    """whether a difference is inconclusive for a model that draws random numbers"""
    success: ClassVar[tuple[str, str]]
    """observation and interpretation"""
    failure: ClassVar[Failure]
    training_failure: ClassVar[Failure]

    def find_inapplicable_reason(self, probe: ModelProbe) -> str:
        """Return why the property cannot be measured on this model, or an empty string if it can."""
        return ""

    @abstractmethod
    def describe_procedure(self, probe: ModelProbe) -> str: ...

    @abstractmethod
    def measure(self, probe: ModelProbe, *, training: bool = False) -> Iterator[Measurement]:
        """Yield one measurement per comparison, in evaluation or training mode."""

    def describe_violation(self, differences: list[Difference]) -> str:
        return f"{self.failure.observation}: {select_worst(differences)}"

    def run(self, probe: ModelProbe) -> CheckResult:
        """Return the result of the check for one model."""
        if reason := self.find_inapplicable_reason(probe):
            return build_not_applicable(self.name, reason)
        if probe.nondeterminism == "hidden":
            return build_inconclusive(self.name)
        measurements = list(self.measure(probe))
        differences = [measurement for measurement in measurements if isinstance(measurement, Difference)]
        unsupported = [measurement for measurement in measurements if isinstance(measurement, str)]
        if not differences:
            return build_not_applicable(self.name, f"the model does not support {', '.join(unsupported)}")
        modes, training_difference = "evaluation mode", None
        if self.has_training_mode and probe.can_check_training_mode:
            modes = "evaluation and training mode"
            training_difference = select_worst(
                measurement for measurement in self.measure(probe, training=True) if isinstance(measurement, Difference)
            )
        procedure = f"{self.describe_procedure(probe)}; {modes}, {probe.setup_description}"
        if unsupported:
            procedure += f"; not supported by the model: {', '.join(unsupported)}"
        worst = select_worst(differences)
        if not worst.is_within_tolerance:
            if self.requires_determinism and probe.nondeterminism == "drawn":
                return build_inconclusive(self.name)
            _, interpretation, reason = self.failure
            observation = self.describe_violation(differences)
            return CheckResult(self.name, False, procedure, observation, interpretation, self.is_blocking, reason)
        if training_difference is not None and not training_difference.is_within_tolerance:
            observation, interpretation, reason = self.training_failure
            observation = f"{observation}: {training_difference}"
            return CheckResult(self.name, False, procedure, observation, interpretation, failure_reason=reason)
        observation, interpretation = self.success
        return CheckResult(self.name, True, procedure, f"{observation}: {worst}", interpretation, self.is_blocking)


def build_mixed_padding_mask(input_ids: Tensor) -> PaddingMask:
    """Return a mask (batch, length) whose rows cycle through no, left, right and middle padding."""
    length = input_ids.shape[1]
    mask = torch.ones_like(input_ids, dtype=torch.bool)
    mask[1::4, : (length + 1) // 3] = False
    mask[2::4, -min(length - 1, length // 2 + 1) :] = False
    mask[3::4, length // 4 : length // 4 + length // 2] = False
    return mask


def select_positions(logits: Tensor, position_mask: Tensor | None) -> Tensor:
    """Return the logits at the marked positions, or all logits if there is no mask."""
    return logits if position_mask is None else logits[position_mask]
