"""What all tables of an experiment file share: frozen, strict, no unknown keys, and sizes with an end: nothing that a
machine could be asked for lies beyond them, and what does would be counted up to for hours."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator


class BaseConfig(BaseModel):
    """One table of an experiment file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _convert_lists_to_tuples(cls, value: Any) -> Any:
        # TOML and JSON know lists only; frozen data holds tuples.
        if not isinstance(value, dict):
            return value
        return {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}


Count = Annotated[int, Field(ge=1, le=2**30)]
VectorSize = Annotated[int, Field(ge=1, le=2**17)]
"""of vectors"""
SmallCount = Annotated[int, Field(ge=1, le=2**10)]
"""layers, heads"""
SequenceLength = Annotated[int, Field(ge=1, le=2**24)]
"""of inputs, in tokens"""


class ComponentConfig(BaseModel):
    """A thing chosen by name, with its options: `"alibi"` or `{ kind = "alibi", slope = 1.0 }`.

    Which names and options exist is not known here: parts, optimizers and tokenizers are held against their own
    signatures when the file is loaded.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    kind: str

    @model_validator(mode="before")
    @classmethod
    def _expand_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_serializer(mode="plain")
    def _collapse_to_name(self) -> str | dict[str, Any]:
        return {"kind": self.kind, **self.options} if self.options else self.kind

    def __str__(self) -> str:
        if not self.options:
            return self.kind
        inside = ", ".join(f"{k} = {v!r}" for k, v in self.options.items())
        return f"{self.kind} ({inside})"

    def __hash__(self) -> int:
        return hash(str(self))


FOLDER_NAME_PATTERN = re.compile(r"[A-Za-z0-9][\w.+-]{0,100}")
FOLDER_NAME_RULE = "is used as a folder name: letters, digits, and . + - _ inside; up to 100"
EPOCHS_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) epochs?")


def convert_to_steps(steps_or_epochs: int | str, steps_per_epoch: int) -> int:
    """`500` is steps; `"15 epochs"` is counted with the length of an epoch."""
    if isinstance(steps_or_epochs, int):
        return steps_or_epochs
    match = EPOCHS_PATTERN.fullmatch(steps_or_epochs)
    assert match is not None, steps_or_epochs
    return max(1, round(float(match.group(1)) * steps_per_epoch))
