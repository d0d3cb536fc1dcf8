"""Registry of parts by slot and name: built-in parts, user files and entry points."""

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

from headtohead.config.base import ComponentConfig
from headtohead.config.validation.component_options import validate_component, validate_options
from headtohead.errors import PartError, ValidationIssue, format_suggestion
from headtohead.nn.parts.base import ModelSizes, Part

SLOTS = ("position", "pattern", "projection", "merge", "attention", "feedforward", "norm", "block", "pool")
ENTRY_POINT_GROUP = "headtohead.nn.parts"

_registry: dict[tuple[str, str], type[Part]] = {}
_plugin_files: dict[str, Path] = {}
_loaded_sources: set[str] = set()

PartClass = TypeVar("PartClass", bound=type[Part])


def register_part(slot: str, name: str) -> Callable[[PartClass], PartClass]:
    """Return a class decorator that registers a part under `name` in `slot`."""

    def register(part_class: PartClass) -> PartClass:
        """Store the class in the registry; raise PartError if a different file defines the same name."""
        if slot not in SLOTS:
            hint = format_suggestion(slot, SLOTS)
            raise PartError(f"{part_class.__name__}: unknown slot {slot!r}{hint} (slots: {', '.join(SLOTS)})")
        existing = _registry.get((slot, name))
        if existing is not None and (existing_file := _get_source_file(existing)) != (
            new_file := _get_source_file(part_class)
        ):
            raise PartError(f"{slot} {name!r} is defined twice: in {existing_file} and in {new_file}")
        part_class.slot, part_class.kind = slot, name
        _registry[slot, name] = part_class
        return part_class

    return register


def _get_source_file(part_class: type) -> str:
    module = sys.modules.get(part_class.__module__)
    return str(getattr(module, "__file__", None) or part_class.__module__)


def get_part_class(slot: str, name: str) -> type[Part]:
    """Return the class registered for a slot and name; raise PartError with the closest name if there is none."""
    load_builtin_parts()
    if (slot, name) not in _registry:
        names = list_part_names(slot)
        raise PartError(f"unknown {slot} {name!r}{format_suggestion(name, names)} (available: {', '.join(names)})")
    return _registry[slot, name]


def list_part_names(slot: str) -> tuple[str, ...]:
    load_builtin_parts()
    return tuple(sorted(name for registered_slot, name in _registry if registered_slot == slot))


def list_part_classes() -> list[type[Part]]:
    """Return all part classes, sorted by slot (in the order of SLOTS), then by name."""
    return [get_part_class(slot, name) for slot in SLOTS for name in list_part_names(slot)]


def load_builtin_parts() -> None:
    """Import the built-in parts and the entry points of installed packages, once."""
    if "built-in" not in _loaded_sources:
        _loaded_sources.add("built-in")
        for slot in SLOTS:
            import_module(f".{slot}", __package__)
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                point.load()
            except Exception as error:
                raise PartError(f"entry point {point.value}: {type(error).__name__}: {error}") from error


def compute_module_name(file: Path) -> str:
    """Return the module name for a parts file, derived from its content so that all processes agree on it."""
    return f"headtohead_own_{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def load_plugin(path: str | Path, base_folder: Path = Path(".")) -> Path:
    """Import a user's parts file; return its path. If the import fails, nothing stays registered."""
    load_builtin_parts()
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise PartError(f"{path}: file of parts not found")
    name = compute_module_name(file)
    if name in sys.modules:  # a different version of the file may have been registered since
        _registry.update(
            ((part.slot, part.kind), part)
            for part in vars(sys.modules[name]).values()
            if isinstance(part, type) and issubclass(part, Part) and part.__module__ == name and part.kind
        )
        sys.modules[name].__file__ = str(file)  # a copy of the file may have been loaded first
        return file
    try:
        ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise PartError(f"{path}, line {error.lineno}: {error.msg}") from None
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    before = dict(_registry)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        _registry.clear()
        _registry.update(before)
        if isinstance(error, PartError):
            raise
        raise PartError(f"{path}: {type(error).__name__}: {error}") from error
    _plugin_files[name] = file
    return file


def get_plugin_files() -> tuple[Path, ...]:
    return tuple(_plugin_files.values())


def build_part(slot: str, part_config: ComponentConfig, sizes: ModelSizes, *arguments: Any) -> Any:
    """Return an instance of the configured part. `arguments` follow `sizes` in its constructor."""
    part_class = get_part_class(slot, part_config.kind)
    if issues := validate_options(part_class, part_config, slot):
        raise PartError("\n".join(map(str, issues)))
    return part_class(sizes, *arguments, **part_config.options)


def validate_part_config(slot: str, value: Any, location: str) -> list[ValidationIssue]:
    """Return the issues with a part in an experiment file: an unknown name, or invalid options."""
    part_classes = {name: get_part_class(slot, name) for name in list_part_names(slot)}
    return validate_component(value, part_classes, slot, location)
