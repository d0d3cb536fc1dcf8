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
    def from_dict(cls, raw: dict[str, Any]) -> FaultOutcome:
        return cls(**{**raw, "lost": tuple(raw["lost"]), "errors": tuple(raw["errors"])})


@dataclass(frozen=True)
class FaultSettings:
    """What every fault receives: how much to inject, and where to work."""

    scratch: Path
    """folder for temporary files"""
    num_kills: int
    seed: int
    """seed of random moments, victims and damages"""
    is_short: bool
    print_progress: Callable[[str], None]
    """prints progress"""


Fault = Callable[[FaultSettings], Iterator[FaultOutcome]]
