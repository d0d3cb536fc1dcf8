"""Run code from a user's files from a fixed RNG state, and describe the errors it raises."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from headtohead import rng
from headtohead.nn.torch_rng import fork_seeded_rng

PACKAGE_FOLDER = Path(__file__).parents[1]
LIBRARY_PREFIXES = tuple(
    {str(Path(torch.__file__).parent), str(PACKAGE_FOLDER), str(Path(os.__file__).parent), sys.prefix, sys.base_prefix}
)


@contextmanager
def fork_rngs_for_user_code(*labels: int | str) -> Iterator[None]:
    """Run user code from an RNG state derived from `labels`; restore the state of torch, numpy and Python afterwards.

    Networks may draw from any of the three, while this package only uses torch.
    """
    seed = rng.derive_seed(*labels)
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (models may use it)
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        with fork_seeded_rng(*labels):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def format_model_error(error: BaseException) -> str:
    """Return an exception's type and message, and the line in the user's file that raised it."""
    location = find_user_line(error)
    return f"{type(error).__name__}: {error}{f' ({location})' if location else ''}"


def find_user_line(error: BaseException) -> str:
    """Return the file and line of user code in which an exception was raised, or an empty string."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", *LIBRARY_PREFIXES)) and "site-packages" not in frame.filename
    ]
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
