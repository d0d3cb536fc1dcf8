"""What people see: tables in the terminal, charts, and a page. Reads run folders; needs no torch.

figures     numbers as people read them
reading     what the findings say, in the shapes that charts and tables want
style       colours, shapes and dashes, by day and by night
charts      every chart, as altair describes it
tables      every table, made once;  formats  shows them as Markdown, CSV and LaTeX
images      attention maps as small pictures
attention_  attention by itself: pictures, an interactive page, SVG; and what each head does, for the report
page        the report as one HTML file;  notebook  the same inside a notebook
writing     all of it on disk, in the formats that were asked for
terminal    tables and live progress in the terminal
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def write(folder: Path, formats: Sequence[str] = ("html",), out: Path | None = None) -> list[Path]:
    """Write the report of an experiment's folder in these formats; see `report.writing.write`."""
    from headtohead.report.export import write_report

    return write_report(folder, formats, out)


__all__ = ["write"]
