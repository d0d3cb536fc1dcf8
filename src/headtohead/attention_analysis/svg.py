"""Static attention figures: SVG with text around embedded images, and PDF and PNG rendered from it offline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path

from headtohead.attention_analysis import page
from headtohead.attention_analysis.figure import AttentionFigure, RenderedHeads, render_heads
from headtohead.attention_analysis.pictures import (
    NEGATIVE_COLOR,
    POSITIVE_COLOR,
    choose_legend_ticks,
    truncate_label,
)
from headtohead.presentation import chart_renderer, style
from headtohead.presentation.picture_files import save_picture
from headtohead.presentation.renderers.png import build_data_uri

MARGIN, GAP = 18, 14
TARGET_WIDTH = 880
"""approximate width of all maps together"""
MAX_SINGLE_MAP_SIDE, MIN_MAP_SIDE = 560, 56
"""side of a single map, and smallest side of one of many"""
MIN_LABEL_SPACING = 8.5
"""minimum pixels between token labels"""
CHARACTER_WIDTH_RATIO = 0.5
"""mean character width relative to the font size"""


@dataclass
class SvgCanvas:
    """A minimal SVG builder that tracks its size; altair cannot embed images of this kind with text labels."""

    width: float = 0
    height: float = 0
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, *, size: float = 11, color: str = style.TEXT_COLOR, **extra: str
    ) -> None:
        """Add a line of text and grow the canvas to contain it. `extra` holds further SVG attributes."""
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in extra.items())
        position = f' x="{x:.1f}" y="{y:.1f}"' if "transform" not in extra else ""
        self.parts.append(f'<text{position} font-size="{size:g}" fill="{color}"{attributes}>{escape(text)}</text>')
        if "transform" not in extra and extra.get("text_anchor") != "end":
            half = extra.get("text_anchor") == "middle"
            self.grow(x + len(text) * size * CHARACTER_WIDTH_RATIO / (2 if half else 1), y + 4)

    def add_rect(self, x: float, y: float, width: float, height: float, **extra: str) -> None:
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in extra.items())
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{attributes}/>')
        self.grow(x + width, y + height)

    def add_image(self, x: float, y: float, side: float, png_bytes: bytes, alt_text: str) -> None:
        """Add a square PNG image with a text alternative."""
        self.parts.append(
            f'<image x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" preserveAspectRatio="none" '
            f'style="image-rendering: pixelated" href="{build_data_uri(png_bytes)}">'
            f"<title>{escape(alt_text)}</title></image>"
        )

    def grow(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def svg(self, title: str, background: str) -> str:
        """Return the SVG document."""
        width, height = math.ceil(self.width + MARGIN), math.ceil(self.height + MARGIN)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" font-family="{style.FONT_FAMILY}"><title>{escape(title)}</title>'
            f'<rect width="{width}" height="{height}" fill="{background}"/>{"".join(self.parts)}</svg>'
        )


@dataclass(frozen=True)
class MapGrid:
    """The layout of a panel's maps."""

    map_side: float
    has_token_labels: bool
    row_label_width: float
    """width of the query labels"""
    top: float
    """height of the key labels"""
    names: float
    """width of the layer labels"""
    columns: int
    """maps per row: the heads of a layer, or as many as fit for a single layer"""

    @property
    def step(self) -> float:
        return self.map_side + GAP


