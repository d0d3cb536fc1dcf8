"""Render a head's attention map as a PNG image with one pixel per pair of tokens. Does not import torch.

Opacity is a power of the weight, chosen so that a uniform row is drawn at a quarter of full opacity: the square root
for 16 tokens, about the fifth root for 1,024.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from headtohead.presentation.renderers.png import encode_png

WeightArray = np.ndarray[Any, np.dtype[Any]]

POSITIVE_COLOR = (8, 48, 107)
"""RGB color of weights and of positive differences"""
NEGATIVE_COLOR = (166, 54, 3)
"""RGB color of negative differences"""
UNIFORM_ROW_OPACITY = 0.25
"""opacity of a token that attends uniformly to all tokens"""


@dataclass(frozen=True)
class PixelScale:
    """How attention weights map to pixels."""

    exponent: float
    """opacity is the weight raised to this power"""
    pool_size: int = 1
    """tokens per pixel in each direction"""
    is_16_bit: bool = False
    """whether a pixel has 16 bits instead of 8"""

    @property
    def precision(self) -> float:
        """The largest error in a weight read back from an image."""
        return 0.5 / self.exponent / (65535 if self.is_16_bit else 255)


def choose_opacity_exponent(length: int) -> float:
    """Return the exponent (at most 0.5) that draws uniform attention to `length` tokens at a quarter of the opacity."""
    return min(0.5, math.log(UNIFORM_ROW_OPACITY) / -math.log(max(2, length)))


def render_map_png(
    weights: WeightArray, scale: PixelScale, is_difference: bool = False, upscale_factor: int = 1
) -> bytes:
    """Render one head's attention weights, shape (query, key), as a PNG image."""
    pooled_weights = max_pool_by_magnitude(np.nan_to_num(weights.astype(np.float32)), scale.pool_size)
    opacity = np.sign(pooled_weights) * np.minimum(np.abs(pooled_weights), 1) ** np.float32(scale.exponent)
    if not is_difference:
        opacity = np.maximum(opacity, 0)
    max_level = 65535 if scale.is_16_bit else 255
    zero_level = (max_level + 1) // 2
    levels = np.rint(zero_level + opacity * (zero_level - 1) if is_difference else opacity * max_level)
    levels = levels.astype(np.uint16)
    high_bytes = (levels >> 8 if scale.is_16_bit else levels).astype(np.uint8)
    low_bytes = (levels & 255).astype(np.uint8) if scale.is_16_bit else None
    if upscale_factor > 1:
        high_bytes, low_bytes = high_bytes.repeat(upscale_factor, 0).repeat(upscale_factor, 1), None
    return encode_png(high_bytes, *(DIFFERENCE_PALETTE if is_difference else WEIGHT_PALETTE), low_bytes)


# palettes of (RGB bytes, opacity bytes) by pixel level
WEIGHT_PALETTE = (bytes(POSITIVE_COLOR) * 256, bytes(range(256)))
DIFFERENCE_PALETTE = (
    bytes(NEGATIVE_COLOR) * 128 + bytes(POSITIVE_COLOR) * 128,
    bytes(2 * (127 - level) if level < 128 else min(255, 2 * (level - 128) + (level == 255)) for level in range(256)),
)


def max_pool_by_magnitude(weights: WeightArray, pool_size: int) -> WeightArray:
    """Shrink a map whose image would be too large: keep the weight with the largest magnitude of each block."""
    if pool_size == 1:
        return weights
    padded_rows, padded_columns = (math.ceil(size / pool_size) * pool_size for size in weights.shape)
    padded_weights = np.zeros((padded_rows, padded_columns), dtype=weights.dtype)
    padded_weights[: weights.shape[0], : weights.shape[1]] = weights
    blocks = padded_weights.reshape(padded_rows // pool_size, pool_size, padded_columns // pool_size, pool_size)
    block_max, block_min = blocks.max((1, 3)), blocks.min((1, 3))
    return np.asarray(np.where(block_max >= -block_min, block_max, block_min))


def format_mean_weights(weights_by_position: Mapping[str, float | None]) -> str:
    """Describe a map for its text alternative: "30 % on the token itself, 20 % on the previous token"."""
    return ", ".join(f"{100 * (weight or 0):.0f} % on {position}" for position, weight in weights_by_position.items())


def truncate_label(text: str, max_length: int = 14) -> str:
    """Return a token or title for a figure with printable characters only, shortened to `max_length` characters."""
    printable_text = "".join(character if character.isprintable() else "�" for character in text)
    return printable_text if len(printable_text) <= max_length else printable_text[: max_length - 1] + "…"


def choose_legend_ticks(exponent: float, is_difference: bool = False) -> list[float]:
    """Return the attention weights to label in the legend of map images, without those whose labels would overlap."""
    ticks = [1.0]
    for weight in (0.5, 0.1, 0.01, 0.001):
        if ticks[-1] ** exponent - weight**exponent > 0.15 and weight**exponent > 0.15:
            ticks.append(weight)
    positive_ticks = [0.0, *reversed(ticks)]
    return [-weight for weight in ticks] + positive_ticks if is_difference else positive_ticks
