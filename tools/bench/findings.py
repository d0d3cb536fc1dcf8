"""What a family finds: figures that may have a bar to clear, and tables beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Kind = Literal["times", "share", "seconds", "gigabytes", "nats", "verbs"]


@dataclass(frozen=True)
class Bar:
    """What is promised of a figure."""

    wanted: float
    at_most: bool = False

    def holds(self, figure: float) -> bool:
        return figure <= self.wanted if self.at_most else figure >= self.wanted


@dataclass(frozen=True)
class Finding:
    """Ours, theirs, and the figure that counts: a ratio, a share, or a number of something."""

    what: str
    ours: float
    unit: str
    theirs: float | None = None
    other: str = ""
    figure: float | None = None
    kind: Kind = "times"
    bar: Bar | None = None
    on_processor: float | None = None
    """the same ratio by processor time: fairer where other work shares the machine"""

    @property
    def holds(self) -> bool | None:
        """Whether the bar is cleared; None where there is none."""
        return None if self.bar is None or self.figure is None else self.bar.holds(self.figure)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "holds": self.holds}


@dataclass(frozen=True)
class Table:
    """Figures without a bar: where the time goes, what differs, what was checked."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class How:
    """How much is measured, on what, and where there is room for files."""

    scratch: Path
    data: str
    """a corpus, as `h2h run --data` takes it"""
    cores: int
    short: bool = False
    asked_rounds: int | None = None

    def rounds(self, usual: int) -> int:
        """Turns of each contestant."""
        return self.asked_rounds or (1 if self.short else usual)


Found = Iterator[Finding | Table]
Family = Callable[[How], Found]


@dataclass
class Results:
    """All that one family found, and on what machine."""

    about: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def add(self, found: Finding | Table) -> None:
        if isinstance(found, Finding):
            self.findings.append(found)
        else:
            self.tables.append(found)

    def to_dict(self) -> dict[str, Any]:
        rows = [one.to_dict() for one in self.findings]
        return {"about": self.about, "findings": rows, "tables": [one.to_dict() for one in self.tables]}


def results_of(row: dict[str, Any]) -> Results:
    """Back from JSON."""
    made = Results(row["about"])
    for one in row["findings"]:
        bar = None if one["bar"] is None else Bar(**one["bar"])
        made.add(Finding(**{k: v for k, v in one.items() if k not in ("holds", "bar")}, bar=bar))
    for one in row["tables"]:
        made.add(Table(**one))
    return made
