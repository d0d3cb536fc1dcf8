"""Interactive attention page as one self-contained HTML file.

Maps are PNG images that carry the weights, which the script reads, so nothing is embedded twice and all maps are
visible without JavaScript. jinja2 or the script escapes all text from users and models; a content security policy
forbids requests and foreign scripts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from markupsafe import Markup

from headtohead.attention_analysis.pictures import (
    AttentionFigure,
    AttentionPanel,
    RenderedHeads,
    ResultRow,
    choose_legend_ticks,
    describe_head,
    render_heads,
    truncate_label,
)
from headtohead.presentation.html import encode_script_json, render_document
from headtohead.presentation.png import build_data_uri

CHECK_STATES = {True: "passed", False: "failed", None: "does not apply"}
MEASURE_COLUMNS = {
    "entropy": ("entropy", "bits", 2),
    "distance": ("distance", "tokens", 2),
    "first": ("on first token", "%", 1),
    "itself": ("on itself", "%", 1),
    "previous": ("on previous token", "%", 1),
    "padding": ("on padding", "%", 1),
    "induction": ("induction", "%", 1),
    "control": ("control", "%", 1),
    "rise": ("loss increase", "nats", 3),
}
"""metric: title, unit, decimals"""


def render_page(figure: AttentionFigure) -> str:
    """Return the HTML page."""
    return _render("attention_page.html", figure)


def render_fragment(figure: AttentionFigure) -> str:
    """Return a fragment for another page, such as a notebook."""
    return _render("attention_fragment.html", figure)


def render_body(figure: AttentionFigure) -> str:
    """Return text, maps and metrics for a page that already has our style and script."""
    return _render("attention_inner.html", figure)


def _render(template: str, figure: AttentionFigure) -> str:
    variables = _build_template_context(figure)
    return render_document(template, extra_styles=["attention.css"], script="attention.js", **variables)


def _build_template_context(figure: AttentionFigure) -> dict[str, Any]:
    """Return the template variables."""
    rendered = render_heads(figure)
    return {
        "data": Markup(encode_script_json(_build_script_data(figure, rendered))),
        "title": figure.title,
        "text": figure.text,
        "notes": figure.notes,
        "tokens": [
            {"text": truncate_label(token, 40), "real": bool(real)} for token, real in _pair_tokens_with_mask(figure)
        ],
        "length": int(figure.real.sum()),
        "kept": round(100 * float(figure.real.mean()), 3),
        "panels": [_build_panel(panel, index, figure, rendered) for index, panel in enumerate(figure.panels)],
        "signed": any(panel.is_difference for panel in figure.panels),
        "ramp": [
            (f"{tick:g}", round(100 * tick**rendered.scale.power, 1))
            for tick in choose_legend_ticks(rendered.scale.power)
        ],
        "power": f"{rendered.scale.power:.2f}".rstrip("0"),
        "pool": rendered.scale.pool,
        "precision": f"{rendered.scale.precision:.1g}",
        "checks": [
            {"title": title, "rows": [_build_check_row(row) for row in rows]} for title, rows in figure.checks.items()
        ],
        "tables": [_build_measures_table(title, rows) for title, rows in figure.measures.items() if rows],
    }


def _pair_tokens_with_mask(figure: AttentionFigure) -> Sequence[tuple[str, bool]]:
    return list(zip(figure.tokens, figure.real, strict=True))


def _build_script_data(figure: AttentionFigure, rendered: RenderedHeads) -> dict[str, Any]:
    """Return the data for the script besides the images."""
    return {
        "tokens": list(figure.tokens),
        "real": int(figure.real.sum()),
        "power": rendered.scale.power,
        "pool": rendered.scale.pool,
        "panels": [{"title": panel.title, "signed": panel.is_difference} for panel in figure.panels],
    }


def _build_panel(panel: AttentionPanel, index: int, figure: AttentionFigure, rendered: RenderedHeads) -> dict[str, Any]:
    measured = {(row["layer"], row["head"]): row for row in figure.measures.get(panel.title, ())}
    layers = []
    for row, layer in enumerate(panel.layer_numbers):
        heads = []
        for column, head in enumerate(panel.head_numbers):
            measures = measured.get((layer, head), {"layer": layer, "head": head})
            heads.append(
                {
                    "number": head,
                    "words": describe_head(measures),
                    "uri": build_data_uri(rendered.heads[index, row, column]),
                }
            )
        layers.append({"number": layer, "heads": heads})
    return {"title": panel.title, "signed": panel.is_difference, "layers": layers, "heads": panel.head_numbers}


def _build_check_row(row: ResultRow) -> dict[str, Any]:
    return {**row, "state": CHECK_STATES[row["passed"]]}


def _build_measures_table(title: str, rows: Sequence[ResultRow]) -> dict[str, Any]:
    """Return the metrics of a panel; cells are shaded by their rank within the column range."""
    names = select_columns(rows)
    ranges = {name: _compute_value_range(row.get(name) for row in rows) for name in names}
    table_rows = [
        {
            "layer": row["layer"],
            "head": row["head"],
            "cells": [
                (format_measure(name, row.get(name)), _compute_shade(row.get(name), ranges[name])) for name in names
            ],
        }
        for row in rows
    ]
    titles = [f"{MEASURE_COLUMNS[name][0]}, {MEASURE_COLUMNS[name][1]}" for name in names]
    return {"title": title, "columns": titles, "rows": table_rows}


def _compute_value_range(values: Iterable[float | None]) -> tuple[float, float]:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else (0.0, 0.0)


def _compute_shade(value: float | None, value_range: tuple[float, float]) -> str:
    low, high = value_range
    return "0" if value is None or high <= low else f"{(value - low) / (high - low):.3f}"


def select_columns(rows: Sequence[ResultRow]) -> list[str]:
    """Return the metrics with values; padding only if there is some."""
    known = [name for name in MEASURE_COLUMNS if any(row.get(name) is not None for row in rows)]
    return [name for name in known if name != "padding" or any(row["padding"] for row in rows)]


def format_measure(measure: str, value: float | None) -> str:
    """Format a metric without its unit."""
    if value is None:
        return "–"
    _, unit, places = MEASURE_COLUMNS[measure]
    text = f"{value * (100 if unit == '%' else 1):.{places}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text.replace("-", "−")
