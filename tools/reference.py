"""Markdown of the reference pages, generated from the code while the documentation site is built.

A line `<!-- generated: NAME ARGUMENT -->` in a page of docs/ is replaced by the result of the function `NAME(ARGUMENT)`
of this module, as in `<!-- generated: config TrainingConfig -->`.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from typer.core import TyperGroup
from typer.main import get_command

import headtohead
import headtohead.config.experiment  # defines every table
from headtohead import errors
from headtohead.config.base import BaseConfig, ComponentConfig
from headtohead.config.toml import format_value

PLACEHOLDER = re.compile(r"^<!-- generated: (\w+) ?(\S*) -->$", flags=re.MULTILINE)


def expand(text: str) -> str:
    """Return a page with its placeholders replaced by generated Markdown."""
    return PLACEHOLDER.sub(lambda match: GENERATORS[match[1]](*filter(None, [match[2]])), text)


def _build_table(titles: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def config(class_name: str) -> str:
    """Return the keys of a table of experiment files, given the name of its class in `headtohead.config`."""
    (config_class,) = (subclass for subclass in BaseConfig.__subclasses__() if subclass.__name__ == class_name)
    rows = [
        [
            f"`{key}`",
            _format_default(field),
            _format_type(field.annotation),
            " ".join((field.description or "").split()),
        ]
        for key, field in config_class.model_fields.items()
        if key != "name"  # the file name
    ]
    return _build_table(["key", "default", "type", "meaning"], rows)


def _format_default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is PydanticUndefined or value is None:
        return "none"
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json") if isinstance(value, ComponentConfig) else {}
    if isinstance(value, tuple):
        value = [item.model_dump(mode="json") if isinstance(item, BaseModel) else item for item in value]
        value = value[0] if len(value) == 1 else value
    return f"`{format_value(value)}`" if value != {} else "see table"


_TYPE_NAMES = {int: "integer", float: "number", str: "string", bool: "boolean", Any: "any", types.NoneType: ""}


def _format_type(annotation: Any) -> str:
    """Return a type annotation in words: `integer or string`, `list of string`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _format_type(arguments[0])
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(name for name in dict.fromkeys(map(_format_type, arguments)) if name)
    if origin is tuple:
        item = _format_type(arguments[0])
        return f"{item}, or list of them" if item == "part" else f"list of {item}"
    if origin is dict:
        return f"table of {_format_type(arguments[1])}"
    if annotation is ComponentConfig:
        return "part"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _TYPE_NAMES[annotation]


def parts() -> str:
    """Return the built-in parts by slot, with their options."""
    from headtohead.nn.parts import registry

    sections = []
    for slot in registry.SLOTS:
        classes = {name: registry.get_part_class(slot, name) for name in registry.list_part_names(slot)}
        about = " ".join((import_module(f"headtohead.nn.parts.{slot}").__doc__ or "").split("\n\n")[0].split())
        sections.append(f"## {slot}\n\n{about}\n\n{_build_choices_table(classes)}")
    return "\n".join(sections)


def optimizers() -> str:
    """Return the optimizers with their options."""
    from headtohead.training.optimizers import OPTIMIZERS

    return _build_choices_table(OPTIMIZERS)


def schedules() -> str:
    """Return the learning-rate schedules with their options."""
    from headtohead.training.optimizers import LR_SCHEDULES

    return _build_choices_table(LR_SCHEDULES)


def _build_choices_table(choices: Mapping[str, Callable[..., Any]]) -> str:
    from headtohead.config.validation import component_options

    rows = []
    for name, factory in choices.items():
        options = component_options.format_options(factory)
        rows.append([f"`{name}`", f"`{options}`" if options else "", component_options.get_summary(factory)])
    return _build_table(["name", "options", "description"], rows)


def commands() -> str:
    """Return usage, arguments and options of every command."""
    from headtohead.cli import app

    group = get_command(app)
    assert isinstance(group, TyperGroup)
    sections: list[str] = []
    for name, command in group.commands.items():
        sections.append(_describe_command(f"h2h {name}", command))
        if isinstance(command, TyperGroup):
            sections += [_describe_command(f"h2h {name} {inner}", sub) for inner, sub in command.commands.items()]
    return "\n".join(sections)


def _describe_command(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    records = [
        parameter.get_help_record(context) for parameter in command.get_params(context) if parameter.name != "help"
    ]
    rows = [[f"`{record[0]}`", record[1]] for record in records if record is not None]
    help_text = inspect.cleandoc(command.help or "").replace("\f", "")
    table = _build_table(["argument or option", "meaning"], rows) if rows else ""
    return "\n".join([f"## {name}", "", help_text, "", "```text", usage, "```", "", table])


def exit_codes() -> str:
    """Return the exceptions of the package with their exit codes."""

    def list_subclasses(error: type[errors.HeadToHeadError]) -> list[type[errors.HeadToHeadError]]:
        return [error, *(subclass for inner in error.__subclasses__() for subclass in list_subclasses(inner))]

    rows = [
        [f"`{error.__name__}`", str(error.exit_code), inspect.getdoc(error).split("\n\n")[0].replace("\n", " ")]
        for error in list_subclasses(errors.HeadToHeadError)
        if error.__module__ == errors.__name__
    ]
    return _build_table(["exception", "exit code", "meaning"], rows)


def python_api() -> str:
    """Return autodoc directives for the public names of the package."""
    blocks = []
    for name in headtohead.__all__:
        value = getattr(headtohead, name)
        if isinstance(value, types.ModuleType):
            names = [inner for inner in value.__all__ if callable(getattr(value, inner))]
            directives = "\n\n".join(_autodoc(f"headtohead.{name}.{inner}", getattr(value, inner)) for inner in names)
        else:
            directives = _autodoc(f"headtohead.{name}", value)
        blocks.append(f"## {name}\n\n```{{eval-rst}}\n{directives}\n```\n")
    return "\n".join(blocks)


def _autodoc(path: str, value: object) -> str:
    if isinstance(value, type):
        return f".. autoclass:: {path}\n   :members:"
    return f".. autofunction:: {path}"


def repository_file(name: str) -> str:
    """Return a file of the repository's root, with its links adapted to a page in docs/."""
    text = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](").replace("](CHANGELOG.md)", "](changelog.md)")


_GENERATORS = (config, parts, optimizers, schedules, commands, exit_codes, python_api, repository_file)
GENERATORS: dict[str, Callable[..., str]] = {function.__name__: function for function in _GENERATORS}
