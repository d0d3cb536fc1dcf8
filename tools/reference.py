"""Markdown of the reference pages, generated from the code while the documentation site is built.

A line `<!-- generated: NAME ARGUMENT -->` in a page of docs/ is replaced by the result of the generator NAME, as in
`<!-- generated: config TrainingConfig -->`.
"""

from __future__ import annotations

import inspect
import json
import re
import types
from collections import defaultdict
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined
from typer.core import TyperGroup
from typer.main import get_command

import headtohead
import headtohead.config.experiment  # defines every table
from headtohead import errors
from headtohead.config.base import BaseConfig, ComponentConfig
from headtohead.config.experiment import PrimaryMetric
from headtohead.config.toml import format_toml_value
from tools import catalog

_Base = TypeVar("_Base")
PLACEHOLDER_PATTERN = re.compile(r"^<!-- generated: (\w+) ?(\S*) -->$", flags=re.MULTILINE)


def expand_placeholders(page_text: str) -> str:
    """Return a page with its placeholders replaced by generated Markdown."""
    return PLACEHOLDER_PATTERN.sub(lambda match: GENERATORS[match[1]](*filter(None, [match[2]])), page_text)


def _build_markdown_table(titles: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(titles)} |", "|" + "---|" * len(titles)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def build_config_table(class_name: str) -> str:
    """Return the keys of a table of experiment files, given the name of its class in `headtohead.config`."""
    config_class = next(table for table in _list_subclasses(BaseConfig) if table.__name__ == class_name)
    rows = [
        [
            f"`{key}`",
            _format_default(config_class, key),
            _format_type(field.annotation),
            " ".join((field.description or "").split()),
        ]
        for key, field in config_class.model_fields.items()
        if key != "name"  # the file name
    ]
    return _build_markdown_table(["key", "default", "type", "meaning"], rows)


def _list_subclasses(base: type[_Base]) -> list[type[_Base]]:
    """Return a class and everything derived from it, in order of definition."""
    return [base, *(subclass for child in base.__subclasses__() for subclass in _list_subclasses(child))]


def _format_default(config_class: type[BaseModel], key: str) -> str:
    """Return the default of a key as it is written in an experiment file, or "none", "required" or a reference."""
    if config_class is PrimaryMetric and key == "metric":
        return "by task"
    field = config_class.model_fields[key]
    if field.annotation is PrimaryMetric:
        return "see table"
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
    return f"`{format_toml_value(value)}`" if value != {} else "see table"


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
        item_type = _format_type(arguments[0])
        return f"{item_type}, or list of them" if item_type == "part" else f"list of {item_type}"
    if origin is dict:
        return f"table of {_format_type(arguments[1])}"
    if annotation is ComponentConfig:
        return "part"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    return _TYPE_NAMES[annotation]


def build_parts_table() -> str:
    """Return a table of all slots with the names of their built-in parts."""
    from headtohead.nn.parts import registry

    rows = []
    for slot in registry.SLOTS:
        names = ", ".join(f"`{name}`" for name in registry.list_part_names(slot))
        table = "training" if slot in registry.TRAINING_SLOTS else "model"
        rows.append([f"[{slot}](slots/{slot}.md)", f"`[{table}]`", names])
    return _build_markdown_table(["slot", "table", "built-in parts"], rows)


def build_slot_page(name: str) -> str:
    """Return the purpose of a slot, its contract, its built-in parts with their options, and examples."""
    from headtohead.audit.conformance.slot_contracts import SLOT_CONTRACTS
    from headtohead.audit.conformance.training_contracts import TRAINING_BASE_CLASSES
    from headtohead.nn.parts import registry
    from headtohead.parts import TwoNormBlock

    base_classes = (
        (TRAINING_BASE_CLASSES[name],) if name in TRAINING_BASE_CLASSES else SLOT_CONTRACTS[name].base_classes
    )
    base_classes += (TwoNormBlock,) if name == "block" else ()
    module = import_module(registry.SLOT_MODULES[name])
    classes = {part: registry.get_part_class(name, part) for part in registry.list_part_names(name)}
    table = "training" if name in registry.TRAINING_SLOTS else "model"
    sections = [
        inspect.cleandoc(module.__doc__ or ""),
        f"Key in an experiment file: `{table}.{name}`. See [Write your own part](../../how-to/parts.md).",
        f"## Built-in parts\n\n{_build_choices_table(classes)}",
        "## Contract\n\n```{eval-rst}\n"
        + "\n\n".join(
            _build_autodoc_directive(f"headtohead.parts.{base_class.__name__}", base_class)
            for base_class in base_classes
        )
        + "\n```",
    ]
    examples = [
        file
        for file in sorted(catalog.EXAMPLE_PARTS_FOLDER.glob("*.py"))
        if f'@register_part("{name}", ' in file.read_text()
    ]
    if published_ideas := [idea.name for idea in catalog.load_ideas() if idea.slot == name]:
        ideas_list = "\n".join(f"- {idea}" for idea in published_ideas)
        link = f"[Their settings, papers and files](../ideas.md#{name})"
        sections.append(f"## Published ideas\n\n{ideas_list}\n\n{link}")
    if examples:
        sections.append("## Examples in one file")
        sections += [f"```python\n{file.read_text(encoding='utf-8').strip()}\n```" for file in examples]
    return "\n\n".join(sections)


