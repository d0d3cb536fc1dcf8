"""Static attention figures: SVG with text around embedded images, and PDF and PNG rendered from it offline."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path

from headtohead.attention_analysis import page
from headtohead.attention_analysis.figure import AttentionFigure, FigureImages, render_figure_images
from headtohead.attention_analysis.map_images import (
    NEGATIVE_COLOR,
    POSITIVE_COLOR,
    PixelScale,
    choose_legend_ticks,
    truncate_label,
)
from headtohead.presentation import chart_renderer, style
from headtohead.presentation.picture_files import save_picture
from headtohead.presentation.renderers.png import build_data_uri

MARGIN = 18
"""pixels around the figure"""
MAP_SPACING = 14
"""pixels between adjacent maps"""
TARGET_WIDTH = 880
"""approximate width of all maps together in pixels"""
MIN_MAP_SIDE = 56
"""smallest side of a map in pixels"""
MAX_MAP_SIDE = 200
"""largest side of a map in pixels if there are several"""
MIN_SINGLE_MAP_SIDE = 240
"""smallest side in pixels of a map that is shown alone"""
MAX_SINGLE_MAP_SIDE = 560
"""largest side in pixels of a map that is shown alone"""
MIN_LABEL_SPACING = 8.5
"""smallest distance between token labels in pixels"""
CHARACTER_WIDTH_RATIO = 0.5
"""mean character width relative to the font size"""


@dataclass
class SvgCanvas:
    """A minimal SVG builder that tracks its size; altair cannot embed images of this kind with text labels."""

    width: float = 0
    height: float = 0
    elements: list[str] = field(default_factory=list)

    def add_text(
        self, x: float, y: float, text: str, *, size: float = 11, color: str = style.TEXT_COLOR, **svg_attributes: str
    ) -> None:
        """Add a line of text with further SVG attributes, and grow the canvas to contain it."""
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in svg_attributes.items())
        position = f' x="{x:.1f}" y="{y:.1f}"' if "transform" not in svg_attributes else ""
        self.elements.append(f'<text{position} font-size="{size:g}" fill="{color}"{attributes}>{escape(text)}</text>')
        if "transform" not in svg_attributes and svg_attributes.get("text_anchor") != "end":
            is_centered = svg_attributes.get("text_anchor") == "middle"
            self.grow(x + len(text) * size * CHARACTER_WIDTH_RATIO / (2 if is_centered else 1), y + 4)

    def add_rect(self, x: float, y: float, width: float, height: float, **svg_attributes: str) -> None:
        """Add a rectangle and grow the canvas to contain it."""
        attributes = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in svg_attributes.items())
        self.elements.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"{attributes}/>')
        self.grow(x + width, y + height)

    def add_image(self, x: float, y: float, side: float, png_bytes: bytes, alt_text: str) -> None:
        """Add a square PNG image with a text alternative."""
        self.elements.append(
            f'<image x="{x:.1f}" y="{y:.1f}" width="{side:.1f}" height="{side:.1f}" preserveAspectRatio="none" '
            f'style="image-rendering: pixelated" href="{build_data_uri(png_bytes)}">'
            f"<title>{escape(alt_text)}</title></image>"
        )

    def grow(self, x: float, y: float) -> None:
        """Enlarge the canvas to contain a point."""
        self.width, self.height = max(self.width, x), max(self.height, y)

    def to_svg(self, title: str, background: str) -> str:
        """Return the SVG document."""
        width, height = math.ceil(self.width + MARGIN), math.ceil(self.height + MARGIN)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            f'role="img" font-family="{style.FONT_FAMILY}"><title>{escape(title)}</title>'
            f'<rect width="{width}" height="{height}" fill="{background}"/>{"".join(self.elements)}</svg>'
        )


@dataclass(frozen=True)
class MapGrid:
    """The layout of a panel's maps; lengths are in pixels."""

    map_side: float
    has_token_labels: bool
    query_label_width: float
    key_label_height: float
    layer_label_width: float
    """0 for a single map"""
    num_columns: int
    """maps per row: the heads of a layer, or as many as fit for a single layer"""

    @property
    def map_step(self) -> float:
        """Distance between the left edges of adjacent maps."""
        return self.map_side + MAP_SPACING


