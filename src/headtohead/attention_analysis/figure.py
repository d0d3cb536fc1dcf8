"""The content of attention figures: one or more models' maps for one text, and the PNG image of every head.

If there would be too many pixels, blocks of adjacent pixels are max-pooled, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headtohead.attention_analysis.map_checks import AttentionCheck
from headtohead.attention_analysis.map_images import PixelScale, WeightArray, choose_opacity_exponent, render_map_png
from headtohead.attention_analysis.maps import AttentionMaps
from headtohead.experiment.schemas import HeadMeasures

MAX_PIXELS = 2**24
"""largest number of pixels of all images of a figure; more are max-pooled"""
MAX_16_BIT_PIXELS = 3 * 2**20
"""figures with more pixels store weights in 8 bits"""
MAX_TOTAL_BYTES = 10_000_000
"""largest size of all images of a figure, before base64 encoding"""


@dataclass(frozen=True, eq=False)
class AttentionFigure:
    """One or more models' maps for one text, with head metrics and checks."""

    title: str
    panels: tuple[AttentionMaps, ...]
    """maps of each model, and of their difference"""
    metrics_by_panel: Mapping[str, Sequence[HeadMeasures]] = field(default_factory=dict)
    checks_by_panel: Mapping[str, Sequence[AttentionCheck]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.panels[0].text

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.panels[0].tokens

    @property
    def attention_mask(self) -> WeightArray:
        """Mask that is False at padding positions, shape (length,)."""
        return self.panels[0].attention_mask

    @property
    def notes(self) -> tuple[str, ...]:
        return self.panels[0].notes

    @property
    def has_difference(self) -> bool:
        return any(panel.is_difference for panel in self.panels)


@dataclass(frozen=True)
class FigureImages:
    """The images of a figure's maps and the scale with which they were rendered."""

    scale: PixelScale
    png_by_head: Mapping[tuple[int, int, int], bytes]
    """PNG images by (panel, layer, head), counted from 0"""


def render_figure_images(
    figure: AttentionFigure, *, allow_16_bit: bool = True, upscale_factor: int = 1
) -> FigureImages:
    """Render the map of every head in an attention figure as a PNG image, all of them small enough for one file.

    `upscale_factor` repeats pixels, because some viewers blur enlarged images.
    """
    length = len(figure.tokens)
    num_maps = sum(len(weights) for panel in figure.panels for weights in panel.weights_by_layer)
    pool_size = 1
    while num_maps * math.ceil(length / pool_size) ** 2 > MAX_PIXELS:
        pool_size += 1
    while True:
        num_pixels = num_maps * math.ceil(length / pool_size) ** 2
        is_16_bit = allow_16_bit and num_pixels <= MAX_16_BIT_PIXELS
        scale = PixelScale(choose_opacity_exponent(length), pool_size, is_16_bit)
        png_by_head = {
            head_key: render_map_png(weights, scale, is_difference, upscale_factor)
            for head_key, weights, is_difference in _iterate_heads(figure)
        }
        if sum(map(len, png_by_head.values())) <= MAX_TOTAL_BYTES or pool_size >= length:
            return FigureImages(scale, png_by_head)
        pool_size += 1


def _iterate_heads(figure: AttentionFigure) -> Iterator[tuple[tuple[int, int, int], WeightArray, bool]]:
    """Yield (panel, layer, head), weights, and whether they are a difference, for every map of an attention figure."""
    for panel_index, panel in enumerate(figure.panels):
        for layer, weights in enumerate(panel.weights_by_layer):
            for head, head_weights in enumerate(weights):
                yield (panel_index, layer, head), head_weights, panel.is_difference
