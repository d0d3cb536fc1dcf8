"""The catalog of published ideas: which part implements each, and how long that part is.

Read from docs/examples/catalog.toml. `tools.reference` prints it in the documentation.
"""

from __future__ import annotations

import ast
import inspect
import statistics
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROJECT_ROOT = Path(__file__).parents[1]
EXAMPLE_PARTS_FOLDER = PROJECT_ROOT / "docs" / "examples" / "parts"
CATALOG_FILE = PROJECT_ROOT / "docs" / "examples" / "catalog.toml"


@dataclass(frozen=True)
class Idea:
    """A published idea as settings of an experiment file."""

    name: str
    paper: str
    settings: dict[str, Any]
    """Values by key, as in {"model.position": "rope"}."""
    test: str
    """Test of the idea's formula."""
    part: tuple[str, str] | None = None
    """Slot and name of the part that implements the idea; None for settings of several parts."""

    @property
    def slot(self) -> str | None:
        """Return the slot of the idea's part or only setting; None for several or other settings."""
        from headtohead.nn.parts import registry

        slots = {key.split(".")[1] for key in self.settings} if self.part is None else {self.part[0]}
        return next(iter(slots)) if len(slots) == 1 and slots <= set(registry.SLOTS) else None

    @property
    def example_file(self) -> Path | None:
        """Return the file of the documentation that defines the part; None for a built-in part."""
        if self.part is None:
            return None
        return next((file for file in EXAMPLE_PARTS_FOLDER.glob("*.py") if find_part(file, *self.part)), None)

    @property
    def source_file_and_length(self) -> tuple[Path, int] | None:
        """Return the file of the part and its number of lines; None without a part."""
        if self.part is None:
            return None
        if self.example_file is not None:
            return self.example_file, count_file_lines(self.example_file)
        from headtohead.nn.parts import registry

        file = Path(inspect.getfile(registry.get_part_class(*self.part)))
        node = find_part(file, *self.part)
        assert node is not None
        return file, len(_list_code_lines(file, [node]))


def load_ideas() -> list[Idea]:
    """Return the ideas of the catalog, in its order."""
    entries = tomllib.loads(CATALOG_FILE.read_text(encoding="utf-8"))["ideas"]
    return [
        Idea(
            name=entry["name"],
            paper=entry["paper"],
            settings={
                f"{table}.{key}": value for table, keys in entry["settings"].items() for key, value in keys.items()
            },
            test=entry["test"],
            part=tuple(entry["part"].split()) if "part" in entry else None,
        )
        for entry in entries
    ]


def find_part(file: Path, slot: str, name: str) -> ast.ClassDef | None:
    """Return the class that a file registers for a slot and name."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and f"register_part('{slot}', '{name}')" in map(
            ast.unparse, node.decorator_list
        ):
            return node
    return None


def count_file_lines(file: Path) -> int:
    """Return the lines of code of a file, without imports, docstrings, comments and empty lines."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return len(_list_code_lines(file, [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]))


def _list_code_lines(file: Path, nodes: list[ast.stmt]) -> list[str]:
    """Return the lines of some statements, without docstrings, comments and empty lines."""
    lines, docstring_lines = file.read_text(encoding="utf-8").splitlines(), set(_find_docstring_lines(file))
    line_numbers = {
        number
        for node in nodes
        for number in range(
            min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))]),
            (node.end_lineno or node.lineno) + 1,
        )
    }
    code_lines = [lines[number - 1].strip() for number in sorted(line_numbers - docstring_lines)]
    return [line for line in code_lines if line and not line.startswith("#")]


def _find_docstring_lines(file: Path) -> Iterator[int]:
    """Yield the line numbers of all docstrings of a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            yield from range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1)


def compute_median_lines() -> float:
    """Return the median length of the one-file parts of the documentation, in lines of code."""
    return statistics.median(count_file_lines(file) for file in EXAMPLE_PARTS_FOLDER.glob("*.py"))
