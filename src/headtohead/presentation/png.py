"""Encode PNG images with a palette of 256 opacities.

A private chunk (`loWB`) holds a second byte per pixel for 16-bit weights; viewers skip it and our page reads it. See
https://www.w3.org/TR/png-3/.
"""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

PixelArray = np.ndarray[Any, np.dtype[np.uint8]]
Color = tuple[int, int, int]

LOW_BYTE_CHUNK = b"loWB"
"""the letter case marks the chunk as ancillary, private and unsafe to copy"""


def encode_png(pixels: PixelArray, palette: bytes, alphas: bytes, low_bytes: PixelArray | None = None) -> bytes:
    """Return a PNG with a palette of 256 colors (3 bytes each) and their alpha values."""
    height, width = pixels.shape
    chunks = [
        b"\x89PNG\r\n\x1a\n",
        _build_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _build_chunk(b"PLTE", palette),
        _build_chunk(b"tRNS", alphas),
        _build_chunk(b"IDAT", _compress_scanlines(pixels)),
    ]
    if low_bytes is not None:
        chunks.append(_build_chunk(LOW_BYTE_CHUNK, _compress_scanlines(low_bytes)))
    return b"".join((*chunks, _build_chunk(b"IEND", b"")))


def build_data_uri(png_bytes: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png_bytes).decode()


def _compress_scanlines(pixels: PixelArray) -> bytes:
    """Compress scanlines with filter type 0."""
    lines = np.zeros((pixels.shape[0], pixels.shape[1] + 1), dtype=np.uint8)
    lines[:, 1:] = pixels
    return zlib.compress(lines.tobytes(), 9 if pixels.size < 2**18 else 4)


def _build_chunk(chunk_type: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + chunk_type + content + struct.pack(">I", zlib.crc32(chunk_type + content))
