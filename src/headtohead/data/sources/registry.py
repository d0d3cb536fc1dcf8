"""The registry of corpus sources.

`data.source` is written as `name` or `name:argument`; anything else is the path of a folder or file, a glob pattern, or
a list of these. A source returns the splits that it provides; missing splits are held out from train.
"""

from __future__ import annotations

import glob
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from headtohead.atomic_io import compute_sha256
from headtohead.config.tables.data import DataConfig
from headtohead.data.raw_corpus import RawCorpus
from headtohead.errors import DataError, ValidationIssue, suggest

SOURCE_NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]+")
PATH_SOURCES = ("folder", "file", "files")
"""sources that a bare path, a pattern or a list of paths selects"""


@dataclass(frozen=True)
class SourceRequest:
    """A request to a source: which corpus to read and how."""

    argument: str
    """the text after the colon in `data.source`, empty if there is none"""
    has_labels: bool
    """True if rows need labels, as in classification"""
    data: DataConfig
    """the [data] table"""
    base_folder: Path = Path()
    """folder that relative paths start from"""

    @property
    def path(self) -> Path:
        """The argument as a path, relative to the base folder."""
        return self.base_folder / Path(self.argument).expanduser()


class CorpusSource(ABC):
    """A source of text. Subclass it, or register a plain function that takes a request and returns a `RawCorpus`."""

    name = ""
    has_path_argument = True
    """whether an argument that is an existing path is taken relative to the experiment file"""

    @abstractmethod
    def read(self, request: SourceRequest) -> RawCorpus:
        """Return the splits that the source has. `train` is required."""

    def list_files(self, request: SourceRequest) -> dict[str, Path]:
        """Return the files that the rows of this source depend on, by name. A changed file invalidates the token cache.

        By default the argument, if it is the path of a file.
        """
        return {request.path.name: request.path} if request.argument and request.path.is_file() else {}


class _FunctionSource(CorpusSource):
    """A source that is registered as a plain function."""

    def __init__(self, function: Callable[[SourceRequest], Any]) -> None:
        self.function = function

    def read(self, request: SourceRequest) -> Any:
        return self.function(request)


_registry: dict[str, tuple[CorpusSource, str]] = {}
"""source name = the source and the name of the module that defines it"""

Registered = TypeVar("Registered", bound=Callable[..., Any])


def source(name: str) -> Callable[[Registered], Registered]:
    """Register a `CorpusSource` subclass, or a function from `SourceRequest` to `RawCorpus`, under a name."""
    if not SOURCE_NAME_PATTERN.fullmatch(name):
        raise DataError(f"source name {name!r} is invalid: use lowercase letters, digits, - and _, at least two")

    def register(factory: Registered) -> Registered:
        """Instantiate and register the source; raise DataError if a different file defines the same name."""
        file = _find_module_file(factory.__module__)
        registered_file = _find_module_file(_registry[name][1]) if name in _registry else file
        if registered_file != file:
            raise DataError(f"source {name!r} is defined twice: in {registered_file} and {file}")
        instance = factory() if isinstance(factory, type) else _FunctionSource(factory)
        if not isinstance(instance, CorpusSource):
            raise DataError(f"source {name!r}: {factory.__name__} must subclass CorpusSource")
        instance.name = name
        _registry[name] = (instance, factory.__module__)
        return factory

    return register


def _find_module_file(module_name: str) -> str:
    """Return the file that defines a source, or the name of its module if that has no file."""
    return str(getattr(sys.modules.get(module_name), "__file__", None) or module_name)


def list_source_names() -> tuple[str, ...]:
    """Return the names of all registered corpus sources."""
    return tuple(sorted(_registry))


def parse_source_setting(text: str | Sequence[str], base_folder: Path = Path()) -> tuple[str, str]:
    """Split `data.source` into the name of a registered source and its argument. Paths select folder or file(s)."""
    if not isinstance(text, str):
        return "files", ", ".join(text)
    name, colon, argument = text.partition(":")
    if name in _registry and (colon or name not in PATH_SOURCES):
        return name, argument
    path = base_folder / Path(text).expanduser()
    if glob.has_magic(text) and not path.exists():
        return "files", text
    return ("folder" if path.is_dir() else "file"), text


def get_source(name: str) -> CorpusSource:
    """Return the corpus source that is registered under a name."""
    return _registry[name][0]


def compute_source_code_digest(name: str) -> str:
    """Return the digest of the file that defines a source: editing a user's file invalidates the token cache."""
    return compute_sha256(Path(_find_module_file(_registry[name][1])))


def check_source(text: str | Sequence[str], base_folder: Path = Path()) -> list[ValidationIssue]:
    """Return an issue if `data.source` names a source that is not registered."""
    if not isinstance(text, str):
        return []
    name, colon, _ = text.partition(":")
    if not colon or name in _registry or not SOURCE_NAME_PATTERN.fullmatch(name) or (base_folder / text).exists():
        return []
    source_names = list_source_names()
    suggestion = suggest(name, source_names)
    return [ValidationIssue("data.source", f"no source named {name!r}", source_names, suggestion)]


def resolve_source_path(text: str, base_folder: Path) -> str:
    """Make the path in `data.source` absolute for sources that take paths; leave all other arguments unchanged."""
    name, argument = parse_source_setting(text, base_folder)
    if argument == text and name in PATH_SOURCES and not check_source(text, base_folder):
        return str((base_folder / Path(text).expanduser()).resolve())
    path = base_folder / Path(argument).expanduser()
    if argument and get_source(name).has_path_argument and path.exists():
        return f"{name}:{path.resolve()}"
    return text


def resolve_source(data: DataConfig, base_folder: Path, *, has_labels: bool) -> tuple[CorpusSource, SourceRequest]:
    """Return the registered source that `data.source` selects, and the request to read it with."""
    if issues := check_source(data.source, base_folder):
        raise DataError(str(issues[0]))
    name, argument = parse_source_setting(data.source, base_folder)
    return get_source(name), SourceRequest(argument, has_labels, data, base_folder)
