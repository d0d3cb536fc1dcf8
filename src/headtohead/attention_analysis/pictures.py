"""Attention maps as pictures: one a head, a pixel for each pair of tokens, whatever the length of the text.

The strength of a pixel is a power of its weight, chosen by the length of the text so that a row spread evenly over all
tokens is drawn at a quarter of full strength: the square root for 16 tokens, about the fifth root for 1,024. Where the
pixels would be too many, neighbours are drawn as one that has their largest weight, and the picture says so.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from headtohead.presentation.png import encode_png

WeightArray = np.ndarray[Any, np.dtype[Any]]
ResultRow = Mapping[str, Any]

POSITIVE_COLOR, NEGATIVE_COLOR = (8, 48, 107), (166, 54, 3)
"""the colour of weight, or of more of it; and of less, in a difference"""
UNIFORM_ROW_OPACITY = 0.25
"""how strong an even row is drawn"""
MAX_PIXELS = 2**24
MAX_16_BIT_PIXELS = 3 * 2**20
"""up to so many pixels a picture carries its weights in two bytes"""
MAX_TOTAL_BYTES = 10_000_000
"""of all pictures together, before they become text"""


@dataclass(frozen=True, eq=False)
class AttentionPanel:
    """The maps of one model, or the difference of two: for each layer heads x query x key."""

    title: str
    layers: tuple[WeightArray, ...]
    layer_numbers: tuple[int, ...]
    head_numbers: tuple[int, ...]
    is_difference: bool = False


@dataclass(frozen=True, eq=False)
class AttentionFigure:
    """All that is shown together: one text, and the maps of one or more models on it."""

    title: str
    text: str
    tokens: tuple[str, ...]
    real: WeightArray
    """False on padding"""
    panels: tuple[AttentionPanel, ...]
    notes: tuple[str, ...] = ()
    checks: Mapping[str, Sequence[ResultRow]] = field(default_factory=dict)
    """by the title of the panel"""
    measures: Mapping[str, Sequence[ResultRow]] = field(default_factory=dict)


@dataclass(frozen=True)
class PixelScale:
    """How weights become pixels."""

    power: float
    pool: int = 1
    """so many tokens each way are one pixel"""
    fine: bool = False
    """two bytes a pixel, not one"""

    @property
    def precision(self) -> float:
        """The largest error of a weight that is read back from a picture."""
        return 0.5 / self.power / (65535 if self.fine else 255)


@dataclass(frozen=True)
class RenderedHeads:
    """The pictures of a sheet, by (panel, layer, head), each counted from 0."""

    scale: PixelScale
    heads: Mapping[tuple[int, int, int], bytes]


def choose_exponent(length: int) -> float:
    """The power that draws an even row at a quarter; never stronger than the square root."""
    return min(0.5, math.log(UNIFORM_ROW_OPACITY) / -math.log(max(2, length)))


def render_heads(figure: AttentionFigure, *, allow_16_bit: bool = True, upscale_factor: int = 1) -> RenderedHeads:
    """Every head of a sheet, small enough to travel in one file. `enlarge` draws a pixel as a square of pixels, for
    programs that would blur it."""
    length = len(figure.tokens)
    maps = sum(len(weights) for panel in figure.panels for weights in panel.layers)
    pool = 1
    while maps * math.ceil(length / pool) ** 2 > MAX_PIXELS:
        pool += 1
    while True:
        pixels = maps * math.ceil(length / pool) ** 2
        scale = PixelScale(choose_exponent(length), pool, allow_16_bit and pixels <= MAX_16_BIT_PIXELS)
        made = {place: render_head(one, scale, signed, upscale_factor) for place, one, signed in _iterate_heads(figure)}
        if sum(map(len, made.values())) <= MAX_TOTAL_BYTES or pool >= length:
            return RenderedHeads(scale, made)
        pool += 1


def _iterate_heads(figure: AttentionFigure) -> Iterator[tuple[tuple[int, int, int], WeightArray, bool]]:
    for p, panel in enumerate(figure.panels):
        for layer, weights in enumerate(panel.layers):
            for head, one in enumerate(weights):
                yield (p, layer, head), one, panel.is_difference


def render_head(weights: WeightArray, scale: PixelScale, is_difference: bool = False, upscale_factor: int = 1) -> bytes:
    """One head as a PNG."""
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
    """Blocks of neighbours as one: the value that is furthest from 0."""
    if pool_size == 1:
        return weights
    rows, columns = (math.ceil(size / pool_size) * pool_size for size in weights.shape)
    padded = np.zeros((rows, columns), dtype=weights.dtype)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    blocks = padded.reshape(rows // pool_size, pool_size, columns // pool_size, pool_size)
    high, low = blocks.max((1, 3)), blocks.min((1, 3))
    return np.asarray(np.where(high >= -low, high, low))


def describe_head(head_measures: ResultRow) -> str:
    """What a head does, in one sentence."""
    name = f"Layer {head_measures['layer']}, head {head_measures['head']}"
    if head_measures.get("first") is None:
        return f"{name}."
    shares = {"the first token": "first", "the token itself": "itself", "the token before": "previous"}
    words = ", ".join(f"{100 * head_measures[key]:.0f} % on {place}" for place, key in shares.items())
    return f"{name}. Weight on average: {words}; {head_measures['entropy']:.1f} bits wide."


def truncate_label(text: str, max_length: int = 14) -> str:
    """A token beside a map: no sign that a file of pictures could not hold, and not too long."""
    clean = "".join(one if one.isprintable() else "�" for one in text)
    return clean if len(clean) <= max_length else clean[: max_length - 1] + "…"


def choose_legend_ticks(exponent: float, is_difference: bool = False) -> list[float]:
    """Weights to write below the scale, none too near its neighbour."""
    kept = [1.0]
    for one in (0.5, 0.1, 0.01, 0.001):
        if kept[-1] ** exponent - one**exponent > 0.15 and one**exponent > 0.15:
            kept.append(one)
    ahead = [0.0, *reversed(kept)]
    return [-one for one in kept] + ahead if is_difference else ahead
