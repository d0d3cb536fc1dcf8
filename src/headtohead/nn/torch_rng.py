"""Random draws from a stream of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from headtohead import rng


@contextmanager
def fork_seeded_rng(*what: int | str) -> Iterator[None]:
    """Everything drawn inside comes from a stream of its own, and nothing outside is disturbed."""
    with torch.random.fork_rng(devices=[]):
        seed_devices(rng.derive_seed(*what))
        yield


def seed_devices(seed: int) -> None:
    """torch.manual_seed for the devices in use only: for a device that is not, it notes a traceback to seed it later,
    which takes longer than a step of a small model."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)
