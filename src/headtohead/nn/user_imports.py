"""Import Python files of users, with the modules and packages next to them: networks, parts and other plugins."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.abc import SourceLoader
from pathlib import Path
from types import ModuleType

from torch import nn

from headtohead.errors import ModelError, format_suggestion

_imported_module_names: set[str] = set()
"""Names in sys.modules of modules that were imported from users' folders."""


@contextmanager
def make_folder_importable(folder: Path) -> Iterator[None]:
    """Put a folder on the import path inside the context.

    Modules with equal names that were imported from a different folder are forgotten first: a run folder has copies of
    the files that an experiment names.
    """
    for module_name in list(_imported_module_names):
        if not _is_defined_in_folder(folder, module_name):
            sys.modules.pop(module_name, None)
            _imported_module_names.discard(module_name)
    modules_before = set(sys.modules)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        _imported_module_names.update(
            module_name
            for module_name in set(sys.modules) - modules_before
            if _is_defined_in_folder(folder, module_name)
        )


def _is_defined_in_folder(folder: Path, module_name: str) -> bool:
    """Return whether the imported module `module_name` comes from a file of this folder."""
    file = getattr(sys.modules.get(module_name), "__file__", None)
    module_path = folder.resolve().joinpath(*module_name.split("."))
    return file is not None and Path(file).resolve() in (module_path.with_suffix(".py"), module_path / "__init__.py")


def import_user_file(file: Path, module_name: str) -> ModuleType:
    """Import a file as the module `module_name`. It may import its neighbors, also relatively (`from .layers`)."""
    package = ModuleType(f"{module_name}_package_{hashlib.sha256(str(file.parent).encode()).hexdigest()[:12]}")
    package.__path__ = [str(file.parent)]
    sys.modules[package.__name__] = package
    spec = importlib.util.spec_from_file_location(f"{package.__name__}.{file.stem}", file)
    assert spec is not None and isinstance(spec.loader, SourceLoader)
    module = importlib.util.module_from_spec(spec)
    module.__name__ = module_name
    sys.modules[module_name] = module
    try:
        with make_folder_importable(file.parent):
            code = spec.loader.get_code(spec.name)
            assert code is not None
            exec(code, vars(module))  # noqa: S102  (as SourceLoader.exec_module does, under another name)
    except BaseException:
        sys.modules.pop(module_name, None)
        raise
    return module


def import_network_class(class_path: str, base_folder: Path) -> type[nn.Module]:
    """Import the nn.Module class of a custom model from a user's file.

    Args:
        class_path: File and class name of the network, as `file.py:Name` (`model.module`).
        base_folder: Folder that relative paths start from.

    Raises:
        ModelError: If the file or the class does not exist, or if importing the file fails.
    """
    path, _, class_name = class_path.rpartition(":")
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise ModelError(f"{class_path}: file {path} not found in {base_folder}")
    try:
        module = import_user_file(file, f"headtohead_own_module_{file.stem}")
    except Exception as error:
        raise ModelError(f"{class_path}: {type(error).__name__}: {error}") from error
    module_classes = {
        name: value for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)
    }
    if class_name not in module_classes:
        hint = format_suggestion(class_name, module_classes)
        available = ", ".join(module_classes) or "none"
        raise ModelError(f"{class_path}: {path} defines no nn.Module {class_name!r}{hint} (available: {available})")
    return module_classes[class_name]
