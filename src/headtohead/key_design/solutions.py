"""Solutions of key-design problems: the query or key, the attention weights it produces, whether it is exact, and why.

`to_dict` returns the same data as JSON values, which charts, tables and `--json` use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

import numpy as np

from headtohead.key_design.convex_solvers import KeyMatrix, PerKeyVector, Vector, logsumexp


def compute_precision(target: PerKeyVector, scores: PerKeyVector) -> float:
    """Return the precision of a solution, given its scores: exp(-KL(target, softmax(scores))), which is 1 if equal."""
    is_target_key = target > 0
    # Long queries have large scores; only their differences retain full precision.
    shifted_scores = scores - scores.max()
    log_weights = (shifted_scores - logsumexp(shifted_scores))[is_target_key]
    return math.exp(-max(0.0, float(target[is_target_key] @ (np.log(target[is_target_key]) - log_weights))))


def _convert_to_json(value: Any) -> Any:
    """Convert a solution's arrays and tuples to lists, and its data classes to dicts."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, tuple):
        return [_convert_to_json(item) for item in value]
    if isinstance(value, DesignResult):
        return value.to_dict()
    if is_dataclass(value):
        return {field.name: _convert_to_json(getattr(value, field.name)) for field in fields(value)}
    return value


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class DesignResult:
    """Base class of key-design results: solutions to single problems, and the walkthrough."""

    kind: ClassVar[str]
    question: str
    keys: KeyMatrix
    exact: bool
    reason: str
    precision: float

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON values, with arrays converted to lists."""
        field_values = {field.name: _convert_to_json(getattr(self, field.name)) for field in fields(self)}
        return {"kind": self.kind, **field_values}

    def __repr__(self) -> str:
        return f"<{self.question}: {'exact' if self.exact else 'not exact'}. {self.reason}>"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttentionDesign(DesignResult):
    """Base class of solutions to a single problem.

    exact: whether queries come arbitrarily close to the target. Zero weights are only approached, because softmax is
    positive; `attained` states whether a finite query reaches `best`.

    precision: exp(-KL(target, weights)). For a single key it is the weight on that key, for an average with the right
    shares the total weight on its keys, and 1 if weights and target are equal.

    best: the supremum of the precision over all queries; 1 if exact.
    """

    target: PerKeyVector | KeyMatrix
    query: Vector | KeyMatrix
    weights: PerKeyVector | KeyMatrix
    best: float
    attained: bool
    """whether a finite query reaches `best`; otherwise queries of growing norm approach it"""
    norm: float
    """Euclidean norm of the query, the longest row of a query matrix, or the new key"""
    tolerance: float
    """points closer than this are considered equal"""
    values: KeyMatrix | None = None

    @property
    def output(self) -> Vector | KeyMatrix | None:
        """The attention output: weights @ values."""
        return None if self.values is None else self.weights @ self.values

    @property
    def wanted(self) -> Vector | KeyMatrix | None:
        """The output that the target weights would give: target @ values."""
        return None if self.values is None else self.target @ self.values

    def to_dict(self) -> dict[str, Any]:
        outputs = {"output": _convert_to_json(self.output), "wanted": _convert_to_json(self.wanted)}
        return super().to_dict() | outputs


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class QueryDesign(AttentionDesign):
    """A query for given keys."""

    kind = "answer"
    norm_at_least: float
    """a lower bound on the norm of any query with this precision (by duality, up to rounding)"""
    face: tuple[int, ...]
    """indices of the keys on the smallest face that contains the target keys"""
    margin: float | None
    """distance between the face and the convex hull of the other keys"""
    direction: Vector | None
    """adding multiples of this to the query increases the precision; None if the query attains the best"""
    certificate: PerKeyVector | None
    """proof if not exact: coefficients a with sum(a) = 0 and a @ keys = 0, so a @ log(weights) = 0 for every query,
    which the target violates"""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class QueryMatrixDesign(AttentionDesign):
    """A query matrix whose row i puts its weight on key i, so softmax(query @ keys.T) approximates the identity.

    `precision` is the minimum over the rows.
    """

    kind = "identity"
    rows: tuple[QueryDesign, ...]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class KeyReplacement(AttentionDesign):
    """A replacement for one key, for a fixed query. `keys` includes the new key.

    `exact`, `precision`, `best` and `attained` are defined as for a query, but over all keys that could replace the old
    one. The ratios of the other keys' weights depend only on the query, so no replacement changes them.
    """

    kind = "replacement"
    old: KeyMatrix
    """all keys before the replacement"""
    at: int
    """index of the replaced key"""
    key: Vector
    """the new key"""
    length: float | None
    """norm that was required of the new key, or None"""
    moved: float
    """distance between the old and the new key"""
    scale: float | None
    """factor closest to 1 by which to scale the query so that some key reaches the precision; None if none does"""
