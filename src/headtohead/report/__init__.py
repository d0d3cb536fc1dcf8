"""Experiment reports: HTML page, terminal, Markdown, CSV, LaTeX, charts and notebooks. Does not import torch.

sections/      one module per family of sections; each builder returns a `Section` of text, tables and charts
context        the input to the section builders
forest, curve_charts, fit_chart, paired_chart, axis_chart    the charts
page, documents, notebook, terminal    the renderers
export         writes a report to disk
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headtohead.experiment.schemas import Findings


def write(
    folder: Path,
    formats: Sequence[str] = ("html",),
    out: Path | None = None,
    *,
    findings: Findings | None = None,
    is_full: bool = False,
    text_file: Path | None = None,
) -> list[Path]:
    """Write the report for an experiment folder and return the files written; see `report.export.write_report`."""
    from headtohead.report.export import write_report

    return write_report(folder, formats, out, findings=findings, is_full=is_full, text_file=text_file)


__all__ = ["write"]
