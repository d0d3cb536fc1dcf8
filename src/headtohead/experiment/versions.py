"""Versions of everything that can affect results."""

from __future__ import annotations

import platform
from importlib import metadata

import numpy as np
import torch


def collect_versions() -> dict[str, str]:
    """Return the versions of this package, numerical libraries, Python and the OS, and the vector instructions used."""
    return {
        "headtohead": metadata.version("headtohead"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
