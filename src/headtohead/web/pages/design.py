"""The key-design page: keys and a query in the plane, and the solutions found by `headtohead.key_design`.

The browser computes the attention weights while a point is dragged; the server solves for queries. Solving takes
milliseconds and its cost is bounded by the number of keys, so a thread suffices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from headtohead.key_design.views import summary
from headtohead.web.pages.api import router as common
from headtohead.web.site import render_page

if TYPE_CHECKING:
    from headtohead.key_design.solutions import DesignResult

MAX_KEYS = 16
MAX_COORDINATE = 1000.0
MIN_NONZERO_COORDINATE = 1e-6
PLANE_HALF_WIDTH = 3.0
"""coordinates on the page reach this far"""

EXAMPLE_KEYS: dict[str, list[list[float]]] = {
    "triangle with a key inside": [[0, 2], [-2, -1], [2, -1], [0.5, 0]],
    "square": [[-1.5, 1.5], [1.5, 1.5], [1.5, -1.5], [-1.5, -1.5]],
    "three collinear keys": [[-2, -1], [0, 0], [2, 1], [0, 2]],
    "two equal keys": [[1.5, 1], [1.5, 1], [-1.5, 1], [0, -1.5]],
    "circle": [[2, 0], [1, 1.7], [-1, 1.7], [-2, 0], [-1, -1.7], [1, -1.7]],
}

router = APIRouter(include_in_schema=False)
api_router = APIRouter(prefix="/api/design", tags=["design"], responses=common.responses)


def _validate_magnitude(number: float) -> float:
    """Reject tiny coordinates: separating nearly identical keys requires a query whose norm overflows."""
    if 0 < abs(number) < MIN_NONZERO_COORDINATE:
        raise ValueError(f"must be 0 or at least {MIN_NONZERO_COORDINATE:g} in absolute value")
    return number


Coordinate = Annotated[
    float,
    Field(strict=True, allow_inf_nan=False, ge=-MAX_COORDINATE, le=MAX_COORDINATE),
    AfterValidator(_validate_magnitude),
]
KeyIndex = Annotated[int, Field(strict=True, ge=0, lt=MAX_KEYS, description="index of a key, counted from 0")]


class DesignRequest(BaseModel):
    """Keys, values and the required precision."""

    model_config = ConfigDict(extra="forbid")
    keys: list[tuple[Coordinate, Coordinate]] = Field(
        min_length=1, max_length=MAX_KEYS, description="x and y of each key"
    )
    values: list[Coordinate] | None = Field(
        default=None, max_length=MAX_KEYS, description="value of each key; the output is their weighted mean"
    )
    precision: float | None = Field(
        default=None,
        strict=True,
        ge=0.01,
        le=1 - 1e-9,
        allow_inf_nan=False,
        description="required precision where the target is only approached; 0.999 by default",
    )

    @model_validator(mode="after")
    def _check_value_count(self) -> DesignRequest:
        if self.values is not None and len(self.values) != len(self.keys):
            raise ValueError(f"{len(self.values)} values for {len(self.keys)} keys; give one value per key")
        return self

    def to_solver_arguments(self) -> dict[str, Any]:
        """Return the request of the page as arguments that all solvers in `headtohead.key_design` take."""
        return {
            "keys": [list(key) for key in self.keys],
            "values": None if self.values is None else [[value] for value in self.values],
            "precision": self.precision,
        }


class SelectRequest(DesignRequest):
    """The key to select."""

    key: KeyIndex


class AverageRequest(DesignRequest):
    """The keys to average."""

    indices: list[KeyIndex] = Field(min_length=1, max_length=MAX_KEYS)


@router.get("/design")
def show_design_page(request: Request) -> HTMLResponse:
    return render_page(
        request, "design.html", examples=EXAMPLE_KEYS, most=MAX_KEYS, reach=PLANE_HALF_WIDTH, largest=MAX_COORDINATE
    )


@api_router.post("/select")
def design_select(body: SelectRequest) -> dict[str, Any]:
    """Return a query that selects one key, or the best query and a proof that no query does."""
    return _solve_design_request("select", body, key_index=body.key)


@api_router.post("/average")
def design_average(body: AverageRequest) -> dict[str, Any]:
    """Return a query that weights the chosen keys equally, or the best query and a proof that no query does."""
    return _solve_design_request("average", body, indices=body.indices)


@api_router.post("/identity")
def design_identity(body: DesignRequest) -> dict[str, Any]:
    """Return, for each key, a query that selects it."""
    return _solve_design_request("identity", body)


def _solve_design_request(operation: str, body: DesignRequest, **options: Any) -> dict[str, Any]:
    """Return the solution as plain data, with a heading and a summary."""
    from headtohead.key_design import query_design  # imports numpy and scipy, which the server does not need to start

    solvers: dict[str, Callable[..., DesignResult]] = {
        "select": query_design.find_selecting_query,
        "average": query_design.find_averaging_query,
        "identity": query_design.find_identity_queries,
    }
    solution = solvers[operation](**body.to_solver_arguments(), **options).to_dict()
    return {**solution, "heading": summary.format_heading(solution), "facts": summary.build_summary(solution)}
