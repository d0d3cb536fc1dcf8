"""Base classes and bounded number types for the tables of experiment files.

Tables are frozen and strict, and unknown keys are errors. Sizes have upper bounds, so that a typo is reported
immediately instead of after hours of computation.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_serializer,
    model_validator,
)


class BaseConfig(BaseModel):
    """Base class of every table of an experiment file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _convert_lists_to_tuples(cls, value: Any) -> Any:
        """Convert lists to tuples, because frozen models must be hashable."""
        if not isinstance(value, dict):
            return value
        return {key: tuple(item) if isinstance(item, list) else item for key, item in value.items()}


Count = Annotated[int, Field(ge=1, le=2**30)]
VectorSize = Annotated[int, Field(ge=1, le=2**17)]
"""a number of dimensions"""
SmallCount = Annotated[int, Field(ge=1, le=2**10)]
"""a number of layers, heads or seeds"""
SequenceLength = Annotated[int, Field(ge=1, le=2**24)]
"""a length in tokens"""


class ComponentConfig(BaseModel):
    """A component selected by name, with its options: `"alibi"` or `{ kind = "alibi", slope = 1.0 }`.

    This class does not validate names and options. `headtohead.experiment.settings.registry_checks` checks parts,
    optimizers and tokenizers against their signatures.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    kind: str

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        """Accept a plain name as a component without options."""
        return {"kind": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        """The options as keyword arguments, without `kind`."""
        return dict(self.model_extra or {})

    @model_serializer(mode="plain")
    def _collapse_to_name(self) -> str | dict[str, Any]:
        """Serialize a component without options as its plain name."""
        return {"kind": self.kind, **self.options} if self.options else self.kind

    def __str__(self) -> str:
        if not self.options:
            return self.kind
        options = ", ".join(f"{name} = {value!r}" for name, value in self.options.items())
        return f"{self.kind} ({options})"

    def __hash__(self) -> int:
        return hash(str(self))


def convert_to_tuple(value: object) -> object:
    """Return a single component as a tuple of one, and a list as a tuple."""
    if isinstance(value, str | dict | ComponentConfig):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _collapse_single_part(parts: tuple[ComponentConfig, ...]) -> Any:
    """Serialize a list of one part as that part, as it is usually written in an experiment file."""
    configs = [part.model_dump() for part in parts]
    return configs[0] if len(configs) == 1 else configs


PartList = Annotated[
    tuple[ComponentConfig, ...],
    Field(min_length=1),
    BeforeValidator(convert_to_tuple),
    PlainSerializer(_collapse_single_part),
]
"""one part, or a list of parts"""
FOLDER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][\w.+-]{0,100}")
FOLDER_NAME_RULE = "is used as a folder name: letters, digits, and . + - _ inside; up to 100"
