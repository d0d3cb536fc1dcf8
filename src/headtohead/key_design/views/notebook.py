"""Show key-design solutions in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headtohead.key_design.solutions import DesignResult

if TYPE_CHECKING:
    from headtohead.presentation.renderers.notebook import NotebookChart


def draw_result(result: DesignResult, path: str | Path | None = None) -> NotebookChart:
    """Return a solution's chart, which displays itself in a notebook; with `path`, also save it.

    The file may be a page (.html) or a picture (.svg, .pdf or .png).
    """
    from headtohead.key_design.views.chart import build_solution_chart  # altair takes a second to import
    from headtohead.key_design.views.page import save_result
    from headtohead.presentation.renderers.notebook import NotebookChart

    result_dict = result.to_dict()
    if path is not None:
        save_result(result_dict, Path(path))
    return NotebookChart(build_solution_chart(result_dict))
