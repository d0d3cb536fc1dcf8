"""Design attention by hand: find queries and keys that produce the desired attention weights. Imports no torch.

>>> from headtohead import key_design
>>> solution = key_design.find_selecting_query([[1, 0], [0, 1], [-1, -1]], 0)
>>> solution.exact, round(solution.precision, 3)
(True, 0.999)
>>> key_design.find_selecting_query([[1, 0], [0, 1], [0.5, 0.5]], 2).exact
False
"""

from __future__ import annotations

from headtohead.key_design.inputs import read_matrix
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.query_design import (
    DEFAULT_PRECISION,
    DEFAULT_TOLERANCE,
    find_averaging_query,
    find_identity_queries,
    find_query_for_weights,
    find_selecting_query,
)
from headtohead.key_design.solutions import KeyReplacement, QueryDesign, QueryMatrixDesign
from headtohead.key_design.views.notebook import draw_result
from headtohead.key_design.walkthrough import Walkthrough, build_walkthrough

__all__ = [
    "DEFAULT_PRECISION",
    "DEFAULT_TOLERANCE",
    "KeyReplacement",
    "QueryDesign",
    "QueryMatrixDesign",
    "Walkthrough",
    "build_walkthrough",
    "draw_result",
    "find_averaging_query",
    "find_identity_queries",
    "find_query_for_weights",
    "find_selecting_query",
    "read_matrix",
    "replace_key",
]
