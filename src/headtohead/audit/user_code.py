"""Run a user model's code from a fixed RNG state, and describe its errors."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from headtohead import rng
from headtohead.nn.torch_rng import fork_seeded_rng

LIBRARY_FOLDERS = (Path(torch.__file__).parent, Path(__file__).parents[1])


@contextmanager
def fork_all_rngs(*labels: int | str) -> Iterator[None]:
    """Run user code from an RNG state derived from `labels`; restore torch's, numpy's and Python's state afterwards."""
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
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not any(Path(frame.filename).is_relative_to(folder) for folder in LIBRARY_FOLDERS)
        and "site-packages" not in frame.filename
        and not frame.filename.startswith("<")
    ]
    location = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{location}"
