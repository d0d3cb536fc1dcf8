"""Design by hand, the door from Python: queries and keys that make attention do what is wanted. Needs no torch.

>>> from headtohead import design
>>> found = design.select([[1, 0], [0, 1], [-1, -1]], 0)
>>> found.exact, round(found.precision, 3)
(True, 0.999)
>>> design.select([[1, 0], [0, 1], [0.5, 0.5]], 2).exact
False
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from headtohead.key_design.guided_tour import Tour, tour
from headtohead.key_design.inputs import read
from headtohead.key_design.key_replacement import replace_key
from headtohead.key_design.solutions import Answer, Identity, Replacement, Shown
from headtohead.key_design.solve import PRECISION, TOLERANCE, average, identity, select, weights

if TYPE_CHECKING:
    from headtohead.report.notebook import ShownChart

__all__ = [
    "PRECISION",
    "TOLERANCE",
    "Answer",
    "Identity",
    "Replacement",
    "Tour",
    "average",
    "draw",
    "identity",
    "read",
    "replace_key",
    "select",
    "tour",
    "weights",
]


def draw(found: Shown, path: str | Path | None = None) -> ShownChart:
    """A picture of an answer, which a notebook shows; with a path it is written there too (.html, .svg, .pdf, .png)."""
    from headtohead.key_design.views.page import save  # altair takes a second to import
    from headtohead.key_design.views.picture import picture
    from headtohead.report.notebook import ShownChart

    row = found.as_row()
    if path is not None:
        save(row, Path(path))
    return ShownChart(picture(row))
