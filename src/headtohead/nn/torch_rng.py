"""Seed PyTorch's random number generators, for a block of code or for all devices in use."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headtohead import rng


@contextmanager
def fork_seeded_rng(*labels: int | str) -> Iterator[None]:
    """Seed the CPU generator from `labels` inside the context; restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        seed_devices(rng.derive_seed(*labels))
        yield


def seed_devices(seed: int) -> None:
    """Seed PyTorch's random number generators on the devices in use.

    torch.manual_seed also records a traceback for each device that is not initialized yet, to seed it later. For a
    small model, that takes longer than a training step.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
