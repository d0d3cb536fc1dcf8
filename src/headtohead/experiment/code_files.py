"""The Python files that a trial executes: its plugins, its network file, and the local modules they import."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import JsonValue

from headtohead import safe_open
from headtohead.config.experiment import Experiment, Trial

PACKAGE = __name__.partition(".")[0]


def list_entry_files(settings: Trial | Experiment) -> list[Path]:
    """Return the code files named in the settings, including those in variants and search spaces."""
    return [Path(file) for file in dict.fromkeys(_iterate_named_files(settings.model_dump(mode="json")))]


def _iterate_named_files(value: JsonValue) -> Iterator[str]:
    """Yield the files named by `plugins` and `module`, at any depth. Search space values are lists."""
    if isinstance(value, list):
        for item in value:
            yield from _iterate_named_files(item)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        name = key.rpartition(".")[2]
        texts = [text for text in (item if isinstance(item, list) else [item]) if isinstance(text, str)]
        if name == "plugins":
            yield from texts
        elif name == "module":
            yield from (text.rpartition(":")[0] for text in texts)
        yield from _iterate_named_files(item)


def list_code_files(entry_files: Sequence[Path]) -> dict[str, Path]:
    """Return the given files and all local modules they import, keyed by name.

    The name is the path relative to the folder in which the module was found: `helper.py`, `layers/norm.py`. Imports
    are read from the source. Modules are looked up next to the file, in the working directory and in PYTHONPATH;
    installed packages are not included.
    """
    files: dict[str, Path] = {}
    for entry_file in entry_files:
        folders = [entry_file.parent, Path.cwd(), *map(Path, filter(None, os.getenv("PYTHONPATH", "").split(":")))]
        pending = [(entry_file.name, entry_file)]
        while pending:
            name, file = pending.pop()
            if file in files.values() or not file.is_file():
                continue
            while name in files:  # files with the same name in two folders
                name = f"other/{name}"
            files[name] = file
            pending += _find_local_imports(file, Path(name).parent.parts, folders)
    return files


def _find_local_imports(file: Path, package: tuple[str, ...], folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each local module that a file imports, and of the packages that contain it."""
    for parts in _list_imported_modules(file, package):
        for length in range(1, len(parts) + 1):
            stem = "/".join(parts[:length])
            candidates = ((f"{stem}{end}", folder) for folder in folders for end in (".py", "/__init__.py"))
            yield from [(name, folder / name) for name, folder in candidates if (folder / name).is_file()][:1]


def _list_imported_modules(file: Path, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the imported modules as tuples of name parts, or an empty list if the file cannot be parsed."""
    try:
        tree = ast.parse(safe_open.read_file(file, follow_link=True))
    except (SyntaxError, ValueError):
        return []
    modules: list[tuple[str, ...]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            parts = (*base, *(node.module.split(".") if node.module else ()))
            modules += [(*parts, alias.name) for alias in node.names]  # the name may be a module
    return [parts for parts in modules if parts[0] != PACKAGE]


def find_code_files(settings: Trial | Experiment) -> dict[str, Path]:
    """Return all user code files that trials with these settings execute, keyed by name."""
    return list_code_files(list_entry_files(settings))
