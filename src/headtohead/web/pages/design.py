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
from headtohead.web.site import render_page

if TYPE_CHECKING:
    from headtohead.key_design.solutions import DesignResult

MAX_KEYS = 16
MAX_COORDINATE = 1000.0
MIN_NONZERO_COORDINATE = 1e-6
PLANE_HALF_WIDTH = 3.0
"""the plane of the page, to each side"""

EXAMPLE_KEYS: dict[str, list[list[float]]] = {
    "a triangle and a key inside": [[0, 2], [-2, -1], [2, -1], [0.5, 0]],
    "a square": [[-1.5, 1.5], [1.5, 1.5], [1.5, -1.5], [-1.5, -1.5]],
    "three on a line": [[-2, -1], [0, 0], [2, 1], [0, 2]],
    "two alike": [[1.5, 1], [1.5, 1], [-1.5, 1], [0, -1.5]],
    "a circle": [[2, 0], [1, 1.7], [-1, 1.7], [-2, 0], [-1, -1.7], [1, -1.7]],
}

router = APIRouter(include_in_schema=False)
api_router = APIRouter(prefix="/api/design", tags=["design"], responses=common.responses)


def _validate_magnitude(number: float) -> float:
    """Keys that hardly differ need a query so long that its length has no number."""
    if 0 < abs(number) < MIN_NONZERO_COORDINATE:
        raise ValueError(f"0, or at least {MIN_NONZERO_COORDINATE:g} in size")
    return number


Coordinate = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False, ge=-MAX_COORDINATE, le=MAX_COORDINATE),
    AfterValidator(_validate_magnitude),
]
KeyIndex = Annotated[int, Field(strict=True, ge=0, lt=MAX_KEYS, description="a key's place, counted from 0")]


class DesignRequest(BaseModel):
    """The keys, and how near an answer should come."""

    model_config = ConfigDict(extra="forbid")
    keys: list[tuple[Coordinate, Coordinate]] = Field(
        min_length=1, max_length=MAX_KEYS, description="x and y of each key"
    )
    values: list[Coordinate] | None = Field(
        default=None, max_length=MAX_KEYS, description="what each key stands for: the output is their weighted mean"
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
    def _check_value_count(self) -> DesignRequest:
        if self.values is not None and len(self.values) != len(self.keys):
            raise ValueError(f"{len(self.values)} values for {len(self.keys)} keys; each key has one")
        return self

    def to_arguments(self) -> dict[str, Any]:
        """The arguments that every question of design by hand takes."""
        return {
            "keys": [list(key) for key in self.keys],
            "values": None if self.values is None else [[value] for value in self.values],
            "precision": self.precision,
        }


class SelectRequest(DesignRequest):
    """Which key should get the weight."""

    key: KeyIndex


class AverageRequest(DesignRequest):
    """Which keys should share the weight."""

    indices: list[KeyIndex] = Field(min_length=1, max_length=MAX_KEYS)


@router.get("/design")
def show_design_page(request: Request) -> HTMLResponse:
    return render_page(
        request, "design.html", examples=EXAMPLE_KEYS, most=MAX_KEYS, reach=PLANE_HALF_WIDTH, largest=MAX_COORDINATE
    )


@api_router.post("/select")
def design_select(body: SelectRequest) -> dict[str, Any]:
    """A query that puts the weight on one key, or the nearest to it and a proof."""
    return _compute_design("select", body, key_index=body.key)


@api_router.post("/average")
def design_average(body: AverageRequest) -> dict[str, Any]:
    """A query with equal weights on some keys, or the nearest to it and a proof."""
    return _compute_design("average", body, indices=body.indices)


@api_router.post("/identity")
def design_identity(body: DesignRequest) -> dict[str, Any]:
    """A query for each key, that selects it."""
    return _compute_design("identity", body)


def _compute_design(operation: str, body: DesignRequest, **more: Any) -> dict[str, Any]:
    """The library's answer as plain data, with its heading and its figures in words."""
    from headtohead.key_design import solve  # numpy: not before somebody asks

    ask: dict[str, Callable[..., DesignResult]] = {
        "select": solve.find_selecting_query,
        "average": solve.find_averaging_query,
        "identity": solve.find_identity_queries,
    }
    row = ask[operation](**body.to_arguments(), **more).to_dict()
    return {**row, "heading": words.format_heading(row), "facts": words.build_summary(row)}
