"""Registry of parts by slot and name: built-in parts, user files and entry points. Validates their options."""

import ast
import hashlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

from headtohead.config.base import ComponentConfig
from headtohead.config.validation.error_messages import suggest_key
from headtohead.errors import PartError, ValidationIssue, format_suggestion, suggest
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
        if slot not in SLOTS:
            hint = format_suggestion(slot, SLOTS)
            raise PartError(f"{part_class.__name__}: unknown slot {slot!r}{hint} (slots: {', '.join(SLOTS)})")
        taken = _registry.get((slot, name))
        if taken is not None and (old := _get_source_file(taken)) != (new := _get_source_file(part_class)):
            raise PartError(f"{slot} {name!r} is defined twice: in {old} and in {new}")
        part_class.slot, part_class.kind = slot, name
        _registry[slot, name] = part_class
        return part_class

    return register


def _get_source_file(part_class: type) -> str:
    module = sys.modules.get(part_class.__module__)
    return str(getattr(module, "__file__", None) or part_class.__module__)


def get_part_class(slot: str, name: str) -> type[Part]:
    load_builtin_parts()
    if (slot, name) not in _registry:
        names = list_part_names(slot)
        raise PartError(f"unknown {slot} {name!r}{format_suggestion(name, names)} (available: {', '.join(names)})")
    return _registry[slot, name]


def list_part_names(slot: str) -> tuple[str, ...]:
    load_builtin_parts()
    return tuple(sorted(name for known, name in _registry if known == slot))


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
    """Return the module name of a file of parts: a function of its content, so that all processes use the same."""
    return f"headtohead_own_{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def load_plugin(path: str | Path, base_folder: Path = Path(".")) -> Path:
    """Import a user's file of parts; return its path. If the import fails, nothing stays registered."""
    load_builtin_parts()
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise PartError(f"{path}: file of parts not found")
    name = compute_module_name(file)
    if name in sys.modules:
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


def get_options(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the options of a part or other factory: its keyword-only arguments."""
    parameters = inspect.signature(factory).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def get_option_types(factory: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the options; empty if they cannot be resolved, as for imports under TYPE_CHECKING."""
    try:
        return typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    except NameError:
        return {}


def build_part(slot: str, part_config: ComponentConfig, sizes: ModelSizes, *arguments: Any) -> Any:
    """Return an instance of the configured part. `arguments` follow `sizes` in its constructor."""
    part_class = get_part_class(slot, part_config.kind)
    issues = validate_options(part_class, part_config.options, slot)
    if issues:
        raise PartError("\n".join(map(str, issues)))
    return part_class(sizes, *arguments, **part_config.options)


def validate_part_config(slot: str, value: Any, location: str) -> list[ValidationIssue]:
    """Return the issues of a part in an experiment file: an unknown name, or options that do not match."""
    try:
        config = ComponentConfig.model_validate(value)
    except ValueError:
        is_table = isinstance(value, dict)
        return [ValidationIssue(location, "a table of options needs kind = the part's name")] if is_table else []
    allowed = list_part_names(slot)
    if config.kind not in allowed:
        return [ValidationIssue(location, f"unknown {slot} {config.kind!r}", allowed, suggest(config.kind, allowed))]
    return validate_options(get_part_class(slot, config.kind), config.options, location)


def validate_options(
    factory: Callable[..., Any], option_values: dict[str, Any], location: str
) -> list[ValidationIssue]:
    """Return the issues of options checked against the keyword-only arguments of a class or function."""
    options, hints = get_options(factory), get_option_types(factory)
    kind = getattr(factory, "kind", factory.__name__)
    issues = []
    for name, value in option_values.items():
        if name not in options:
            allowed = tuple(options)
            message = f"{kind} has no option {name!r}" + ("" if allowed else "; it has no options")
            issues.append(ValidationIssue(f"{location}.{name}", message, allowed, suggest_key(name, allowed)))
        elif not _matches_type_hint(value, hints.get(name, Any)):
            issues.append(
                ValidationIssue(f"{location}.{name}", f"must be {_format_type_hint(hints[name])}, not {value!r}")
            )
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in option_values:
            issues.append(
                ValidationIssue(
                    location, f"{kind} requires the option {name!r} ({_format_type_hint(hints.get(name, Any))})"
                )
            )
    return issues


def _matches_type_hint(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Literal:
        return value in inner
    if origin in (typing.Union, types.UnionType):
        return any(_matches_type_hint(value, alternative) for alternative in inner)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(_matches_type_hint(item, inner[0]) for item in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _format_type_hint(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_format_type_hint(alternative) for alternative in inner if alternative is not type(None))
    if origin in (tuple, list):
        return f"a list of which each item is {_format_type_hint(inner[0])}"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, str(hint))


def get_summary(factory: Callable[..., Any]) -> str:
    """Return the first line of the docstring of a part or other factory."""
    return (inspect.getdoc(factory) or "").partition("\n")[0]


def format_options(factory: Callable[..., Any]) -> str:
    """Return the options of a part or other factory with their defaults, in TOML syntax."""
    return ", ".join(
        f"{name} = {_format_toml_value(p.default)}" if p.default is not p.empty else f"{name} (required)"
        for name, p in get_options(factory).items()
    )


def _format_toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else (f'"{value}"' if isinstance(value, str) else str(value))
