"""Render a head's attention map as an image with one pixel per pair of tokens. Does not import torch.

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

POSITIVE_COLOR, NEGATIVE_COLOR = (8, 48, 107), (166, 54, 3)
"""color of weights or positive differences, and of negative differences"""
UNIFORM_ROW_OPACITY = 0.25
"""opacity of a uniform row"""


@dataclass(frozen=True)
class PixelScale:
    """How attention weights map to pixels."""

    power: float
    pool: int = 1
    """tokens per pixel in each direction"""
    fine: bool = False
    """whether pixels have 16 bits"""

    @property
    def precision(self) -> float:
        """The largest error in a weight read back from an image."""
        return 0.5 / self.power / (65535 if self.fine else 255)


def choose_exponent(length: int) -> float:
    """Return the exponent (at most 0.5) that draws a uniform row at a quarter of full opacity."""
    return min(0.5, math.log(UNIFORM_ROW_OPACITY) / -math.log(max(2, length)))


def render_head(weights: WeightArray, scale: PixelScale, is_difference: bool = False, upscale_factor: int = 1) -> bytes:
    """Render one head's attention weights as a PNG image."""
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
    """Shrink an image by pooling each block of pixels to its value with the largest magnitude."""
    if pool_size == 1:
        return weights
    rows, columns = (math.ceil(size / pool_size) * pool_size for size in weights.shape)
    padded = np.zeros((rows, columns), dtype=weights.dtype)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    blocks = padded.reshape(rows // pool_size, pool_size, columns // pool_size, pool_size)
    high, low = blocks.max((1, 3)), blocks.min((1, 3))
    return np.asarray(np.where(high >= -low, high, low))


def format_shares(shares: Mapping[str, float | None]) -> str:
    """Format weights by position: 30 % on the token itself, 20 % on the previous token."""
    return ", ".join(f"{100 * (weight or 0):.0f} % on {position}" for position, weight in shares.items())


def truncate_label(text: str, max_length: int = 14) -> str:
    """Return a printable label of limited length."""
    clean = "".join(character if character.isprintable() else "�" for character in text)
    return clean if len(clean) <= max_length else clean[: max_length - 1] + "…"


def choose_legend_ticks(exponent: float, is_difference: bool = False) -> list[float]:
    """Return the attention weights to label on an image's color scale, with no two too close together."""
    ticks = [1.0]
    for weight in (0.5, 0.1, 0.01, 0.001):
        if ticks[-1] ** exponent - weight**exponent > 0.15 and weight**exponent > 0.15:
            ticks.append(weight)
    positive = [0.0, *reversed(ticks)]
    return [-weight for weight in ticks] + positive if is_difference else positive