def build_ideas_page() -> str:
    """Return the catalog of published ideas by slot: settings, file, test and lines of each."""
    from headtohead.nn.parts import registry

    rows_by_slot = defaultdict(list)
    for idea in catalog.load_ideas():
        settings = "<br>".join(f"`{key} = {format_toml_value(value)}`" for key, value in idea.settings.items())
        file, lines = (
            ("settings", "")
            if idea.source_file_and_length is None
            else (idea.source_file_and_length[0], str(idea.source_file_and_length[1]))
        )
        location = f"`{file.relative_to(catalog.PROJECT_ROOT)}`" if isinstance(file, Path) else file
        rows_by_slot[idea.slot].append([idea.name, idea.paper, settings, location, lines, f"`{idea.test}`"])
    titles = ["idea", "paper", "experiment file", "file", "lines", "test"]
    sections = [
        f"## {slot}\n\nSlot [{slot}](slots/{slot}.md).\n\n{_build_markdown_table(titles, rows_by_slot[slot])}"
        for slot in registry.SLOTS
        if rows_by_slot[slot]
    ]
    if rows_by_slot[None]:
        sections.append(f"## Other settings\n\n{_build_markdown_table(titles, rows_by_slot[None])}")
    files = list(catalog.EXAMPLE_PARTS_FOLDER.glob("*.py"))
    median_lines = f"{catalog.compute_median_lines():g}"
    summary = f"The {len(files)} files in `docs/examples/parts` have a median of {median_lines} lines.\n"
    return "\n".join([*sections, "## Length of the files", "", summary])


def _build_choices_table(choices: Mapping[str, Callable[..., Any]]) -> str:
    """Return the table of a slot's built-in parts with their options."""
    from headtohead.config.validation import component_options

    rows = []
    for name, factory in choices.items():
        options = component_options.format_component_options(factory)
        rows.append([f"`{name}`", f"`{options}`" if options else "", component_options.get_component_summary(factory)])
    return _build_markdown_table(["name", "options", "description"], rows)


def build_commands_page() -> str:
    """Return usage, arguments and options of every command."""
    from headtohead.cli import app

    group = get_command(app)
    assert isinstance(group, TyperGroup)
    sections: list[str] = []
    for name, command in group.commands.items():
        sections.append(_describe_command(f"h2h {name}", command))
        if isinstance(command, TyperGroup):
            subcommands = {key: subcommand for key, subcommand in command.commands.items() if not subcommand.hidden}
            sections += [
                _describe_command(f"h2h {name} {subcommand_name}", subcommand)
                for subcommand_name, subcommand in subcommands.items()
            ]
    return "\n".join(sections)


def _describe_command(name: str, command: Any) -> str:
    """Return the section on a command: help, usage, arguments and options."""
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    help_records = [
        parameter.get_help_record(context) for parameter in command.get_params(context) if parameter.name != "help"
    ]
    rows = [[f"`{record[0].partition(' <')[0]}`", record[1]] for record in help_records if record is not None]
    help_text = inspect.cleandoc(command.help or "").replace("\f", "")
    table = _build_markdown_table(["argument or option", "meaning"], rows) if rows else ""
    return "\n".join([f"## {name}", "", help_text, "", "```text", usage, "```", "", table])


def build_exit_codes_table() -> str:
    """Return the exceptions of the package with their exit codes."""
    rows = [
        [f"`{error.__name__}`", str(error.exit_code), inspect.getdoc(error).split("\n\n")[0].replace("\n", " ")]
        for error in _list_subclasses(errors.HeadToHeadError)
        if error.__module__ == errors.__name__
    ]
    return _build_markdown_table(["exception", "exit code", "meaning"], rows)


def build_python_api_page() -> str:
    """Return autodoc directives for the public names of the package."""
    blocks = []
    for name in headtohead.__all__:
        value = getattr(headtohead, name)
        if isinstance(value, types.ModuleType):
            names = [function_name for function_name in value.__all__ if callable(getattr(value, function_name))]
            directives = "\n\n".join(
                _build_autodoc_directive(f"headtohead.{name}.{function_name}", getattr(value, function_name))
                for function_name in names
            )
        else:
            directives = _build_autodoc_directive(f"headtohead.{name}", value)
        blocks.append(f"## {name}\n\n```{{eval-rst}}\n{directives}\n```\n")
    return "\n".join(blocks)


def _build_autodoc_directive(path: str, value: object) -> str:
    """Return the Sphinx directive that documents a class or a function."""
    if isinstance(value, type):
        return f".. autoclass:: {path}\n   :members:\n   :exclude-members: model_config"
    return f".. autofunction:: {path}"


def read_repository_file(name: str) -> str:
    """Return a file of the repository's root, with its links adapted to a page in docs/."""
    text = (Path(__file__).parents[1] / name).read_text(encoding="utf-8")
    return text.replace("](docs/", "](").replace("](CHANGELOG.md)", "](changelog.md)")


GENERATORS: dict[str, Callable[..., str]] = {
    "config": build_config_table,
    "parts": build_parts_table,
    "slot": build_slot_page,
    "ideas": build_ideas_page,
    "commands": build_commands_page,
    "exit_codes": build_exit_codes_table,
    "python_api": build_python_api_page,
    "repository_file": read_repository_file,
}
"""functions that generate the content of placeholders, by name"""
