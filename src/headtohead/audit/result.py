"""The results of checks on models, data and parts, and the reasons for withholding a verdict that follow from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from pydantic import ConfigDict


@dataclass(frozen=True)
class CheckResult:
    """The result of checking one property of a model, a part or a corpus."""

    __pydantic_config__ = ConfigDict(strict=False)  # strict mode would reject objects read from JSON
    name: str
    passed: bool | None
    """None if the check does not apply or is inconclusive"""
    procedure: str
    observation: str
    interpretation: str = ""
    """consequence for the scores"""
    is_blocking: bool = False
    """whether a failure withholds the verdict"""
    failure_reason: str = ""
    """short form for the verdict, as in "not comparable: reads the future"; empty unless the check failed"""

    def to_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        status = {True: "passed", False: "FAILED", None: "not applicable"}[self.passed]
        lines = [f"{status} {self.name}", self.procedure, self.observation, self.interpretation]
        return "\n  ".join(line for line in lines if line)


@dataclass(frozen=True)
class PartCheckResult(CheckResult):
    """The result of checking one property of a part within a fixture model."""

    part: str = ""
    """slot, name and options"""
    setup: str = ""
    """decoder or encoder, and other properties of the fixture model"""

    def __str__(self) -> str:
        status = "passed" if self.passed else "FAILED"
        lines = [f"{status} {self.name}: {self.part} ({self.setup})"]
        lines += [f"  procedure: {self.procedure}"] if self.procedure else []
        return "\n".join([*lines, f"  observation: {self.observation}"])


def build_inapplicable_result(check_name: str, reason: str) -> CheckResult:
    """Return the result of a check that does not apply to this model or corpus."""
    return CheckResult(check_name, None, "", reason)


def build_inconclusive_result(check_name: str) -> CheckResult:
    """Return the result for a nondeterministic model, whose noise cannot be distinguished from a violation."""
    return build_inapplicable_result(check_name, "inconclusive: repeated passes over the same input differ")


def list_blocking_reasons(results: Iterable[CheckResult]) -> list[str]:
    """Return the reasons for withholding the verdict, such as ["reads the future"]; empty if there are none."""
    blocking = (result for result in results if result.passed is False and result.is_blocking)
    return list(dict.fromkeys(result.failure_reason or result.name for result in blocking))


def format_blocking_reasons(results: Iterable[CheckResult]) -> str:
    """Return the blocking reasons as a single string."""
    return ", ".join(list_blocking_reasons(results))
