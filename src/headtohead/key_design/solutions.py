"""Solutions of key-design problems: the query or key, the attention weights it produces, whether it is exact, and why.

`to_dict` returns the same data as JSON values, which charts, tables and `--json` use.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector


class DesignResult:
    """Base class of all solutions."""

    question: str
    exact: bool
    reason: str
    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values, arrays as lists."""
        return {
            "kind": self.kind,
            **{f.name: _convert_to_json(getattr(self, f.name)) for f in fields(self)},  # type: ignore[arg-type]
        }

    def __repr__(self) -> str:
        return f"<{self.question}: {'exact' if self.exact else 'not exact'}. {self.reason}>"


def _convert_to_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, DesignResult):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_convert_to_json(item) for item in value]
    return value


@dataclass(frozen=True, eq=False, repr=False)
class QueryDesign(DesignResult):
    """A query for given keys.

    exact: whether queries come arbitrarily close to the target. Zero weights are only approached, because softmax is
    positive; `attained` tells whether a finite query reaches `best`.

    precision: exp(-KL(target, weights)) of this query. For a single key it is the weight on that key, for an average
    with the right shares the total weight on its keys, and 1 if weights and target are equal.

    best: the supremum of the precision over all queries; 1 if exact.
    """

    kind = "answer"

    question: str
    keys: KeyMatrix
    target: PerKeyVector
    query: Vector
    weights: PerKeyVector
    exact: bool
    reason: str
    precision: float
    best: float
    attained: bool
    """whether a finite query reaches `best`; otherwise queries of growing norm approach it"""
    norm: float
    """Euclidean norm of the query"""
    norm_at_least: float
    """lower bound on the norm of any query with this precision (by duality, up to rounding)"""
    face: tuple[int, ...]
    """indices of the keys on the smallest face that contains the target keys"""
    margin: float | None
    """distance between the face and the convex hull of the other keys"""
    direction: Vector | None
    """adding multiples of this to the query increases the precision; None if the query attains the best"""
    certificate: PerKeyVector | None
    """proof if not exact: coefficients a with sum(a) = 0 and a @ keys = 0, so a @ log(weights) = 0 for every query,
    which the target violates"""
    tolerance: float
    """points closer than this count as equal"""
    values: KeyMatrix | None = None
    output: Vector | None = None
    """weights @ values"""
    wanted: Vector | None = None
    """target @ values"""


@dataclass(frozen=True, eq=False, repr=False)
class QueryMatrixDesign(DesignResult):
    """A query matrix whose row i puts its weight on key i, so softmax(query @ keys.T) approximates the identity."""

    kind = "identity"

    question: str
    keys: KeyMatrix
    target: KeyMatrix
    query: KeyMatrix
    weights: KeyMatrix
    exact: bool
    reason: str
    precision: float
    """minimum over the rows"""
    best: float
    attained: bool
    norm: float
    """largest norm of a row"""
    rows: tuple[QueryDesign, ...]
    tolerance: float
    values: KeyMatrix | None = None
    output: KeyMatrix | None = None
    wanted: KeyMatrix | None = None


@dataclass(frozen=True, eq=False, repr=False)
class KeyReplacement(DesignResult):
    """A replacement for one key, for a fixed query.

    `exact`, `precision`, `best` and `attained` are as for a query, over all keys that could replace the old one. The
    ratios of the other keys' weights depend on the query only; no replacement changes them.
    """

    kind = "replacement"

    question: str
    keys: KeyMatrix
    """keys after the replacement"""
    old: KeyMatrix
    at: int
    target: PerKeyVector
    query: Vector
    key: Vector
    weights: PerKeyVector
    exact: bool
    reason: str
    precision: float
    best: float
    attained: bool
    norm: float
    """norm of the new key"""
    length: float | None
    """norm that was required, or None"""
    moved: float
    """distance between the old and the new key"""
    scale: float | None
    """factor closest to 1 by which to scale the query so that some key reaches the precision; None if none does"""
    tolerance: float
    values: KeyMatrix | None = None
    output: Vector | None = None
    wanted: Vector | None = None
