"""What all tables of an experiment file share: frozen, strict, no unknown keys, and sizes with an end: nothing that a
machine could be asked for lies beyond them, and what does would be counted up to for hours."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator


class Table(BaseModel):
    """One table of an experiment file."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _lists_to_tuples(cls, value: Any) -> Any:
        # TOML and JSON know lists only; frozen data holds tuples.
        if not isinstance(value, dict):
            return value
        return {key: tuple(one) if isinstance(one, list) else one for key, one in value.items()}


Count = Annotated[int, Field(ge=1, le=2**30)]
Size = Annotated[int, Field(ge=1, le=2**17)]
"""of vectors"""
Few = Annotated[int, Field(ge=1, le=2**10)]
"""layers, heads"""
Length = Annotated[int, Field(ge=1, le=2**24)]
"""of inputs, in tokens"""


class Choice(BaseModel):
    """A thing chosen by name, with its options: `"alibi"` or `{ kind = "alibi", slope = 1.0 }`.

    Which names and options exist is not known here: parts, optimizers and tokenizers are held against their own
    signatures when the file is loaded.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)
    kind: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: Any) -> Any:
        return {"kind": value} if isinstance(value, str) else value

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @model_serializer(mode="plain")
    def _to_name(self) -> str | dict[str, Any]:
        return {"kind": self.kind, **self.options} if self.options else self.kind

    def __str__(self) -> str:
        if not self.options:
            return self.kind
        inside = ", ".join(f"{k} = {v!r}" for k, v in self.options.items())
        return f"{self.kind} ({inside})"

    def __hash__(self) -> int:
        return hash(str(self))


FOLDER_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,100}")
FOLDER_WORDS = "is used as a folder name: letters, digits, and . + - _ inside; up to 100"
SPAN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) epochs?")


def span_in_steps(span: int | str, steps_per_epoch: int) -> int:
    """`500` is steps; `"15 epochs"` is counted with the length of an epoch."""
    if isinstance(span, int):
        return span
    match = SPAN.fullmatch(span)
    assert match is not None, span
    return max(1, round(float(match.group(1)) * steps_per_epoch))
