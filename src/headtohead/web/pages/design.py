"""Design by hand: keys and a query on a plane, and the answers of `headtohead.key_design`.

The weights on the page are computed in the browser while a point is dragged; what a query should be is asked here. The
arithmetic is numpy's, takes milliseconds and is bounded by the number of keys, so a thread does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from headtohead.key_design.views import facts as words
from headtohead.web.pages.api import router as common
from headtohead.web.site import page

if TYPE_CHECKING:
    from headtohead.key_design.solutions import Shown

MOST_KEYS = 16
LARGEST = 1000.0
SMALLEST = 1e-6
REACH = 3.0
"""the plane of the page, to each side"""

EXAMPLES: dict[str, list[list[float]]] = {
    "a triangle and a key inside": [[0, 2], [-2, -1], [2, -1], [0.5, 0]],
    "a square": [[-1.5, 1.5], [1.5, 1.5], [1.5, -1.5], [-1.5, -1.5]],
    "three on a line": [[-2, -1], [0, 0], [2, 1], [0, 2]],
    "two alike": [[1.5, 1], [1.5, 1], [-1.5, 1], [0, -1.5]],
    "a circle": [[2, 0], [1, 1.7], [-1, 1.7], [-2, 0], [-1, -1.7], [1, -1.7]],
}

router = APIRouter(include_in_schema=False)
api = APIRouter(prefix="/api/design", tags=["design"], responses=common.responses)


def _not_too_small(number: float) -> float:
    """Keys that hardly differ need a query so long that its length has no number."""
    if 0 < abs(number) < SMALLEST:
        raise ValueError(f"0, or at least {SMALLEST:g} in size")
    return number


Number = Annotated[
    float, Field(strict=True, allow_inf_nan=False, ge=-LARGEST, le=LARGEST), AfterValidator(_not_too_small)
]
Place = Annotated[int, Field(strict=True, ge=0, lt=MOST_KEYS, description="a key's place, counted from 0")]


class Question(BaseModel):
    """The keys, and how near an answer should come."""

    model_config = ConfigDict(extra="forbid")
    keys: list[tuple[Number, Number]] = Field(min_length=1, max_length=MOST_KEYS, description="x and y of each key")
    values: list[Number] | None = Field(
        default=None, max_length=MOST_KEYS, description="what each key stands for: the output is their weighted mean"
    )
    precision: float | None = Field(
        default=None,
        strict=True,
        ge=0.01,
        le=1 - 1e-9,
        allow_inf_nan=False,
        description="how near to come where the wanted weights are only approached; 0.999 if not said",
    )

    @model_validator(mode="after")
    def _a_value_for_each_key(self) -> Question:
        if self.values is not None and len(self.values) != len(self.keys):
            raise ValueError(f"{len(self.values)} values for {len(self.keys)} keys; each key has one")
        return self

    def given(self) -> dict[str, Any]:
        """The arguments that every question of design by hand takes."""
        return {
            "keys": [list(key) for key in self.keys],
            "values": None if self.values is None else [[value] for value in self.values],
            "precision": self.precision,
        }


class OneKey(Question):
    """Which key should get the weight."""

    key: Place


class SomeKeys(Question):
    """Which keys should share the weight."""

    indices: list[Place] = Field(min_length=1, max_length=MOST_KEYS)


@router.get("/design")
def show(request: Request) -> HTMLResponse:
    return page(request, "design.html", examples=EXAMPLES, most=MOST_KEYS, reach=REACH, largest=LARGEST)


@api.post("/select")
def select(asked: OneKey) -> dict[str, Any]:
    """A query that puts the weight on one key, or the nearest to it and a proof."""
    return _answered("select", asked, i=asked.key)


@api.post("/average")
def average(asked: SomeKeys) -> dict[str, Any]:
    """A query with equal weights on some keys, or the nearest to it and a proof."""
    return _answered("average", asked, indices=asked.indices)


@api.post("/identity")
def identity(asked: Question) -> dict[str, Any]:
    """A query for each key, that selects it."""
    return _answered("identity", asked)


def _answered(verb: str, asked: Question, **more: Any) -> dict[str, Any]:
    """The library's answer as plain data, with its heading and its figures in words."""
    from headtohead.key_design import solve  # numpy: not before somebody asks

    ask: dict[str, Callable[..., Shown]] = {
        "select": solve.select,
        "average": solve.average,
        "identity": solve.identity,
    }
    row = ask[verb](**asked.given(), **more).as_row()
    return {**row, "heading": words.heading(row), "facts": words.facts(row)}
