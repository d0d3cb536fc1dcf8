"""What design by hand answers: frozen objects with the query or key, the weights it yields, whether that is exact, and
why. `as_row` gives the same as plain data, which is what pictures, tables and `--json` are made from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from headtohead.key_design.solvers import KeyMatrix, PerKeyVector, Vector


class DesignResult:
    """An answer as plain data."""

    question: str
    exact: bool
    reason: str
    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """All fields, arrays as lists: ready for JSON."""
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
        return [_convert_to_json(one) for one in value]
    return value


@dataclass(frozen=True, eq=False, repr=False)
class QueryDesign(DesignResult):
    """A query for given keys.

    exact       whether queries come as near to the target as one likes. Weights that are 0 on some key are only
                approached: softmax gives no key nothing. `attained` says whether this is such a limit
    precision   what this query reaches: exp(-KL(target, weights)), which for a single key is the weight on it, for an
                average that keeps its shares the weight on all of its keys, and 1 where weights and target are equal
    best        the highest precision that any query reaches, or comes near to; 1 if exact
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
    """whether a finite query reaches `best`; if not, longer and longer ones come near"""
    norm: float
    """the length of the query"""
    norm_at_least: float
    """no query does the same with less than this length (proven by duality, up to rounding)"""
    face: tuple[int, ...]
    """the keys that can share the weight with those that were asked for"""
    margin: float | None
    """how far the face stands out from the hull of the other keys"""
    direction: Vector | None
    """add more and more of this to the query to come nearer; none where the query itself attains the best"""
    certificate: PerKeyVector | None
    """if not exact, the proof: coefficients a with sum(a) = 0 and a @ keys = 0. So a @ log(weights) = 0 for every
    query, while for the target the same sum is not 0 (or infinite)"""
    tolerance: float
    """keys nearer to each other, or to the hull of others, than this count as touching"""
    values: KeyMatrix | None = None
    output: Vector | None = None
    """weights @ values"""
    wanted: Vector | None = None
    """target @ values"""


@dataclass(frozen=True, eq=False, repr=False)
class QueryMatrixDesign(DesignResult):
    """A query matrix: row i puts its weight on key i, so that softmax(query @ keys.T) is near the identity."""

    kind = "identity"

    question: str
    keys: KeyMatrix
    target: KeyMatrix
    query: KeyMatrix
    weights: KeyMatrix
    exact: bool
    reason: str
    precision: float
    """the lowest of the rows'"""
    best: float
    attained: bool
    norm: float
    """the length of the longest row"""
    rows: tuple[QueryDesign, ...]
    tolerance: float
    values: KeyMatrix | None = None
    output: KeyMatrix | None = None
    wanted: KeyMatrix | None = None


@dataclass(frozen=True, eq=False, repr=False)
class KeyReplacement(DesignResult):
    """A new key in the place of one, for a query that stays.

    `exact`, `precision`, `best` and `attained` as for a query, here over all keys that may stand in that place. The
    other keys' shares among themselves are the query's and no new key changes them.
    """

    kind = "replacement"

    question: str
    keys: KeyMatrix
    """with the new key in its place"""
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
    """the length of the new key"""
    length: float | None
    """the length that was asked for"""
    moved: float
    """the distance between the old key and the new one"""
    scale: float | None
    """the factor nearest to 1 by which to multiply the query so that the wanted precision is reached; none if no factor
    does"""
    tolerance: float
    values: KeyMatrix | None = None
    output: Vector | None = None
    wanted: Vector | None = None
