"""Render attention maps as images: one per head, one pixel per pair of tokens.

Opacity is a power of the weight, chosen so that a uniform row is drawn at a quarter of full opacity: the square root
for 16 tokens, about the fifth root for 1,024. If there would be too many pixels, blocks of neighbours are max-pooled,
and the picture says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from headtohead.experiment.schemas import HeadMeasures
from headtohead.presentation.png import encode_png

if TYPE_CHECKING:  # they import torch
    from headtohead.attention_analysis.map_checks import AttentionCheck
    from headtohead.attention_analysis.maps import AttentionMaps

WeightArray = np.ndarray[Any, np.dtype[Any]]

POSITIVE_COLOR, NEGATIVE_COLOR = (8, 48, 107), (166, 54, 3)
"""color of weights or positive differences, and of negative differences"""
UNIFORM_ROW_OPACITY = 0.25
"""opacity of a uniform row"""
MAX_PIXELS = 2**24
MAX_16_BIT_PIXELS = 3 * 2**20
"""images with more pixels carry 8-bit weights"""
MAX_TOTAL_BYTES = 10_000_000
"""of all images together, before base64"""


@dataclass(frozen=True, eq=False)
class AttentionFigure:
    """The maps of one or more models on one text, with head metrics and checks."""

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
        """False on padding, shape (length,)."""
        return self.panels[0].real

    @property
    def notes(self) -> tuple[str, ...]:
        return self.panels[0].notes

    @property
    def has_difference(self) -> bool:
        return any(panel.is_difference for panel in self.panels)


@dataclass(frozen=True)
class PixelScale:
    """How weights map to pixels."""

    power: float
    pool: int = 1
    """tokens per pixel in each direction"""
    fine: bool = False
    """whether pixels have 16 bits"""

    @property
    def precision(self) -> float:
        """Largest error of a weight read back from an image."""
        return 0.5 / self.power / (65535 if self.fine else 255)


@dataclass(frozen=True)
class RenderedHeads:
    """Images by (panel, layer, head), counted from 0."""

    scale: PixelScale
    heads: Mapping[tuple[int, int, int], bytes]


def choose_exponent(length: int) -> float:
    """Return the exponent that draws a uniform row at a quarter of full opacity; at most 0.5."""
    return min(0.5, math.log(UNIFORM_ROW_OPACITY) / -math.log(max(2, length)))


def render_heads(figure: AttentionFigure, *, allow_16_bit: bool = True, upscale_factor: int = 1) -> RenderedHeads:
    """Render every head, small enough for one file. `upscale_factor` repeats pixels, against blurring viewers."""
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


def render_head(weights: WeightArray, scale: PixelScale, is_difference: bool = False, upscale_factor: int = 1) -> bytes:
    """Render one head as PNG."""
    values = pool_max_abs(np.nan_to_num(weights.astype(np.float32)), scale.pool)
    strength = np.sign(values) * np.minimum(np.abs(values), 1) ** np.float32(scale.power)
    if not is_difference:
        strength = np.maximum(strength, 0)
    top = 65535 if scale.fine else 255
    middle = (top + 1) // 2
    counts = np.rint(middle + strength * (middle - 1) if is_difference else strength * top).astype(np.uint16)
    pixels = (counts >> 8 if scale.fine else counts).astype(np.uint8)
    low = (counts & 255).astype(np.uint8) if scale.fine else None
    if upscale_factor > 1:
        pixels, low = pixels.repeat(upscale_factor, 0).repeat(upscale_factor, 1), None
    return encode_png(pixels, *(DIFFERENCE_PALETTE if is_difference else WEIGHT_PALETTE), low)


WEIGHT_PALETTE = (bytes(POSITIVE_COLOR) * 256, bytes(range(256)))
DIFFERENCE_PALETTE = (
    bytes(NEGATIVE_COLOR) * 128 + bytes(POSITIVE_COLOR) * 128,
    bytes(2 * (127 - i) if i < 128 else min(255, 2 * (i - 128) + (i == 255)) for i in range(256)),
)


def pool_max_abs(weights: WeightArray, pool_size: int) -> WeightArray:
    """Pool blocks of neighbours to the value with the largest magnitude."""
    if pool_size == 1:
        return weights
    rows, columns = (math.ceil(size / pool_size) * pool_size for size in weights.shape)
    padded = np.zeros((rows, columns), dtype=weights.dtype)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    blocks = padded.reshape(rows // pool_size, pool_size, columns // pool_size, pool_size)
    high, low = blocks.max((1, 3)), blocks.min((1, 3))
    return np.asarray(np.where(high >= -low, high, low))


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


def format_shares(shares: Mapping[str, float | None]) -> str:
    """Format weights by position: 30 % on the token itself, 20 % on the previous token."""
    return ", ".join(f"{100 * (weight or 0):.0f} % on {place}" for place, weight in shares.items())


def truncate_label(text: str, max_length: int = 14) -> str:
    """Return a printable label of limited length."""
    clean = "".join(character if character.isprintable() else "�" for character in text)
    return clean if len(clean) <= max_length else clean[: max_length - 1] + "…"


def choose_legend_ticks(exponent: float, is_difference: bool = False) -> list[float]:
    """Return weights to label on the scale, none too close to another."""
    kept = [1.0]
    for weight in (0.5, 0.1, 0.01, 0.001):
        if kept[-1] ** exponent - weight**exponent > 0.15 and weight**exponent > 0.15:
            kept.append(weight)
    positive = [0.0, *reversed(kept)]
    return [-weight for weight in kept] + positive if is_difference else positive
