"""Save key-design solutions as a self-contained HTML page or as a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.key_design.views.picture import build_chart
from headtohead.key_design.views.summary import (
    ResultDict,
    build_keys_table,
    build_summary,
    format_heading,
    format_legend,
    format_outcome,
    format_weight,
)
from headtohead.presentation.picture_files import save_picture
from headtohead.presentation.renderers.html import encode_script_json, render_chart, render_document


def save_result(result: ResultDict, path: Path) -> None:
    """Save a solution or the walkthrough as a page (.html) or a picture (.svg, .pdf, .png)."""
    save_picture(path, lambda name: render_page(result) if name == "html" else build_chart(result).render(name))


def render_page(result: ResultDict) -> str:
    """Return the HTML page for a solution or the walkthrough."""
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
    """Return the template variables for one step of the walkthrough."""
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
