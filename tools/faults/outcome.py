"""The outcome of a fault: what was done, what was observed, and what was lost or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FaultOutcome:
    """The outcome of one fault, injected one or more times."""

    fault: str
    """what was done"""
    observation: str
    """what happened"""
    times: int = 1
    kills: int = 0
    lost: tuple[str, ...] = ()
    """finished results, or steps before the last checkpoint, that no longer exist"""
    errors: tuple[str, ...] = ()
    """results that differ, damage that was not reported, processes that did not end"""
    skipped: str | None = None
    """why the fault could not be injected on this machine"""

    @property
    def is_ok(self) -> bool:
        return not self.lost and not self.errors

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> FaultOutcome:
        return cls(**{**row, "lost": tuple(row["lost"]), "errors": tuple(row["errors"])})


@dataclass(frozen=True)
class FaultSettings:
    """The arguments of every fault."""

    scratch: Path
    kills: int
    seed: int
    is_short: bool
    report: Callable[[str], None]
    """prints progress"""


Fault = Callable[[FaultSettings], Iterator[FaultOutcome]]
