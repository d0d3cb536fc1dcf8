"""File names, formats and chart images of exported reports."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, get_args

from headtohead.errors import RequestError, suggest
from headtohead.presentation.chart import Chart

DOCUMENT_SUFFIXES = {"html": ".html", "md": ".md"}


def check_formats(formats: Sequence[str]) -> None:
    """Every format that does not exist, at once."""
    unknown = [one for one in formats if one not in REPORT_FORMATS]
    if unknown or not formats:
        given = ", ".join(map(repr, unknown)) or "none"
        near = suggest(unknown[0], REPORT_FORMATS) if unknown else None
        hint = f"; did you mean {near!r}?" if near else ""
        raise RequestError(f"format: {given} given{hint}; allowed: {', '.join(REPORT_FORMATS)}")


def _render_chart_image(chart: Chart, image_format: str) -> bytes:
    if image_format == "svg":
        return chart.svg(background="white").encode()
    return chart.to_pdf() if image_format == "pdf" else chart.to_png()


def _sanitize_file_name(name: str) -> str:
    """A name that every file system takes: a confusion table is called after its variant."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "table"


ReportFormat = Literal["html", "md", "csv", "latex", "svg", "pdf", "png"]


REPORT_FORMATS: tuple[str, ...] = get_args(ReportFormat)
