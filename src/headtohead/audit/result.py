"""The record of an audit: what was tried, what was found, what that means, and whether it takes the verdict away."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Finding:
    """One audit in plain words, with its numbers."""

    name: str
    passed: bool | None
    """None: it does not apply, or cannot be told"""
    tried: str
    found: str
    meaning: str
    """for whoever reads the score"""
    serious: bool = False
    """a failed audit that is serious takes the verdict away"""
    reason: str = ""
    """what is wrong in a few words, as in "not comparable: reads the future"; empty unless it failed"""

    def as_row(self) -> dict[str, object]:
        """Plain values, for findings.json."""
        return asdict(self)

    def __str__(self) -> str:
        head = {True: "passed", False: "FAILED", None: "not applied"}[self.passed]
        lines = [f"{head} {self.name}", self.tried, self.found, self.meaning]
        return "\n  ".join(line for line in lines if line)


def does_not_apply(name: str, why: str) -> Finding:
    return Finding(name, None, "", why, "")


def cannot_be_told(name: str) -> Finding:
    """For a model that cannot repeat an answer: any difference may be its own noise."""
    return does_not_apply(name, "cannot be told: the same text gives another answer each time")


def not_comparable(findings: Iterable[Finding]) -> str:
    """Why there can be no verdict ("reads the future"); empty when nothing serious failed."""
    return ", ".join(f.reason or f.name for f in findings if f.passed is False and f.serious)
