"""Versions of everything that can affect results."""

from __future__ import annotations

import platform
from importlib import metadata

import numpy as np
import torch


def collect_versions() -> dict[str, str]:
    """Return the versions of package, numerical libraries, Python and system, and the vector instructions in use."""
    return {
        "headtohead": metadata.version("headtohead"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }
