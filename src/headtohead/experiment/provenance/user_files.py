"""Find the user's files that a trial depends on, to record their digests and to copy the code into the run folder.

These are plugins, network files, the local modules that they import, and data files named in the code or its options.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path

from pydantic import JsonValue

from headtohead import safe_open
from headtohead.config.experiment import Experiment, Trial
from headtohead.config.overlays import flatten_settings

ENVIRONMENT_OBJECTS = ("environ", "os.environ")
ENVIRONMENT_FUNCTIONS = ("getenv", "os.getenv", "environ.get", "os.environ.get")
MACHINE_VARIABLES = re.compile(
    "(CUDA|CUBLAS|NCCL|TORCH|PYTORCH|PYTHON|OMP|MKL|HF|SLURM|RAY|WANDB|XDG|LC|MASTER)_.*|(LOCAL_)?RANK|WORLD_SIZE|"
    "HOME|USER|PATH|PWD|LANG|TMPDIR|PYTHONPATH|TOKENIZERS_PARALLELISM"
)
"""environment variables that describe the machine or process, and differ between the workers of an experiment"""
PACKAGE_NAME = __name__.partition(".")[0]
MAX_FILE_NAME_BYTES = 255


def list_entry_files(settings: Trial | Experiment) -> list[Path]:
    """Return the code files named in an experiment's settings, including those in variants and search spaces."""
    return [Path(file) for file in dict.fromkeys(_iter_code_file_settings(settings.model_dump(mode="json")))]


def _iter_code_file_settings(settings: JsonValue) -> Iterator[str]:
    """Yield the files that `plugins` and `module` name, at any depth of the settings. Search spaces have lists."""
    if isinstance(settings, list):
        for item in settings:
            yield from _iter_code_file_settings(item)
    if not isinstance(settings, dict):
        return
    for dotted_name, value in settings.items():
        setting = dotted_name.rpartition(".")[2]
        strings = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]
        if setting == "plugins":
            yield from strings
        elif setting == "module":
            yield from (module.rpartition(":")[0] for module in strings)
        yield from _iter_code_file_settings(value)


def list_code_files(entry_files: Sequence[Path]) -> dict[str, Path]:
    """Return the user's code files and all local modules that they import, keyed by name.

    The name is the path relative to the folder in which the module was found: `helper.py`, `layers/norm.py`. Imports
    are read from the source. Modules are looked up next to the file, in the working directory and in PYTHONPATH;
    installed packages are not included.
    """
    code_files: dict[str, Path] = {}
    for entry_file in entry_files:
        search_folders = [
            entry_file.parent,
            Path.cwd(),
            *map(Path, filter(None, os.getenv("PYTHONPATH", "").split(":"))),
        ]
        pending_files = [(entry_file.name, entry_file)]
        while pending_files:
            name, file = pending_files.pop()
            if file in code_files.values() or not file.is_file():
                continue
            while name in code_files:  # files with the same name in two folders
                name = f"other/{name}"
            code_files[name] = file
            pending_files += _find_local_imports(file, Path(name).parent.parts, search_folders)
    return code_files


def _find_local_imports(
    file: Path, package: tuple[str, ...], search_folders: Sequence[Path]
) -> Iterator[tuple[str, Path]]:
    """Yield the name and path of each of the user's files that a code file imports, packages included."""
    for module_parts in _list_imported_modules(file, package):
        for depth in range(1, len(module_parts) + 1):
            stem = "/".join(module_parts[:depth])
            candidates = ((f"{stem}{end}", folder) for folder in search_folders for end in (".py", "/__init__.py"))
            yield from [(name, folder / name) for name, folder in candidates if (folder / name).is_file()][:1]


def _list_imported_modules(file: Path, package: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the modules that a code file imports, as tuples of name parts; an empty list if it cannot be parsed."""
    modules: list[tuple[str, ...]] = []
    for node in _walk_code(file):
        if isinstance(node, ast.Import):
            modules += [tuple(alias.name.split(".")) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module_parts = (*base, *(node.module.split(".") if node.module else ()))
            modules += [(*module_parts, alias.name) for alias in node.names]  # the name may be a module
    return [module_parts for module_parts in modules if module_parts[0] != PACKAGE_NAME]


def find_code_files(settings: Trial | Experiment) -> dict[str, Path]:
    """Return {name: path} of all user code files that trials with the given settings execute."""
    return list_code_files(list_entry_files(settings))


def find_data_files(trial: Trial) -> dict[str, Path]:
    """Return {name: path} of the data files that a trial's user code names in string literals.

    A string in the code or in the options of the model is resolved relative to the code file and to the working
    directory. Computed names are not found.
    """
    data_files: dict[str, Path] = {}
    code_files = find_code_files(trial)
    for code_file in code_files.values():
        for name in _list_path_literals(code_file):
            data_files |= _find_file(name, (code_file.parent, Path.cwd()))
    model_settings = trial.model.model_dump(mode="json") if code_files else {}
    for option in flatten_settings(model_settings).values():
        if isinstance(option, str):
            data_files |= _find_file(option, (Path.cwd(),))
    return {name: file for name, file in data_files.items() if file.suffix != ".py"}


def find_environment_variables(trial: Trial) -> list[str]:
    """Return the names of the environment variables that a trial's user code reads, if they are string literals."""
    names = {name for code_file in find_code_files(trial).values() for name in _list_environment_variables(code_file)}
    return sorted(name for name in names if not MACHINE_VARIABLES.fullmatch(name))


def _list_environment_variables(code_file: Path) -> list[str]:
    """Return the environment variables that a user's file reads, such as SCALE in `os.environ.get("SCALE")`."""
    names = []
    for node in _walk_code(code_file):
        keys: list[ast.expr] = []
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) in ENVIRONMENT_OBJECTS:
            keys = [node.slice]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ENVIRONMENT_FUNCTIONS:
            keys = node.args[:1]
        names += [key.value for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return names


def _walk_code(code_file: Path) -> Iterator[ast.AST]:
    """Yield every node of the syntax tree of a user's file; none if it cannot be parsed."""
    try:
        yield from ast.walk(ast.parse(safe_open.read_file(code_file, follow_link=True)))
    except (SyntaxError, ValueError):
        return


def _find_file(name: str, folders: Sequence[Path]) -> dict[str, Path]:
    """Return {name: path} of a user's file in the first folder that contains it, or an empty dict."""
    if not 0 < len(os.fsencode(name)) <= MAX_FILE_NAME_BYTES or "\0" in name:
        return {}
    file = next((folder / name for folder in folders if (folder / name).is_file()), None)
    return {} if file is None else {name: file}


def _list_path_literals(code_file: Path) -> list[str]:
    """Return the string literals in a user's code file, any of which may name a data file.

    Literals joined by `/` or os.path.join are returned as one.
    """
    return [path for node in _walk_code(code_file) if (path := _extract_literal_path(node))]


def _extract_literal_path(node: ast.AST) -> str:
    """Return the literal end of a path expression in user code, such as "data/table.json", or an empty string."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        operands: list[ast.expr] = [node.left, node.right]
    elif isinstance(node, ast.Call):  # such as os.path.join("data", "table.json")
        operands = node.args
    else:
        return ""
    trailing_literals = list(takewhile(bool, map(_extract_literal_path, reversed(operands))))
    return "/".join(reversed(trailing_literals))
