"""Options of components: the keyword-only arguments of the class or function selected by a name in an experiment file.

Parts, optimizers, schedules and tokenizers are registered as factories by name, and their options are validated here.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from headtohead.config.base import ComponentConfig
from headtohead.config.toml import format_toml_value
from headtohead.config.validation.error_messages import suggest_key
from headtohead.errors import ValidationIssue, suggest

Factory = Callable[..., Any]
"""class or function that builds a component"""
TYPE_DESCRIPTIONS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def get_component_options(factory: Factory) -> dict[str, inspect.Parameter]:
    """Return the options of a factory: its keyword-only arguments."""
    parameters = inspect.signature(factory).parameters
    return {name: p for name, p in parameters.items() if p.kind is p.KEYWORD_ONLY}


def get_component_option_types(factory: Factory) -> dict[str, Any]:
    """Return the types of the options; an empty dict if they cannot be resolved, as for imports under TYPE_CHECKING."""
    function = factory.__init__ if isinstance(factory, type) else factory  # type: ignore[misc]
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError:
        return {}


def get_component_summary(factory: Factory) -> str:
    """Return the first paragraph of a factory's docstring, which describes the component."""
    return " ".join((inspect.getdoc(factory) or "").partition("\n\n")[0].split())


def format_component_options(factory: Factory) -> str:
    """Return a component's options with their defaults, in TOML syntax."""
    return ", ".join(
        f"{name} (required)" if p.default is p.empty else f"{name} = {format_toml_value(p.default) or 'unset'}"
        for name, p in get_component_options(factory).items()
    )


def validate_component(
    value: Any, factories: Mapping[str, Factory], description: str, location: str
) -> list[ValidationIssue]:
    """Check the name and options of a component in an experiment file.

    Args:
        value: The component, as given in the file.
        factories: Registered factories by name.
        description: Kind of component, for error messages, such as "optimizer".
        location: Dotted name of the setting, for error messages.

    Returns:
        The issues found: an unknown name, or options that do not match the factory's signature.
    """
    try:
        config = ComponentConfig.model_validate(value)
    except ValueError:
        is_table = isinstance(value, dict)
        return [ValidationIssue(location, f"a table of options needs kind = the {description}")] if is_table else []
    if config.kind not in factories:
        message, names = f"unknown {description} {config.kind!r}", tuple(factories)
        return [ValidationIssue(location, message, names, suggest(config.kind, names))]
    return validate_component_options(factories[config.kind], config, location)


def validate_component_options(factory: Factory, config: ComponentConfig, location: str) -> list[ValidationIssue]:
    """Return the issues of a component's options, checked against the signature of its factory."""
    options, hints = get_component_options(factory), get_component_option_types(factory)
    issues = []
    for name, value in config.options.items():
        if name not in options:
            message = f"{config.kind} has no option {name!r}" + ("" if options else "; it has no options")
            issues.append(
                ValidationIssue(
                    f"{location}.{name}", message, tuple(options), suggest_key(name, tuple(options), location)
                )
            )
        elif requirement := _find_violated_requirement(value, hints.get(name, Any)):
            issues.append(ValidationIssue(f"{location}.{name}", f"must be {requirement}, not {value!r}"))
    for name, parameter in options.items():
        if parameter.default is parameter.empty and name not in config.options:
            required = f"{config.kind} requires the option {name!r} ({_format_type_hint(hints.get(name, Any))})"
            issues.append(ValidationIssue(location, required))
    return issues


def _find_violated_requirement(value: Any, hint: Any) -> str | None:
    """Return the expected type in words if an option's value does not match its type hint, else None."""
    try:
        # Compare as JSON, where a list is a tuple and an integer is a number, but true is not 1.
        adapter = TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True))
        adapter.validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        bounds = [details["ctx"]["ge"] for details in error.errors() if details["type"] == "greater_than_equal"]
        return f"at least {bounds[0]}" if bounds else _format_type_hint(hint)
    return None


def _format_type_hint(hint: Any) -> str:
    """Return the type of an option in words, for error messages."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return _format_type_hint(inner[0])
    if origin is typing.Literal:
        return "one of " + ", ".join(map(repr, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_format_type_hint(alternative) for alternative in inner if alternative is not type(None))
    if origin in (tuple, list):
        return f"a list of which each item is {_format_type_hint(inner[0])}"
    return TYPE_DESCRIPTIONS.get(hint, str(hint))
