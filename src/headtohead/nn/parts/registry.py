"""The parts by slot and name: built-ins, a user's own file, entry points; and whether options fit a signature."""

import ast
import hashlib
import importlib.util
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, TypeVar

from headtohead.config.base import ComponentConfig
from headtohead.errors import PartError, ValidationIssue, suggest
from headtohead.nn.parts.base import ModelSizes, Part

SLOTS = ("position", "pattern", "projection", "merge", "attention", "feedforward", "norm", "block", "pool")
ENTRY_POINT_GROUP = "headtohead.nn.parts"

_registry: dict[tuple[str, str], type[Part]] = {}
_user_part_files: dict[str, Path] = {}
_loaded_sources: set[str] = set()

PartClass = TypeVar("PartClass", bound=type[Part])


def register_part(slot: str, name: str) -> Callable[[PartClass], PartClass]:
    """Enter a class as the part `name` of `slot`."""

    def enter(made: PartClass) -> PartClass:
        if slot not in SLOTS:
            hint = suggest(slot, SLOTS)
            raise PartError(
                f"{made.__name__}: there is no slot {slot!r}"
                + (f", did you mean {hint!r}?" if hint else "")
                + f" (slots: {', '.join(SLOTS)})"
            )
        taken = _registry.get((slot, name))
        if taken is not None and _get_source_file(taken) != _get_source_file(made):
            raise PartError(
                f"{slot} {name!r} is taken: {_get_source_file(taken)} and {_get_source_file(made)} both define it"
            )
        made.slot, made.kind = slot, name
        _registry[slot, name] = made
        return made

    return enter


def _get_source_file(part_class: type) -> str:
    module = sys.modules.get(part_class.__module__)
    return str(getattr(module, "__file__", None) or part_class.__module__)


def get_part_class(slot: str, name: str) -> type[Part]:
    load_builtin_parts()
    if (slot, name) not in _registry:
        hint = suggest(name, list_part_names(slot))
        raise PartError(
            f"there is no {slot} {name!r}"
            + (f", did you mean {hint!r}?" if hint else "")
            + f" (there are: {', '.join(list_part_names(slot))})"
        )
    return _registry[slot, name]


def list_part_names(slot: str) -> tuple[str, ...]:
    load_builtin_parts()
    return tuple(sorted(name for known, name in _registry if known == slot))


def list_part_classes() -> list[type[Part]]:
    """All parts, by slot in the order of SLOTS, then by name."""
    return [get_part_class(slot, name) for slot in SLOTS for name in list_part_names(slot)]


def load_builtin_parts() -> None:
    """Import the built-ins and, once, what installed packages offer as entry points."""
    if "built-in" not in _loaded_sources:
        _loaded_sources.add("built-in")
        for slot in SLOTS:
            import_module(f".{slot}", __package__)
        for point in metadata.entry_points(group=ENTRY_POINT_GROUP):
            try:
                point.load()
            except Exception as error:
                raise PartError(f"parts of the installed {point.value}: {type(error).__name__}: {error}") from error


def compute_module_name(file: Path) -> str:
    """The name under which a file of parts is imported: it depends on the content only, so that every process of an
    experiment knows it by the same name."""
    return f"headtohead_own_{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def load_part_file(path: str | Path, base_folder: Path = Path(".")) -> Path:
    """Import a file of the user's own parts."""
    load_builtin_parts()
    file = (base_folder / path).resolve()
    if not file.is_file():
        raise PartError(f"{path}: no such file of parts")
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
    _user_part_files[name] = file
    return file


def get_user_part_files() -> tuple[Path, ...]:
    return tuple(_user_part_files.values())


def get_options(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a part, or of anything else that is chosen by name: its keyword-only arguments."""
    parameters = inspect.signature(factory).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def get_option_types(factory: Callable[..., Any]) -> dict[str, Any]:
    """The types of the options; none are known of a part whose file imports the names for type checkers only."""
    try:
        return typing.get_type_hints(factory.__init__ if isinstance(factory, type) else factory)  # type: ignore[misc]
    except NameError:
        return {}


def build_part(slot: str, part_config: ComponentConfig, sizes: ModelSizes, *more: Any) -> Any:
    """The part that was chosen, built for these sizes."""
    made = get_part_class(slot, part_config.kind)
    faults = validate_options(made, part_config.options, slot)
    if faults:
        raise PartError("\n".join(str(f) for f in faults))
    return made(sizes, *more, **part_config.options)


def validate_part_config(slot: str, value: Any, location: str) -> list[ValidationIssue]:
    """Does this value of an experiment file name a part, and do its options fit?"""
    try:
        choice = ComponentConfig.model_validate(value)
    except ValueError:
        return (
            []
            if not isinstance(value, dict)
            else [ValidationIssue(location, "a table of options needs kind = the part's name")]
        )
    if choice.kind not in list_part_names(slot):
        allowed = list_part_names(slot)
        return [
            ValidationIssue(location, f"there is no {slot} {choice.kind!r}", allowed, suggest(choice.kind, allowed))
        ]
    return validate_options(get_part_class(slot, choice.kind), choice.options, location)


def validate_options(
    factory: Callable[..., Any], option_values: dict[str, Any], location: str
) -> list[ValidationIssue]:
    """Hold given options against the keyword-only arguments of a class or function."""
    known = get_options(factory)
    hints = get_option_types(factory)
    kind = getattr(factory, "kind", factory.__name__)
    faults = []
    for name, value in option_values.items():
        if name not in known:
            allowed = tuple(known)
            message = f"{kind} has no option {name!r}" + ("" if allowed else "; it has none at all")
            faults.append(ValidationIssue(f"{location}.{name}", message, allowed, suggest(name, allowed)))
        elif not _matches_type_hint(value, hints.get(name, Any)):
            faults.append(
                ValidationIssue(f"{location}.{name}", f"must be {_format_type_hint(hints[name])}, not {value!r}")
            )
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in option_values:
            faults.append(
                ValidationIssue(
                    location, f"{kind} needs the option {name!r} ({_format_type_hint(hints.get(name, Any))})"
                )
            )
    return faults


def _matches_type_hint(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Literal:
        return value in inner
    if origin in (typing.Union, types.UnionType):
        return any(_matches_type_hint(value, one) for one in inner)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(_matches_type_hint(one, inner[0]) for one in value)
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
        return " or ".join(_format_type_hint(one) for one in inner if one is not type(None))
    if origin in (tuple, list):
        return f"a list, each {_format_type_hint(inner[0])}"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return plain.get(hint, str(hint))


def get_summary(part_class: type[Part]) -> str:
    """The first line of a part's docstring."""
    return (inspect.getdoc(part_class) or "").partition("\n")[0]


def format_options(part_class: type[Part]) -> str:
    """The options with their defaults, as a user writes them."""
    shown: Iterable[str] = (
        f"{name} = {_format_toml_value(p.default)}" if p.default is not p.empty else f"{name} (needed)"
        for name, p in get_options(part_class).items()
    )
    return ", ".join(shown)


def _format_toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else (f'"{value}"' if isinstance(value, str) else str(value))
