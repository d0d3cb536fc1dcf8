"""Design attention by hand: find queries and keys that produce the desired attention weights. Imports no torch.

>>> from headtohead import key_design
>>> solution = key_design.find_selecting_query([[1, 0], [0, 1], [-1, -1]], 0)
>>> solution.exact, round(solution.precision, 3)
(True, 0.999)
>>> key_design.find_selecting_query([[1, 0], [0, 1], [0.5, 0.5]], 2).exact
False
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headtohead.key_design.guided_tour import Walkthrough, build_walkthrough
from headtohead.key_design.inputs import read_matrix
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.solutions import DesignResult, KeyReplacement, QueryDesign, QueryMatrixDesign
from headtohead.key_design.solve import (
    DEFAULT_PRECISION,
    DEFAULT_TOLERANCE,
    find_averaging_query,
    find_identity_queries,
    find_query_for_weights,
    find_selecting_query,
)

if TYPE_CHECKING:
    from headtohead.presentation.renderers.notebook import NotebookChart

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


def draw_result(result: DesignResult, path: str | Path | None = None) -> NotebookChart:
    """Return a chart that displays itself in a notebook; with `path`, also save it (.html, .svg, .pdf or .png)."""
    from headtohead.key_design.views.page import save_result  # altair takes a second to import
    from headtohead.key_design.views.picture import build_chart
    from headtohead.presentation.renderers.notebook import NotebookChart

    row = result.to_dict()
    if path is not None:
        save_result(row, Path(path))
    return NotebookChart(build_chart(row))
