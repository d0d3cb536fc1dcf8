"""What a fault leaves: one row for each thing that was done, with what was seen and what is missing or wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Seen:
    """One thing that was done to experiments."""

    what: str
    """what was done"""
    seen: str
    """what came of it, in words"""
    times: int = 1
    kills: int = 0
    lost: tuple[str, ...] = ()
    """finished results, or steps before the last checkpoint, that are not there any more"""
    wrong: tuple[str, ...] = ()
    """numbers that differ, damage that nobody named, processes that stayed"""
    skipped: str | None = None
    """why it could not be done on this machine"""

    @property
    def is_fine(self) -> bool:
        return not self.lost and not self.wrong

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def seen_of(row: dict[str, Any]) -> Seen:
    return Seen(**{**row, "lost": tuple(row["lost"]), "wrong": tuple(row["wrong"])})


@dataclass(frozen=True)
class How:
    """What every fault is given."""

    scratch: Path
    kills: int
    seed: int
    short: bool
    say: Callable[[str], None]


Fault = Callable[[How], Iterator[Seen]]
