"""The interactive attention page, as one self-contained HTML file.

Maps are PNG images that carry the weights, which the script reads, so nothing is embedded twice and all maps are
visible without JavaScript. All text from users and models is escaped, either by jinja2 or by the script; a content
security policy forbids requests and third-party scripts.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from headtohead.attention_analysis.figure import AttentionFigure, FigureImages, render_figure_images
from headtohead.attention_analysis.head_tables import build_head_metrics_table
from headtohead.attention_analysis.map_images import choose_legend_ticks, format_mean_weights, truncate_label
from headtohead.experiment.schemas import HeadMeasures
from headtohead.presentation.renderers.html import encode_script_json, render_html_template
from headtohead.presentation.renderers.png import build_data_uri
from headtohead.presentation.table import Table

CHECK_STATES = {True: "passed", False: "failed", None: "does not apply"}


def render_page(figure: AttentionFigure) -> str:
    """Return the attention page of a figure as an HTML document."""
    return _render_template("attention_page.html", figure)


def render_fragment(figure: AttentionFigure) -> str:
    """Return a fragment to embed in another page, such as a notebook."""
    return _render_template("attention_fragment.html", figure)


def render_body(figure: AttentionFigure) -> str:
    """Return the text, maps and metrics for a page that already has our style and script."""
    return _render_template("attention_inner.html", figure)


def _render_template(template: str, figure: AttentionFigure) -> str:
    """Render one of the attention page's jinja2 templates with its style and script."""
    variables = _build_template_variables(figure)
    return render_html_template(template, extra_styles=["attention.css"], script="attention.js", **variables)


def _build_template_variables(figure: AttentionFigure) -> dict[str, Any]:
    """Return the variables of the attention page's templates."""
    images = render_figure_images(figure)
    scale = images.scale
    script_data = {
        "tokens": list(figure.tokens),
        "real": int(figure.attention_mask.sum()),
        "power": scale.exponent,
        "pool": scale.pool_size,
        "panels": [{"title": panel.name, "signed": panel.is_difference} for panel in figure.panels],
    }
    return {
        "data": Markup(encode_script_json(script_data)),
        "title": figure.title,
        "text": figure.text,
        "notes": figure.notes,
        "tokens": [
            {"text": truncate_label(token, 40), "real": bool(is_unpadded)}
            for token, is_unpadded in zip(figure.tokens, figure.attention_mask, strict=True)
        ],
        "length": int(figure.attention_mask.sum()),
        "kept": round(100 * float(figure.attention_mask.mean()), 3),
        "panels": [_build_panel_variables(figure, index, images) for index in range(len(figure.panels))],
        "signed": figure.has_difference,
        "ramp": [(f"{tick:g}", round(100 * tick**scale.exponent, 1)) for tick in choose_legend_ticks(scale.exponent)],
        "power": f"{scale.exponent:.2f}".rstrip("0"),
        "pool": scale.pool_size,
        "precision": f"{scale.precision:.1g}",
        "checks": [
            {"title": name, "rows": [{**asdict(check), "state": CHECK_STATES[check.passed]} for check in checks]}
            for name, checks in figure.checks_by_panel.items()
        ],
        "tables": [
            add_shades(build_head_metrics_table(name, heads))
            for name, heads in figure.metrics_by_panel.items()
            if heads
        ],
    }


def _build_panel_variables(figure: AttentionFigure, panel_index: int, images: FigureImages) -> dict[str, Any]:
    """Return the variables of one model on the attention page: images and descriptions of its heads, by layer."""
    panel = figure.panels[panel_index]
    metrics_by_head = {(head.layer, head.head): head for head in figure.metrics_by_panel.get(panel.name, ())}
    layers = []
    for layer_index, layer in enumerate(panel.layer_numbers):
        heads = []
        for head_index, head in enumerate(panel.head_numbers):
            metrics = metrics_by_head.get((layer, head), HeadMeasures(layer=layer, head=head))
            data_uri = build_data_uri(images.png_by_head[panel_index, layer_index, head_index])
            heads.append({"number": head, "words": _describe_map(metrics), "uri": data_uri})
        layers.append({"number": layer, "heads": heads})
    return {"title": panel.name, "signed": panel.is_difference, "layers": layers, "heads": panel.head_numbers}


def _describe_map(metrics: HeadMeasures) -> str:
    """Return the text alternative of a head's image on the page, from the head's metrics."""
    title = f"Layer {metrics.layer}, head {metrics.head}"
    if metrics.first is None:
        return f"{title}."
    weights_by_position = {
        "the first token": metrics.first,
        "the token itself": metrics.itself,
        "the previous token": metrics.previous,
    }
    mean_weights = format_mean_weights(weights_by_position)
    return f"{title}. Mean weight: {mean_weights}; entropy {metrics.entropy or 0:.1f} bits."


def add_shades(table: Table) -> dict[str, Any]:
    """Return a table of head metrics for the attention page, with a shade for each cell."""
    shades_by_column = []
    for cells in list(zip(*table.rows, strict=True))[1:]:
        known_values = [cell.value for cell in cells if cell.value is not None]
        low, high = min(known_values), max(known_values)
        shades_by_column.append(
            [0 if cell.value is None or high <= low else (cell.value - low) / (high - low) for cell in cells]
        )
    shades = [[f"{shade:.3f}" for shade in row] for row in zip(*shades_by_column, strict=True)]
    return {"table": table, "shades": shades}
