"""Compare recorded JSON files with recomputed ones, and name the keys that differ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


def find_json_differences(first: Any, second: Any, key_path: str = "", *, rtol: float = 1e-9) -> Iterator[str]:
    """Yield the key path of each difference between two JSON values.

    Args:
        first: The recorded value.
        second: The recomputed value.
        key_path: Key path of both values in their file, prepended to the results.
        rtol: Relative tolerance of floats.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            if key not in first or key not in second:
                yield f"{key_path}.{key}".strip(".")
            else:
                yield from find_json_differences(first[key], second[key], f"{key_path}.{key}".strip("."), rtol=rtol)
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (item, other_item) in enumerate(zip(first, second, strict=True)):
            yield from find_json_differences(item, other_item, f"{key_path}[{index}]", rtol=rtol)
    elif isinstance(first, float) and isinstance(second, int | float):
        if not np.isclose(first, second, rtol=rtol):
            yield key_path
    elif first != second:
        yield key_path
