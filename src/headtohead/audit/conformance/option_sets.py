"""The sets of options that the conformance suite checks a part with."""

from __future__ import annotations

import typing
from collections.abc import Sequence
from typing import Any

from headtohead.config.validation.component_options import get_component_option_types, get_component_options
from headtohead.errors import PartError
from headtohead.nn.parts.base import Component


def list_option_sets(part_class: type[Component]) -> list[dict[str, Any]]:
    """Return the sets of options that `check_part_file` checks a part with.

    These are the defaults, and each further value of boolean and Literal options.
    """
    annotations, parameters = get_component_option_types(part_class), get_component_options(part_class)
    required_options = {
        name: _guess_option_value(part_class, name, annotations.get(name))
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
    }
    option_sets = [required_options]
    for name, parameter in parameters.items():
        annotation = annotations.get(name)
        values: Sequence[Any] = (True, False) if annotation is bool else ()
        if typing.get_origin(annotation) is typing.Literal:
            values = typing.get_args(annotation)
        covered_values = (parameter.default, required_options.get(name))
        option_sets += [{**required_options, name: value} for value in values if value not in covered_values]
    return option_sets


def _guess_option_value(part_class: type[Component], option_name: str, annotation: Any) -> Any:
    """Return a value to check a part with for an option that it requires; raise PartError if none fits its type."""
    if typing.get_origin(annotation) is typing.Literal:
        return typing.get_args(annotation)[0]
    value_by_type = {int: 4, float: 0.5, bool: True}
    if annotation not in value_by_type:
        raise PartError(
            f"{part_class.slot} {part_class.kind!r}: option {option_name!r} is required, and no value for it can be "
            "guessed; check the part with a PartConformanceSuite that sets options"
        )
    return value_by_type[annotation]
