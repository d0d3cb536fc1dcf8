"""The record of an audit: what was tried, what was found, what that means, and whether it takes the verdict away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class CheckResult:
    """One audit in plain words, with its numbers."""

    name: str
    passed: bool | None
    """None: it does not apply, or cannot be told"""
    procedure: str
    observation: str
    interpretation: str
    """for whoever reads the score"""
    is_blocking: bool = False
    """a failed audit that is serious takes the verdict away"""
    failure_reason: str = ""
    """what is wrong in a few words, as in "not comparable: reads the future"; empty unless it failed"""

    def to_dict(self) -> dict[str, object]:
        """Plain values, for findings.json."""
        return asdict(self)

    def __str__(self) -> str:
        head = {True: "passed", False: "FAILED", None: "not applied"}[self.passed]
        lines = [f"{head} {self.name}", self.procedure, self.observation, self.interpretation]
        return "\n  ".join(line for line in lines if line)


def build_not_applicable(check: str, reason: str) -> CheckResult:
    return CheckResult(check, None, "", reason, "")


def build_inconclusive(check: str) -> CheckResult:
    """For a model that cannot repeat an answer: any difference may be its own noise."""
    return build_not_applicable(check, "cannot be told: the same text gives another answer each time")


def format_blocking_reasons(results: Iterable[CheckResult]) -> str:
    """Why there can be no verdict ("reads the future"); empty when nothing serious failed."""
    return ", ".join(
        result.failure_reason or result.name for result in results if result.passed is False and result.is_blocking
    )
