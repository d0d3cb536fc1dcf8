"""PNG pictures of weights, written by hand: a palette of 256 strengths, and a byte for each pair of tokens.

A picture can carry its weights more finely than eye and palette can: a chunk of our own (`loWB`) holds a second byte
for each pixel, which viewers skip and our page reads. See https://www.w3.org/TR/png-3/.
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
"""ancillary, private, not to be copied along once the picture is edited: what the case of the letters says"""


def encode_png(pixels: PixelArray, palette: bytes, alphas: bytes, low_bytes: PixelArray | None = None) -> bytes:
    """A picture with a palette of 256 `colours` (3 bytes each), each as opaque as `strengths` says."""
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
    """Lines as they are, each after a 0 that says so."""
    lines = np.zeros((pixels.shape[0], pixels.shape[1] + 1), dtype=np.uint8)
    lines[:, 1:] = pixels
    return zlib.compress(lines.tobytes(), 9 if pixels.size < 2**18 else 4)


def _build_chunk(chunk_type: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + chunk_type + content + struct.pack(">I", zlib.crc32(chunk_type + content))
