"""The interactive attention page, as one self-contained HTML file.

Maps are PNG images that carry the weights, which the script reads, so nothing is embedded twice and all maps are
visible without JavaScript. All text from users and models is escaped, either by jinja2 or by the script; a content
security policy forbids requests and third-party scripts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from headtohead.attention_analysis.figure import AttentionFigure, RenderedHeads, describe_head, render_heads
from headtohead.attention_analysis.head_tables import build_measures_table
from headtohead.attention_analysis.pictures import choose_legend_ticks, truncate_label
from headtohead.experiment.schemas import HeadMeasures
from headtohead.presentation.renderers.html import encode_script_json, render_document
from headtohead.presentation.renderers.png import build_data_uri
from headtohead.presentation.table import Table

CHECK_STATES = {True: "passed", False: "failed", None: "does not apply"}


def render_page(figure: AttentionFigure) -> str:
    """Return the HTML page."""
    return _render("attention_page.html", figure)


def render_fragment(figure: AttentionFigure) -> str:
    """Return a fragment to embed in another page, such as a notebook."""
    return _render("attention_fragment.html", figure)


def render_body(figure: AttentionFigure) -> str:
    """Return the text, maps and metrics for a page that already has our style and script."""
    return _render("attention_inner.html", figure)


def _render(template: str, figure: AttentionFigure) -> str:
    variables = _build_template_context(figure)
    return render_document(template, extra_styles=["attention.css"], script="attention.js", **variables)


def _build_template_context(figure: AttentionFigure) -> dict[str, Any]:
    """Return the template variables."""
    rendered = render_heads(figure)
    scale = rendered.scale
    script_data = {
        "tokens": list(figure.tokens),
        "real": int(figure.real.sum()),
        "power": scale.power,
        "pool": scale.pool,
        "panels": [{"title": panel.name, "signed": panel.is_difference} for panel in figure.panels],
    }
    return {
        "data": Markup(encode_script_json(script_data)),
        "title": figure.title,
        "text": figure.text,
        "notes": figure.notes,
        "tokens": [
            {"text": truncate_label(token, 40), "real": bool(real)}
            for token, real in zip(figure.tokens, figure.real, strict=True)
        ],
        "length": int(figure.real.sum()),
        "kept": round(100 * float(figure.real.mean()), 3),
        "panels": [_build_panel(figure, index, rendered) for index in range(len(figure.panels))],
        "signed": figure.has_difference,
        "ramp": [(f"{tick:g}", round(100 * tick**scale.power, 1)) for tick in choose_legend_ticks(scale.power)],
        "power": f"{scale.power:.2f}".rstrip("0"),
        "pool": scale.pool,
        "precision": f"{scale.precision:.1g}",
        "checks": [
            {"title": name, "rows": [{**asdict(check), "state": CHECK_STATES[check.passed]} for check in checks]}
            for name, checks in figure.checks_by_panel.items()
        ],
        "tables": [
            add_shades(build_measures_table(name, heads)) for name, heads in figure.measures_by_panel.items() if heads
        ],
    }


def _build_panel(figure: AttentionFigure, index: int, rendered: RenderedHeads) -> dict[str, Any]:
    """Return one model's template variables: images and descriptions of its heads, by layer."""
    panel = figure.panels[index]
    measured = {(head.layer, head.head): head for head in figure.measures_by_panel.get(panel.name, ())}
    layers = []
    for row, layer in enumerate(panel.layer_numbers):
        heads = []
        for column, head in enumerate(panel.head_numbers):
            description = describe_head(measured.get((layer, head), HeadMeasures(layer=layer, head=head)))
            uri = build_data_uri(rendered.heads[index, row, column])
            heads.append({"number": head, "words": description, "uri": uri})
        layers.append({"number": layer, "heads": heads})
    return {"title": panel.name, "signed": panel.is_difference, "layers": layers, "heads": panel.head_numbers}


def add_shades(table: Table) -> dict[str, Any]:
    """Return an attention page table with each metric's shade: its position in its column's range, from 0 to 1."""
    columns = []
    for cells in list(zip(*table.rows, strict=True))[1:]:
        known_values = [cell.value for cell in cells if cell.value is not None]
        low, high = min(known_values), max(known_values)
        columns.append(
            [0 if cell.value is None or high <= low else (cell.value - low) / (high - low) for cell in cells]
        )
    shades = [[f"{shade:.3f}" for shade in row] for row in zip(*columns, strict=True)]
    return {"table": table, "shades": shades}
