"""Results of a benchmark: measurements, which may have a target, and tables; and the settings of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

MeasurementKind = Literal["times", "share", "seconds", "gigabytes", "nats", "commands"]


@dataclass(frozen=True)
class Target:
    """A minimum, or a maximum, for the result of a measurement."""

    value: float
    is_maximum: bool = False

    def is_met(self, result: float) -> bool:
        return result <= self.value if self.is_maximum else result >= self.value


@dataclass(frozen=True)
class Measurement:
    """Our value, a peer's value, and the result that is compared with the target: a ratio, a fraction or a number."""

    name: str
    ours: float
    unit: str
    peer_value: float | None = None
    peer: str = ""
    result: float | None = None
    kind: MeasurementKind = "times"
    target: Target | None = None
    cpu_time_ratio: float | None = None
    """the same ratio by CPU time, which is fairer on a busy machine"""

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None without a target."""
        return None if self.target is None or self.result is None else self.target.is_met(self.result)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "is_met": self.is_met}


@dataclass(frozen=True)
class Table:
    """Numbers without a target: where time is spent, what differs, what was checked."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    note: str = ""


def build_missing_peer_table(package: str) -> Table:
    """Return a table that says which peer was not measured."""
    reason = "not installed (pip install 'headtohead[bench]')"
    return Table("Not measured", ["peer", "reason"], [[package, reason]])


@dataclass(frozen=True)
class BenchmarkSettings:
    """How much to measure, on which corpus, and a folder for temporary files."""

    scratch: Path
    data: str
    """a corpus, as for `h2h run --data`"""
    num_cores: int
    is_short: bool = False
    requested_rounds: int | None = None

    def get_num_rounds(self, default: int) -> int:
        """Return how often each contestant runs."""
        return self.requested_rounds or (1 if self.is_short else default)


Measurements = Iterator[Measurement | Table]
Benchmark = Callable[[BenchmarkSettings], Measurements]


@dataclass
class BenchmarkResults:
    """The results of one benchmark and the environment that it ran in."""

    environment: dict[str, Any]
    measurements: list[Measurement] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def add(self, result: Measurement | Table) -> None:
        if isinstance(result, Measurement):
            self.measurements.append(result)
        else:
            self.tables.append(result)

    def to_dict(self) -> dict[str, Any]:
        measurements = [measurement.to_dict() for measurement in self.measurements]
        tables = [asdict(table) for table in self.tables]
        return {"environment": self.environment, "measurements": measurements, "tables": tables}

    @classmethod
    def from_dict(cls, raw: dict[str, Any]) -> BenchmarkResults:
        results = cls(raw["environment"])
        for row in raw["measurements"]:
            target = None if row["target"] is None else Target(**row["target"])
            fields = {name: value for name, value in row.items() if name not in ("is_met", "target")}
            results.add(Measurement(**fields, target=target))
        for row in raw["tables"]:
            results.add(Table(**row))
        return results
