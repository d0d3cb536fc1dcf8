"""Present findings as a report: HTML page, terminal, Markdown, CSV, LaTeX, charts and notebooks. Imports no torch.

sections                   one module per topic; each builder returns a `Section` of text, tables and charts
charts                     the charts, each built from findings
introduction               the paragraph and the warnings above the sections
sweep_sentences            sentences on a sweep, for sections and terminal
context                    the input to the builders of sections and introduction
page, documents, notebook  the whole report as HTML, as one document (Markdown, LaTeX, PDF), and in notebooks
terminal, plan_terminal    what `h2h run`, `h2h versus` and `h2h plan` print
export                     writes a report to disk
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