def render_svg(figure: AttentionFigure, background: str = "white") -> str:
    """Return all maps of a figure as small multiples. A single map is drawn large, with tokens on both axes."""
    length = len(figure.tokens)
    images = render_figure_images(figure, allow_16_bit=False, upscale_factor=max(1, 256 // length))
    canvas = SvgCanvas()
    panels_per_row = 1 if len(figure.panels) * len(figure.panels[0].head_numbers) > 12 else len(figure.panels)
    grid = _choose_map_grid(figure, panels_per_row)
    width = panels_per_row * (grid.layer_label_width + grid.query_label_width + grid.num_columns * grid.map_step)
    y = _draw_header(canvas, figure, images.scale, max(460, width))
    x: float = MARGIN
    bottom = y
    for panel_index in range(len(figure.panels)):
        if panel_index and panel_index % panels_per_row == 0:
            x, y = MARGIN, bottom + 2 * MAP_SPACING
        panel_right, panel_bottom = _draw_panel(canvas, figure, images, panel_index, grid, x, y)
        x, bottom = panel_right + 2 * MAP_SPACING, max(bottom, panel_bottom)
    return canvas.to_svg(f"{figure.title}: attention on {truncate_label(figure.text, 200)}", background)


def _draw_header(canvas: SvgCanvas, figure: AttentionFigure, scale: PixelScale, width: float) -> float:
    """Draw the header of an SVG figure: title, text, notes and legend; return the y position where the maps start."""
    canvas.add_text(
        MARGIN, 32, truncate_label(figure.title, int(width / 15 / CHARACTER_WIDTH_RATIO)), size=15, font_weight="600"
    )
    y = 50.0
    for line in (f"“{truncate_label(figure.text, 280)}”", *figure.notes, *_describe_pooling(scale)):
        for wrapped_line in _wrap_svg_text(line, int(width / 11 / CHARACTER_WIDTH_RATIO)):
            canvas.add_text(MARGIN, y, wrapped_line, color=style.MUTED_TEXT_COLOR)
            y += 15
    _draw_opacity_legend(canvas, y, scale.exponent, figure.has_difference)
    return y + 44


def _describe_pooling(scale: PixelScale) -> list[str]:
    """Return a note if the maps were too large to draw one pixel per pair of tokens."""
    pool_size = scale.pool_size
    return [f"Each pixel shows the largest of {pool_size} × {pool_size} weights."] if pool_size > 1 else []


def _wrap_svg_text(line: str, max_length: int) -> list[str]:
    """Break a line of the figure's header into lines shorter than `max_length`, because SVG text does not wrap."""
    lines = [""]
    for word in line.split():
        if len(lines[-1]) + len(word) >= max_length:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _draw_opacity_legend(canvas: SvgCanvas, y: float, exponent: float, is_difference: bool) -> None:
    """Draw the legend of a figure: which opacity stands for which weight and, if needed, for which difference."""
    for ramp_index, (title, rgb) in enumerate(
        [("weight", POSITIVE_COLOR)] + ([("difference", NEGATIVE_COLOR)] if is_difference else [])
    ):
        x, width = MARGIN + ramp_index * 330.0, 170.0
        color = f"rgb({','.join(map(str, rgb))})"
        canvas.add_text(x, y + 10, title, color=style.MUTED_TEXT_COLOR)
        left = x + 62
        if ramp_index == 0:
            stops: list[tuple[float, str, int]] = [(0, color, 0), (1, color, 1)]
            ticks = [(weight**exponent, weight) for weight in choose_legend_ticks(exponent)]
        else:
            positive_color = f"rgb({','.join(map(str, POSITIVE_COLOR))})"
            stops = [(0, color, 1), (0.5, color, 0), (0.5, positive_color, 0), (1, positive_color, 1)]
            signed_ticks = [
                (math.copysign(abs(weight) ** exponent, weight), weight)
                for weight in choose_legend_ticks(exponent, is_difference=True)
            ]
            ticks = [((1 + offset) / 2, weight) for offset, weight in signed_ticks if abs(weight) in (0, 0.1, 1)]
        gradient_stops = "".join(
            f'<stop offset="{offset}" stop-color="{stop_color}" stop-opacity="{stop_opacity}"/>'
            for offset, stop_color, stop_opacity in stops
        )
        canvas.elements.append(f'<linearGradient id="ramp-{ramp_index}">{gradient_stops}</linearGradient>')
        canvas.add_rect(left, y, width, 11, fill=f"url(#ramp-{ramp_index})", stroke=style.GRID_COLOR)
        for offset, weight in ticks:
            canvas.add_text(
                left + offset * width,
                y + 24,
                f"{weight:g}".replace("-", "−"),
                size=9.5,
                color=style.MUTED_TEXT_COLOR,
                text_anchor="middle",
            )


def _choose_map_grid(figure: AttentionFigure, panels_per_row: int) -> MapGrid:
    """Choose the layout of one panel of an SVG figure: size and columns of its maps, and labels for tokens."""
    panel, length = figure.panels[0], len(figure.tokens)
    num_layers, num_heads = len(panel.layer_numbers), len(panel.head_numbers)
    num_columns = min(num_heads, 4) if num_layers == 1 else num_heads
    is_single = num_layers == num_heads == 1
    map_side = (
        min(MAX_SINGLE_MAP_SIDE, max(MIN_SINGLE_MAP_SIDE, 17 * length))
        if is_single
        else min(MAX_MAP_SIDE, max(MIN_MAP_SIDE, TARGET_WIDTH / num_columns / panels_per_row - MAP_SPACING))
    )
    if is_single and panels_per_row > 1:
        map_side = min(map_side, TARGET_WIDTH / panels_per_row)
    has_token_labels = is_single or map_side / length >= MIN_LABEL_SPACING
    max_label_length = max(len(truncate_label(token)) for token in figure.tokens)
    label_width = max_label_length * 10.5 * 0.58 + 8 if has_token_labels else 0
    return MapGrid(
        map_side=map_side,
        has_token_labels=has_token_labels,
        query_label_width=label_width,
        key_label_height=label_width * 0.9 + 4 if has_token_labels else 0,
        layer_label_width=0 if is_single else 54,
        num_columns=num_columns,
    )


def _draw_panel(
    canvas: SvgCanvas,
    figure: AttentionFigure,
    images: FigureImages,
    panel_index: int,
    grid: MapGrid,
    x: float,
    y: float,
) -> tuple[float, float]:
    """Draw the maps of one panel of an SVG figure with their labels; return the panel's right and bottom edges."""
    panel, is_single = figure.panels[panel_index], not grid.layer_label_width
    title = panel.name if len(figure.panels) > 1 else ""
    if is_single:
        title += f"{', ' if title else ''}layer {panel.layer_numbers[0]}, head {panel.head_numbers[0]}"
    if title:
        canvas.add_text(x, y + 8, truncate_label(title, 60), size=13, font_weight="600")
        y += 18
    left = x + grid.layer_label_width + grid.query_label_width
    top = y + grid.key_label_height + (0 if is_single else 20)
    is_wrapped = len(panel.layer_numbers) == 1 and len(panel.head_numbers) > grid.num_columns
    row_step = grid.map_step + (20 if is_wrapped else 0)
    num_rows = 0
    heads = itertools.product(range(len(panel.layer_numbers)), range(len(panel.head_numbers)))
    for map_index, (layer, head) in enumerate(heads):
        row, column = divmod(map_index, grid.num_columns)
        map_left, map_top = left + column * grid.map_step, top + row * row_step
        num_rows = row + 1
        alt_text = f"Layer {panel.layer_numbers[layer]}, head {panel.head_numbers[head]}"
        png_bytes = images.png_by_head[panel_index, layer, head]
        _draw_map(canvas, figure, map_left, map_top, grid.map_side, png_bytes, alt_text)
        if not is_single and (row == 0 or is_wrapped):
            middle = map_left + grid.map_side / 2
            label_y = map_top - 6 - (0 if row else grid.key_label_height)
            head_label = f"head {panel.head_numbers[head]}"
            canvas.add_text(middle, label_y, head_label, color=style.MUTED_TEXT_COLOR, text_anchor="middle")
        if not is_single and column == 0 and not (is_wrapped and row):
            canvas.add_text(
                x,
                map_top + grid.map_side / 2 + 4,
                f"layer {panel.layer_numbers[layer]}",
                color=style.MUTED_TEXT_COLOR,
            )
        if grid.has_token_labels and row == 0:
            _draw_key_labels(canvas, figure.tokens, map_left, map_top, grid.map_side)
        if grid.has_token_labels and column == 0:
            _draw_query_labels(canvas, figure.tokens, map_left, map_top, grid.map_side)
    rotated_label_width = grid.key_label_height * 0.6 if grid.has_token_labels else 0
    right = left + grid.num_columns * grid.map_step - MAP_SPACING + rotated_label_width
    canvas.grow(right, 0)
    return right, top + num_rows * row_step - MAP_SPACING


def _draw_map(
    canvas: SvgCanvas, figure: AttentionFigure, x: float, y: float, side: float, png_bytes: bytes, alt_text: str
) -> None:
    """Draw the map of one head on an SVG canvas.

    Padding is shaded gray: underneath the map for keys, so that any weight there remains visible, and on top of it for
    queries, whose weights are meaningless.
    """
    text_width = float(figure.attention_mask.sum()) / len(figure.tokens) * side
    if text_width < side:
        canvas.add_rect(x + text_width, y, side - text_width, side, fill=style.GRID_COLOR)
    canvas.add_image(x, y, side, png_bytes, alt_text)
    if text_width < side:
        canvas.add_rect(x, y + text_width, side, side - text_width, fill=style.GRID_COLOR)
        if side - text_width > 60:
            middle = (side + text_width) / 2
            canvas.add_text(x + middle, y + middle, "padding", color=style.MUTED_TEXT_COLOR, text_anchor="middle")
    canvas.add_rect(x, y, side, side, fill="none", stroke="#9aa5b1", stroke_width="0.7")


def _compute_label_spacing(tokens: Sequence[str], side: float) -> tuple[float, float, int]:
    """Return the pixels per token, the font size, and that every n-th token of a map's axis is labeled."""
    pixels_per_token = side / len(tokens)
    label_step = max(1, math.ceil(MIN_LABEL_SPACING / pixels_per_token))
    return pixels_per_token, min(10.5, max(8.0, 0.8 * pixels_per_token * label_step)), label_step


def _draw_query_labels(canvas: SvgCanvas, tokens: Sequence[str], left: float, top: float, side: float) -> None:
    """Draw the query tokens to the left of a map on an SVG canvas."""
    pixels_per_token, font_size, label_step = _compute_label_spacing(tokens, side)
    for index in range(0, len(tokens), label_step):
        middle = top + (index + 0.5) * pixels_per_token + 0.34 * font_size
        canvas.add_text(left - 5, middle, truncate_label(tokens[index]), size=font_size, text_anchor="end")


def _draw_key_labels(canvas: SvgCanvas, tokens: Sequence[str], left: float, top: float, side: float) -> None:
    """Draw the key tokens above a map on an SVG canvas, rotated."""
    pixels_per_token, font_size, label_step = _compute_label_spacing(tokens, side)
    for index in range(0, len(tokens), label_step):
        label_x = left + (index + 0.5) * pixels_per_token + 0.3 * font_size
        transform = f"translate({label_x:.1f},{top - 5:.1f}) rotate(-60)"
        canvas.add_text(0, 0, truncate_label(tokens[index]), size=font_size, transform=transform)


def save_figure(figure: AttentionFigure, path: str | Path) -> Path:
    """Save an attention figure as .html, .svg, .pdf or .png."""
    target = Path(path)
    save_picture(target, partial(_render_file_format, figure))
    return target


def _render_file_format(figure: AttentionFigure, file_format: str) -> str | bytes:
    """Return the content of a figure's file: the HTML page, or the SVG document itself or converted to PDF or PNG."""
    if file_format == "html":
        return page.render_page(figure)
    svg = render_svg(figure)
    if file_format == "svg":
        return svg
    return chart_renderer.render(f"svg_to_{file_format}", svg)
