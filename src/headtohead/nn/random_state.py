"""Seed the random number generators of torch, numpy and Python, for a block of code or for the rest of a process.

This package draws from torch only; networks and parts of users may draw from any of the three.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from headtohead import rng


@contextmanager
def fork_seeded_rng(*labels: int | str) -> Iterator[None]:
    """Seed all generators of the CPU from `labels` inside the context; restore their states afterwards."""
    python_state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002  (users may use it)
    try:
        with torch.random.fork_rng(devices=[]):
            seed_all_generators(rng.derive_seed(*labels))
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def seed_all_generators(seed: int) -> None:
    """Seed the generators of torch for the devices in use, of numpy and of Python.

    torch.manual_seed also records a traceback for each device that is not initialized yet, to seed it later. For a
    small model, that takes longer than a training step.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
