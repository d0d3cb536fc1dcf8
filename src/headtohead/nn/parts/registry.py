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

from headtohead.config.base import Choice
from headtohead.errors import Fault, PartError, nearest
from headtohead.nn.parts.base import Part, Sizes

SLOTS = ("position", "pattern", "projection", "merge", "attention", "feedforward", "norm", "block", "pool")
GROUP = "headtohead.nn.parts"

_known: dict[tuple[str, str], type[Part]] = {}
_own_files: dict[str, Path] = {}
_loaded: set[str] = set()

P = TypeVar("P", bound=type[Part])


def part(slot: str, name: str) -> Callable[[P], P]:
    """Enter a class as the part `name` of `slot`."""

    def enter(made: P) -> P:
        if slot not in SLOTS:
            hint = nearest(slot, SLOTS)
            raise PartError(
                f"{made.__name__}: there is no slot {slot!r}"
                + (f", did you mean {hint!r}?" if hint else "")
                + f" (slots: {', '.join(SLOTS)})"
            )
        taken = _known.get((slot, name))
        if taken is not None and _home(taken) != _home(made):
            raise PartError(f"{slot} {name!r} is taken: {_home(taken)} and {_home(made)} both define it")
        made.slot, made.kind = slot, name
        _known[slot, name] = made
        return made

    return enter


def _home(made: type) -> str:
    module = sys.modules.get(made.__module__)
    return str(getattr(module, "__file__", None) or made.__module__)


def find(slot: str, name: str) -> type[Part]:
    load_built_in()
    if (slot, name) not in _known:
        hint = nearest(name, names(slot))
        raise PartError(
            f"there is no {slot} {name!r}"
            + (f", did you mean {hint!r}?" if hint else "")
            + f" (there are: {', '.join(names(slot))})"
        )
    return _known[slot, name]


def names(slot: str) -> tuple[str, ...]:
    load_built_in()
    return tuple(sorted(name for known, name in _known if known == slot))


def listing() -> list[type[Part]]:
    """All parts, by slot in the order of SLOTS, then by name."""
    return [find(slot, name) for slot in SLOTS for name in names(slot)]


def load_built_in() -> None:
    """Import the built-ins and, once, what installed packages offer as entry points."""
    if "built-in" not in _loaded:
        _loaded.add("built-in")
        for slot in SLOTS:
            import_module(f".{slot}", __package__)
        for point in metadata.entry_points(group=GROUP):
            try:
                point.load()
            except Exception as error:
                raise PartError(f"parts of the installed {point.value}: {type(error).__name__}: {error}") from error


def module_name(file: Path) -> str:
    """The name under which a file of parts is imported: it depends on the content only, so that every process of an
    experiment knows it by the same name."""
    return f"headtohead_own_{hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"


def use(path: str | Path, base: Path = Path(".")) -> Path:
    """Import a file of the user's own parts."""
    load_built_in()
    file = (base / path).resolve()
    if not file.is_file():
        raise PartError(f"{path}: no such file of parts")
    name = module_name(file)
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
    before = dict(_known)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        _known.clear()
        _known.update(before)
        if isinstance(error, PartError):
            raise
        raise PartError(f"{path}: {type(error).__name__}: {error}") from error
    _own_files[name] = file
    return file


def own_files() -> tuple[Path, ...]:
    return tuple(_own_files.values())


def options(made: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options of a part, or of anything else that is chosen by name: its keyword-only arguments."""
    parameters = inspect.signature(made).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def types_of(made: Callable[..., Any]) -> dict[str, Any]:
    """The types of the options; none are known of a part whose file imports the names for type checkers only."""
    try:
        return typing.get_type_hints(made.__init__ if isinstance(made, type) else made)  # type: ignore[misc]
    except NameError:
        return {}


def build(slot: str, choice: Choice, sizes: Sizes, *more: Any) -> Any:
    """The part that was chosen, built for these sizes."""
    made = find(slot, choice.kind)
    faults = fit(made, choice.options, slot)
    if faults:
        raise PartError("\n".join(str(f) for f in faults))
    return made(sizes, *more, **choice.options)


def check(slot: str, value: Any, place: str) -> list[Fault]:
    """Does this value of an experiment file name a part, and do its options fit?"""
    try:
        choice = Choice.model_validate(value)
    except ValueError:
        return [] if not isinstance(value, dict) else [Fault(place, "a table of options needs kind = the part's name")]
    if choice.kind not in names(slot):
        allowed = names(slot)
        return [Fault(place, f"there is no {slot} {choice.kind!r}", allowed, nearest(choice.kind, allowed))]
    return fit(find(slot, choice.kind), choice.options, place)


def fit(made: Callable[..., Any], given: dict[str, Any], place: str) -> list[Fault]:
    """Hold given options against the keyword-only arguments of a class or function."""
    known = options(made)
    hints = types_of(made)
    kind = getattr(made, "kind", made.__name__)
    faults = []
    for name, value in given.items():
        if name not in known:
            allowed = tuple(known)
            message = f"{kind} has no option {name!r}" + ("" if allowed else "; it has none at all")
            faults.append(Fault(f"{place}.{name}", message, allowed, nearest(name, allowed)))
        elif not _is(value, hints.get(name, Any)):
            faults.append(Fault(f"{place}.{name}", f"must be {_words(hints[name])}, not {value!r}"))
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            faults.append(Fault(place, f"{kind} needs the option {name!r} ({_words(hints.get(name, Any))})"))
    return faults


def _is(value: Any, hint: Any) -> bool:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is typing.Literal:
        return value in inner
    if origin in (typing.Union, types.UnionType):
        return any(_is(value, one) for one in inner)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(_is(one, inner[0]) for one in value)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint) if isinstance(hint, type) else True


def _words(hint: Any) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(one) for one in inner if one is not type(None))
    if origin in (tuple, list):
        return f"a list, each {_words(inner[0])}"
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return plain.get(hint, str(hint))


def describe(made: type[Part]) -> str:
    """The first line of a part's docstring."""
    return (inspect.getdoc(made) or "").partition("\n")[0]


def signature_words(made: type[Part]) -> str:
    """The options with their defaults, as a user writes them."""
    shown: Iterable[str] = (
        f"{name} = {_toml(p.default)}" if p.default is not p.empty else f"{name} (needed)"
        for name, p in options(made).items()
    )
    return ", ".join(shown)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "unset" if value is None else (f'"{value}"' if isinstance(value, str) else str(value))
