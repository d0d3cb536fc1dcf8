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

from headtohead.presentation.png import png

Weights = np.ndarray[Any, np.dtype[Any]]
Row = Mapping[str, Any]

MORE, LESS = (8, 48, 107), (166, 54, 3)
"""the colour of weight, or of more of it; and of less, in a difference"""
EVEN = 0.25
"""how strong an even row is drawn"""
MOST_PIXELS = 2**24
FINE_PIXELS = 3 * 2**20
"""up to so many pixels a picture carries its weights in two bytes"""
MOST_BYTES = 10_000_000
"""of all pictures together, before they become text"""


@dataclass(frozen=True, eq=False)
class Panel:
    """The maps of one model, or the difference of two: for each layer heads x query x key."""

    title: str
    layers: tuple[Weights, ...]
    layer_numbers: tuple[int, ...]
    head_numbers: tuple[int, ...]
    signed: bool = False


@dataclass(frozen=True, eq=False)
class Sheet:
    """All that is shown together: one text, and the maps of one or more models on it."""

    title: str
    text: str
    tokens: tuple[str, ...]
    real: Weights
    """False on padding"""
    panels: tuple[Panel, ...]
    notes: tuple[str, ...] = ()
    checks: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    """by the title of the panel"""
    measures: Mapping[str, Sequence[Row]] = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
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
class Pictures:
    """The pictures of a sheet, by (panel, layer, head), each counted from 0."""

    scale: Scale
    heads: Mapping[tuple[int, int, int], bytes]


def power_for(length: int) -> float:
    """The power that draws an even row at a quarter; never stronger than the square root."""
    return min(0.5, math.log(EVEN) / -math.log(max(2, length)))


def pictures(sheet: Sheet, *, fine: bool = True, enlarge: int = 1) -> Pictures:
    """Every head of a sheet, small enough to travel in one file. `enlarge` draws a pixel as a square of pixels, for
    programs that would blur it."""
    length = len(sheet.tokens)
    maps = sum(len(weights) for panel in sheet.panels for weights in panel.layers)
    pool = 1
    while maps * math.ceil(length / pool) ** 2 > MOST_PIXELS:
        pool += 1
    while True:
        pixels = maps * math.ceil(length / pool) ** 2
        scale = Scale(power_for(length), pool, fine and pixels <= FINE_PIXELS)
        made = {place: picture(one, scale, signed, enlarge) for place, one, signed in _every(sheet)}
        if sum(map(len, made.values())) <= MOST_BYTES or pool >= length:
            return Pictures(scale, made)
        pool += 1


def _every(sheet: Sheet) -> Iterator[tuple[tuple[int, int, int], Weights, bool]]:
    for p, panel in enumerate(sheet.panels):
        for layer, weights in enumerate(panel.layers):
            for head, one in enumerate(weights):
                yield (p, layer, head), one, panel.signed


def picture(weights: Weights, scale: Scale, signed: bool = False, enlarge: int = 1) -> bytes:
    """One head as a PNG."""
    values = pooled(np.nan_to_num(weights.astype(np.float32)), scale.pool)
    strength = np.sign(values) * np.minimum(np.abs(values), 1) ** np.float32(scale.power)
    if not signed:
        strength = np.maximum(strength, 0)
    top = 65535 if scale.fine else 255
    middle = (top + 1) // 2
    counts = np.rint(middle + strength * (middle - 1) if signed else strength * top).astype(np.uint16)
    pixels = (counts >> 8 if scale.fine else counts).astype(np.uint8)
    low = (counts & 255).astype(np.uint8) if scale.fine else None
    if enlarge > 1:
        pixels, low = pixels.repeat(enlarge, 0).repeat(enlarge, 1), None
    return png(pixels, *(SIGNED if signed else PLAIN), low)


PLAIN = (bytes(MORE) * 256, bytes(range(256)))
SIGNED = (
    bytes(LESS) * 128 + bytes(MORE) * 128,
    bytes(2 * (127 - i) if i < 128 else min(255, 2 * (i - 128) + (i == 255)) for i in range(256)),
)


def pooled(weights: Weights, pool: int) -> Weights:
    """Blocks of neighbours as one: the value that is furthest from 0."""
    if pool == 1:
        return weights
    rows, columns = (math.ceil(size / pool) * pool for size in weights.shape)
    padded = np.zeros((rows, columns), dtype=weights.dtype)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    blocks = padded.reshape(rows // pool, pool, columns // pool, pool)
    high, low = blocks.max((1, 3)), blocks.min((1, 3))
    return np.asarray(np.where(high >= -low, high, low))


def said(row: Row) -> str:
    """What a head does, in one sentence."""
    name = f"Layer {row['layer']}, head {row['head']}"
    if row.get("first") is None:
        return f"{name}."
    shares = {"the first token": "first", "the token itself": "itself", "the token before": "previous"}
    words = ", ".join(f"{100 * row[key]:.0f} % on {place}" for place, key in shares.items())
    return f"{name}. Weight on average: {words}; {row['entropy']:.1f} bits wide."


def label(token: str, longest: int = 14) -> str:
    """A token beside a map: no sign that a file of pictures could not hold, and not too long."""
    clean = "".join(one if one.isprintable() else "�" for one in token)
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


def ticks(power: float, signed: bool = False) -> list[float]:
    """Weights to write below the scale, none too near its neighbour."""
    kept = [1.0]
    for one in (0.5, 0.1, 0.01, 0.001):
        if kept[-1] ** power - one**power > 0.15 and one**power > 0.15:
            kept.append(one)
    ahead = [0.0, *reversed(kept)]
    return [-one for one in kept] + ahead if signed else ahead
