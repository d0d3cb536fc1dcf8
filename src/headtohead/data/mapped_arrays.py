"""Memory-map arrays of numbers that are stored in the user's cache: token ids, row offsets and teacher logits."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def memory_map_array(path: Path, dtype: Any) -> NDArray[Any]:
    """Map a file of numbers as an array. Pages are loaded on demand and shared between processes.

    The mapping is copy-on-write, because torch does not accept read-only arrays.
    """
    if not path.stat().st_size:
        return np.empty(0, dtype)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)  # batches are scattered, so read-ahead is wasted
    return np.frombuffer(pages, dtype, len(pages) // np.dtype(dtype).itemsize)
