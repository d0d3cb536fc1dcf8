"""Attention figures: one or more models' maps for one text, and their images.

If there would be too many pixels, blocks of adjacent pixels are max-pooled, and a note says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headtohead.attention_analysis.maps import AttentionCheck, AttentionMaps
from headtohead.attention_analysis.pictures import PixelScale, WeightArray, choose_exponent, format_shares, render_head
from headtohead.experiment.schemas import HeadMeasures

MAX_PIXELS = 2**24
MAX_16_BIT_PIXELS = 3 * 2**20
"""images with more pixels carry 8-bit weights"""
MAX_TOTAL_BYTES = 10_000_000
"""for all images together, before base64 encoding"""


@dataclass(frozen=True, eq=False)
class AttentionFigure:
    """One or more models' maps for one text, with head metrics and checks."""

    title: str
    panels: tuple[AttentionMaps, ...]
    """maps of each model, and of their difference"""
    measures_by_panel: Mapping[str, Sequence[HeadMeasures]] = field(default_factory=dict)
    checks_by_panel: Mapping[str, Sequence[AttentionCheck]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return self.panels[0].text

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.panels[0].tokens

    @property
    def real(self) -> WeightArray:
        """Mask that is False at padding positions, shape (length,)."""
        return self.panels[0].real

    @property
    def notes(self) -> tuple[str, ...]:
        return self.panels[0].notes

    @property
    def has_difference(self) -> bool:
        return any(panel.is_difference for panel in self.panels)


@dataclass(frozen=True)
class RenderedHeads:
    """Images by (panel, layer, head), counted from 0."""

    scale: PixelScale
    heads: Mapping[tuple[int, int, int], bytes]


def render_heads(figure: AttentionFigure, *, allow_16_bit: bool = True, upscale_factor: int = 1) -> RenderedHeads:
    """Render every head, small enough for one file. `upscale_factor` repeats pixels, because some viewers blur enlarged
    images.
    """
    length = len(figure.tokens)
    num_maps = sum(len(weights) for panel in figure.panels for weights in panel.layers)
    pool = 1
    while num_maps * math.ceil(length / pool) ** 2 > MAX_PIXELS:
        pool += 1
    while True:
        pixels = num_maps * math.ceil(length / pool) ** 2
        scale = PixelScale(choose_exponent(length), pool, allow_16_bit and pixels <= MAX_16_BIT_PIXELS)
        images = {
            key: render_head(weights, scale, is_difference, upscale_factor)
            for key, weights, is_difference in _iterate_heads(figure)
        }
        if sum(map(len, images.values())) <= MAX_TOTAL_BYTES or pool >= length:
            return RenderedHeads(scale, images)
        pool += 1


def _iterate_heads(figure: AttentionFigure) -> Iterator[tuple[tuple[int, int, int], WeightArray, bool]]:
    for panel_index, panel in enumerate(figure.panels):
        for layer, weights in enumerate(panel.layers):
            for head, head_weights in enumerate(weights):
                yield (panel_index, layer, head), head_weights, panel.is_difference


def describe_head(measures: HeadMeasures) -> str:
    """Describe a head in one sentence."""
    name = f"Layer {measures.layer}, head {measures.head}"
    if measures.first is None:
        return f"{name}."
    shares = {
        "the first token": measures.first,
        "the token itself": measures.itself,
        "the previous token": measures.previous,
    }
    return f"{name}. Mean weight: {format_shares(shares)}; entropy {measures.entropy or 0:.1f} bits."
