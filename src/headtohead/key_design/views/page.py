"""Save key-design solutions as a self-contained HTML page or as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.atomic_io import write_bytes
from headtohead.errors import RequestError
from headtohead.key_design.views.facts import (
    ResultDict,
    build_keys_table,
    build_summary,
    format_heading,
    format_legend,
    format_outcome,
    format_weight,
)
from headtohead.key_design.views.picture import build_chart
from headtohead.presentation.html import encode_script_json, render_chart, render_document

SUPPORTED_SUFFIXES = (".html", ".svg", ".pdf", ".png")


def check_output_path(path: Path) -> None:
    """Raise an error if the path cannot be written."""
    if path.suffix.lower() not in SUPPORTED_SUFFIXES:
        raise RequestError(
            f"{path}: unsupported file extension {path.suffix!r}; allowed: {', '.join(SUPPORTED_SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise RequestError(f"{path}: no such folder: {path.parent}")


def save_result(result: ResultDict, path: Path) -> None:
    """Save a solution or the walkthrough as a page (.html) or a picture (.svg, .pdf, .png)."""
    check_output_path(path)
    makers: dict[str, Callable[[], bytes]] = {
        ".html": lambda: render_page(result).encode(),
        ".svg": lambda: build_chart(result).to_svg(background="white").encode(),
        ".pdf": lambda: build_chart(result).to_pdf(),
        ".png": lambda: build_chart(result).to_png(),
    }
    write_bytes(path, makers[path.suffix.lower()]())


def render_page(result: ResultDict) -> str:
    """Return the HTML page of a solution or the walkthrough."""
    steps = (
        result["steps"]
        if result["kind"] == "tour"
        else [{"question": None, "solution": result, "published": None, "limits": []}]
    )
    return render_document(
        "design.html",
        title="Design questions of a course report" if result["kind"] == "tour" else format_heading(result),
        lead=result["reason"],
        steps=[_build_section(step) for step in steps],
        data=Markup(encode_script_json(result)),
    )


def _build_section(step: dict[str, Any]) -> dict[str, Any]:
    solution, published = step["solution"], step["published"]
    chart = build_chart(solution, has_title=False, published_weights=published and published["weights"])
    return {
        "question": step["question"],
        "outcome": format_outcome(solution),
        "reason": solution["reason"],
        "chart": render_chart(chart),
        "legend": format_legend(solution) + (" Orange rings: the report's weights." if published else ""),
        "table": build_keys_table(solution, published),
        "facts": build_summary(solution),
        "published": published and f"{published['description']} Precision {format_weight(published['precision'])}.",
        "limits": step["limits"],
    }
