"""Results of the studies, cached as JSON lines so that an interrupted calibration continues.

A row is kept with a digest of the code that it depends on. Rows of other code are computed again.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from headtohead import verdict

Row = TypeVar("Row")
RULE_MODULES = ("statistics", "rule", "interim", "compare", "scores", "prediction", "lost_runs")
"""modules of the verdict package that decide verdicts"""


@cache
def compute_code_digest(modules: tuple[str, ...] = RULE_MODULES) -> str:
    """Return a digest of the code of these modules of the verdict package; docstrings and comments do not count."""
    folder = Path(verdict.__file__).parent
    codes = [_dump_code((folder / f"{name}.py").read_text()) for name in modules]
    return hashlib.sha256("".join(codes).encode()).hexdigest()[:12]


def _dump_code(source: str) -> str:
    """Return the syntax tree of a module without strings that stand alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [statement for statement in node.body if not _is_docstring(statement)]
    return ast.dump(tree)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


@dataclass(frozen=True)
class ResultStore:
    """Cached rows of all studies, in one file for each study.

    A row is up to date if `modules` of the verdict package are as they were. With `accepts_stale`, every row is, the
    latest of a key first.
    """

    folder: Path
    modules: tuple[str, ...] = RULE_MODULES
    accepts_stale: bool = False

    def with_modules(self, *modules: str) -> ResultStore:
        """Return a store whose rows depend on these modules only."""
        return replace(self, modules=modules)

    def load(self, study: str) -> dict[str, dict[str, Any]]:
        """Return the rows of a study that are up to date, by key."""
        path = self.folder / f"{study}.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        rows = [json.loads(line) for line in lines]
        digest = compute_code_digest(self.modules)
        return {row["key"]: row["row"] for row in rows if self.accepts_stale or row["rule"] == digest}

    def list_rows(self, study: str) -> list[dict[str, Any]]:
        """Return the rows of a study, which may still be running."""
        return list(self.load(study).values())

    def count_stale(self, study: str) -> tuple[int, int]:
        """Return the number of keys of a study without a row that is up to date, and of all keys."""
        fresh, known = replace(self, accepts_stale=False).load(study), replace(self, accepts_stale=True).load(study)
        return len(known.keys() - fresh.keys()), len(known)

    def get(self, study: str, key: str, row_type: type[Row], compute: Callable[[], Row]) -> Row:
        """Return a cached row, or compute and store it."""
        known = _load_once(self, study)
        if key not in known:
            row = compute()
            known[key] = asdict(row)  # type: ignore[call-overload]
            self.folder.mkdir(parents=True, exist_ok=True)
            digest = compute_code_digest(self.modules)
            with (self.folder / f"{study}.jsonl").open("a") as file:
                file.write(json.dumps({"key": key, "rule": digest, "row": known[key]}) + "\n")
        return row_type(**known[key])


@cache
def _load_once(store: ResultStore, study: str) -> dict[str, dict[str, Any]]:
    return store.load(study)
