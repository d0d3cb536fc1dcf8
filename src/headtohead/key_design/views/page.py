"""Save key-design solutions as a self-contained HTML page or as a picture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from headtohead.key_design.views.chart import build_solution_chart
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
from headtohead.presentation.renderers.html import encode_script_json, render_chart, render_html_template


def save_result(result: ResultDict, path: Path) -> None:
    """Save a solution or the walkthrough as a page (.html) or a picture (.svg, .pdf, .png)."""
    save_picture(path, partial(_render_file_format, result))


def _render_file_format(result: ResultDict, file_format: str) -> str | bytes:
    return render_page(result) if file_format == "html" else build_solution_chart(result).render(file_format)


def render_page(result: ResultDict) -> str:
    """Return the HTML page for a solution or the walkthrough."""
    steps = (
        result["steps"]
        if result["kind"] == "tour"
        else [{"question": None, "solution": result, "published": None, "limits": []}]
    )
    return render_html_template(
        "design.html",
        title="Design questions of a course report" if result["kind"] == "tour" else format_heading(result),
        lead=result["reason"],
        steps=[_build_step_variables(step) for step in steps],
        data=Markup(encode_script_json(result)),
    )


def _build_step_variables(step: dict[str, Any]) -> dict[str, Any]:
    """Return the template variables of one solution on the page, in the walkthrough with the published answer."""
    solution, published = step["solution"], step["published"]
    chart = build_solution_chart(solution, has_title=False, published_weights=published and published["weights"])
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