def render_svg(figure: AttentionFigure, background: str = "white") -> str:
    """Return all layers and heads as small multiples. A single map is drawn large, with tokens on both axes."""
    length = len(figure.tokens)
    rendered = render_heads(figure, allow_16_bit=False, upscale_factor=max(1, 256 // length))
    canvas = SvgCanvas()
    panels_per_row = 1 if len(figure.panels) * len(figure.panels[0].head_numbers) > 12 else len(figure.panels)
    grid = _compute_grid(figure, panels_per_row)
    width = panels_per_row * (grid.names + grid.row_label_width + grid.columns * grid.step)
    y = _draw_header(canvas, figure, rendered, max(460, width))
    x: float = MARGIN
    bottom = y
    for index in range(len(figure.panels)):
        if index and index % panels_per_row == 0:
            x, y = MARGIN, bottom + 2 * GAP
        right, lower = _draw_panel(canvas, figure, rendered, index, grid, x, y)
        x, bottom = right + 2 * GAP, max(bottom, lower)
    return canvas.svg(f"{figure.title}: attention on {truncate_label(figure.text, 200)}", background)


def _draw_header(canvas: SvgCanvas, figure: AttentionFigure, rendered: RenderedHeads, width: float) -> float:
    """Draw the title, text, notes and legend; return the y position where the maps start."""
    canvas.text(
        MARGIN, 32, truncate_label(figure.title, int(width / 15 / CHARACTER_WIDTH_RATIO)), size=15, font_weight="600"
    )
    y = 50.0
    for line in (f"“{truncate_label(figure.text, 280)}”", *figure.notes, *_describe_pooling(rendered)):
        for wrapped_line in _wrap_line(line, int(width / 11 / CHARACTER_WIDTH_RATIO)):
            canvas.text(MARGIN, y, wrapped_line, color=style.MUTED_TEXT_COLOR)
            y += 15
    _draw_legend(canvas, y, rendered.scale.power, figure.has_difference)
    return y + 44


def _describe_pooling(rendered: RenderedHeads) -> list[str]:
    pool = rendered.scale.pool
    return [f"Each pixel shows the largest of {pool} × {pool} weights."] if pool > 1 else []


def _wrap_line(line: str, max_length: int) -> list[str]:
    """Wrap a line of SVG text between words into lines shorter than `max_length` characters."""
    lines = [""]
    for word in line.split():
        if len(lines[-1]) + len(word) >= max_length:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _draw_legend(canvas: SvgCanvas, y: float, exponent: float, is_difference: bool) -> None:
    """Draw the opacity scale."""
    for part, (name, rgb) in enumerate(
        [("weight", POSITIVE_COLOR)] + ([("difference", NEGATIVE_COLOR)] if is_difference else [])
    ):
        x, width = MARGIN + part * 330.0, 170.0
        color = f"rgb({','.join(map(str, rgb))})"
        canvas.text(x, y + 10, name, color=style.MUTED_TEXT_COLOR)
        left = x + 62
        if part == 0:
            stops: list[tuple[float, str, int]] = [(0, color, 0), (1, color, 1)]
            ticks = [(weight**exponent, weight) for weight in choose_legend_ticks(exponent)]
        else:
            positive_color = f"rgb({','.join(map(str, POSITIVE_COLOR))})"
            stops = [(0, color, 1), (0.5, color, 0), (0.5, positive_color, 0), (1, positive_color, 1)]
            signs = [
                (math.copysign(abs(weight) ** exponent, weight), weight)
                for weight in choose_legend_ticks(exponent, is_difference=True)
            ]
            ticks = [((1 + offset) / 2, weight) for offset, weight in signs if abs(weight) in (0, 0.1, 1)]
        ramp = "".join(
            f'<stop offset="{offset}" stop-color="{stop_color}" stop-opacity="{stop_opacity}"/>'
            for offset, stop_color, stop_opacity in stops
        )
        canvas.parts.append(f'<linearGradient id="ramp-{part}">{ramp}</linearGradient>')
        canvas.add_rect(left, y, width, 11, fill=f"url(#ramp-{part})", stroke=style.GRID_COLOR)
        for offset, weight in ticks:
            canvas.text(
                left + offset * width,
                y + 24,
                f"{weight:g}".replace("-", "−"),
                size=9.5,
                color=style.MUTED_TEXT_COLOR,
                text_anchor="middle",
            )


def _compute_grid(figure: AttentionFigure, panels_per_row: int) -> MapGrid:
    """Choose the size and number of columns for one panel's maps, and whether tokens are labelled."""
    panel, length = figure.panels[0], len(figure.tokens)
    heads = len(panel.head_numbers)
    columns = min(heads, 4) if len(panel.layers) == 1 else heads
    is_single = len(panel.layers) == heads == 1
    side = (
        min(MAX_SINGLE_MAP_SIDE, max(240, 17 * length))
        if is_single
        else min(200, max(MIN_MAP_SIDE, TARGET_WIDTH / columns / panels_per_row - GAP))
    )
    if is_single and panels_per_row > 1:
        side = min(side, TARGET_WIDTH / panels_per_row)
    is_labelled = is_single or side / length >= MIN_LABEL_SPACING
    longest = max(len(truncate_label(token)) for token in figure.tokens)
    label_width = longest * 10.5 * 0.58 + 8 if is_labelled else 0
    return MapGrid(
        side, is_labelled, label_width, label_width * 0.9 + 4 if is_labelled else 0, 0 if is_single else 54, columns
    )


def _draw_panel(
    canvas: SvgCanvas,
    figure: AttentionFigure,
    rendered: RenderedHeads,
    index: int,
    grid: MapGrid,
    x: float,
    y: float,
) -> tuple[float, float]:
    """Draw one panel; return its right and bottom edges."""
    panel, is_single = figure.panels[index], not grid.names
    title = panel.name if len(figure.panels) > 1 else ""
    if is_single:
        title += f"{', ' if title else ''}layer {panel.layer_numbers[0]}, head {panel.head_numbers[0]}"
    if title:
        canvas.text(x, y + 8, truncate_label(title, 60), size=13, font_weight="600")
        y += 18
    left, top = x + grid.names + grid.row_label_width, y + grid.top + (0 if is_single else 20)
    wrapped = len(panel.layers) == 1 and len(panel.head_numbers) > grid.columns
    row_step = grid.step + (20 if wrapped else 0)
    rows = 0
    for map_index, (layer, head) in enumerate(
        (a, b) for a in range(len(panel.layers)) for b in range(len(panel.head_numbers))
    ):
        row, column = divmod(map_index, grid.columns)
        corner = left + column * grid.step, top + row * row_step
        rows = row + 1
        alt_text = f"Layer {panel.layer_numbers[layer]}, head {panel.head_numbers[head]}"
        _draw_map(canvas, figure, *corner, grid.map_side, rendered.heads[index, layer, head], alt_text)
        if not is_single and (row == 0 or wrapped):
            middle, label_y = corner[0] + grid.map_side / 2, corner[1] - 6 - (0 if row else grid.top)
            head_label = f"head {panel.head_numbers[head]}"
            canvas.text(middle, label_y, head_label, color=style.MUTED_TEXT_COLOR, text_anchor="middle")
        if not is_single and column == 0 and not (wrapped and row):
            canvas.text(
                x,
                corner[1] + grid.map_side / 2 + 4,
                f"layer {panel.layer_numbers[layer]}",
                color=style.MUTED_TEXT_COLOR,
            )
        if grid.has_token_labels and row == 0:
            _draw_column_labels(canvas, figure.tokens, *corner, grid.map_side)
        if grid.has_token_labels and column == 0:
            _draw_row_labels(canvas, figure.tokens, *corner, grid.map_side)
    right = left + grid.columns * grid.step - GAP + (grid.top * 0.6 if grid.has_token_labels else 0)
    canvas.grow(right, 0)
    return right, top + rows * row_step - GAP


def _draw_map(
    canvas: SvgCanvas, figure: AttentionFigure, x: float, y: float, side: float, png_bytes: bytes, alt_text: str
) -> None:
    """Draw one map.

    Padding is shaded gray: underneath the map for keys, so that any weight there remains visible, and on top of it for
    queries, whose weights are meaningless.
    """
    kept = float(figure.real.sum()) / len(figure.tokens) * side
    if kept < side:
        canvas.add_rect(x + kept, y, side - kept, side, fill=style.GRID_COLOR)
    canvas.add_image(x, y, side, png_bytes, alt_text)
    if kept < side:
        canvas.add_rect(x, y + kept, side, side - kept, fill=style.GRID_COLOR)
        if side - kept > 60:
            middle = (side + kept) / 2
            canvas.text(x + middle, y + middle, "padding", color=style.MUTED_TEXT_COLOR, text_anchor="middle")
    canvas.add_rect(x, y, side, side, fill="none", stroke="#9aa5b1", stroke_width="0.7")


def _compute_label_spacing(tokens: Sequence[str], side: float) -> tuple[float, float, int]:
    """Return the cell size, font size and label step."""
    cell = side / len(tokens)
    step = max(1, math.ceil(MIN_LABEL_SPACING / cell))
    return cell, min(10.5, max(8.0, 0.8 * cell * step)), step


def _draw_row_labels(canvas: SvgCanvas, tokens: Sequence[str], left: float, top: float, side: float) -> None:
    cell, size, step = _compute_label_spacing(tokens, side)
    for index in range(0, len(tokens), step):
        middle = top + (index + 0.5) * cell + 0.34 * size
        canvas.text(left - 5, middle, truncate_label(tokens[index]), size=size, text_anchor="end")


def _draw_column_labels(canvas: SvgCanvas, tokens: Sequence[str], left: float, top: float, side: float) -> None:
    cell, size, step = _compute_label_spacing(tokens, side)
    for index in range(0, len(tokens), step):
        transform = f"translate({left + (index + 0.5) * cell + 0.3 * size:.1f},{top - 5:.1f}) rotate(-60)"
        canvas.text(0, 0, truncate_label(tokens[index]), size=size, transform=transform)


def save_figure(figure: AttentionFigure, path: str | Path) -> Path:
    """Save the figure as .html, .svg, .pdf or .png."""
    target = Path(path)
    save_picture(target, partial(_render, figure))
    return target


def _render(figure: AttentionFigure, file_format: str) -> str | bytes:
    """Render a figure as HTML, SVG, PDF or PNG."""
    if file_format == "html":
        return page.render_page(figure)
    svg = render_svg(figure)
    if file_format == "svg":
        return svg
    return chart_renderer.render(f"svg_to_{file_format}", svg)
