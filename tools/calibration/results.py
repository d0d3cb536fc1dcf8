"""Results of the studies, cached as JSON lines so that an interrupted calibration continues.

A row is stored with the version of the rule that it depends on. Rows of different versions are computed again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from .rule_version import compute_verdict_version

Row = TypeVar("Row")


@dataclass(frozen=True)
class ResultStore:
    """Cached rows of all studies, in one file for each study.

    A row is up to date if it was stored with the same `version`, by default that of the verdict rule. With
    `accepts_stale`, rows of every version are used, the latest for each key.
    """

    folder: Path
    version: str = field(default_factory=compute_verdict_version)
    accepts_stale: bool = False

    def with_version(self, version: str) -> ResultStore:
        """Return the store of rows that depend on a different version."""
        return replace(self, version=version)

    def load(self, study: str) -> dict[str, dict[str, Any]]:
        """Return the rows of a study that are up to date, by key."""
        path = self.folder / f"{study}.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        rows = [json.loads(line) for line in lines]
        return {row["key"]: row["row"] for row in rows if self.accepts_stale or row["rule"] == self.version}

    def list_rows(self, study: str) -> list[dict[str, Any]]:
        """Return the rows of a study, which may still be running."""
        return list(self.load(study).values())

    def count_stale(self, study: str) -> tuple[int, int]:
        """Return the number of keys of a study without a row that is up to date, and of all keys."""
        current_rows, all_rows = (
            replace(self, accepts_stale=False).load(study),
            replace(self, accepts_stale=True).load(study),
        )
        return len(all_rows.keys() - current_rows.keys()), len(all_rows)

    def get(self, study: str, key: str, row_type: type[Row], compute: Callable[[], Row]) -> Row:
        """Return a cached row, or compute and store it."""
        cached_rows = _load_once(self, study)
        if key not in cached_rows:
            row = compute()
            cached_rows[key] = asdict(row)  # type: ignore[call-overload]
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"{study}.jsonl").open("a") as file:
                file.write(json.dumps({"key": key, "rule": self.version, "row": cached_rows[key]}) + "\n")
        return row_type(**cached_rows[key])


@cache
def _load_once(store: ResultStore, study: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a study; they are read once per process."""
    return store.load(study)
