"""Encode images as PNG files with a palette of 256 opacities.

A private chunk (`loWB`) stores the low byte of each 16-bit weight. Image viewers ignore it; the attention page's script
reads it. Specification: https://www.w3.org/TR/png-3/.
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
    """Return an indexed PNG of `pixels`, an array (height, width) of palette indices.

    `palette` holds 256 colors of three bytes and `alphas` their opacities. `low_bytes` has the same shape as `pixels`
    and is stored in the private chunk.
    """
    height, width = pixels.shape
    chunks = [
        b"\x89PNG\r\n\x1a\n",
        _build_png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
        _build_png_chunk(b"PLTE", palette),
        _build_png_chunk(b"tRNS", alphas),
        _build_png_chunk(b"IDAT", _compress_png_scanlines(pixels)),
    ]
    if low_bytes is not None:
        chunks.append(_build_png_chunk(LOW_BYTE_CHUNK, _compress_png_scanlines(low_bytes)))
    return b"".join((*chunks, _build_png_chunk(b"IEND", b"")))


def build_data_uri(png_bytes: bytes) -> str:
    """Return a PNG image as a data URI, to embed it in a page."""
    return "data:image/png;base64," + base64.b64encode(png_bytes).decode()


def _compress_png_scanlines(pixels: PixelArray) -> bytes:
    """Return the compressed scanlines, each preceded by filter type 0."""
    scanlines = np.zeros((pixels.shape[0], pixels.shape[1] + 1), dtype=np.uint8)
    scanlines[:, 1:] = pixels
    return zlib.compress(scanlines.tobytes(), 9 if pixels.size < 2**18 else 4)


def _build_png_chunk(chunk_type: bytes, content: bytes) -> bytes:
    """Return a PNG chunk: length, type, content and checksum."""
    return struct.pack(">I", len(content)) + chunk_type + content + struct.pack(">I", zlib.crc32(chunk_type + content))
