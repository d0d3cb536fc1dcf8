"""The single-file example parts pass the conformance suite, use public names only, and are short."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

from headtohead.nn.parts import registry
from headtohead.testing import check_part_file

FOLDER = Path(__file__).parents[3] / "docs" / "examples" / "parts"
FILES = sorted(FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))


def count_lines(file: Path) -> int:
    """Count lines of code, excluding imports, docstrings and empty lines."""
    tree = ast.parse(file.read_text())
    docstrings = [
        node.body[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node)
    ]
    skipped = {
        line
        for node in [*docstrings, *(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))]
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines = file.read_text().splitlines()
    return sum(bool(line.strip()) and number not in skipped for number, line in enumerate(lines, start=1))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_example_passes_the_conformance_suite(file: Path) -> None:
    results = check_part_file(file)
    assert len(results) > 1
    assert [str(result) for result in results if not result.passed] == []


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_example_uses_public_names_only(file: Path) -> None:
    tree = ast.parse(file.read_text())
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {module for module in modules if module.startswith("headtohead")} == {"headtohead.parts"}
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    assert not [name for name in names if name.startswith("_") and not name.startswith("__")]


def test_examples_are_short() -> None:
    assert len(FILES) >= 18
    assert statistics.median(count_lines(file) for file in FILES) <= 15
    assert max(count_lines(file) for file in FILES) <= 25
