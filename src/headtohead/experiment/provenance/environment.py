"""Describe the environment of this process that can affect results: package versions, the processor, the system."""

from __future__ import annotations

import platform
from importlib import metadata
from pathlib import Path

import numpy as np
import torch


def collect_versions() -> dict[str, str]:
    """Return what the field `versions` of a run folder's files records about the environment of this process.

    These are the versions of this package, of numerical libraries and of Python, the operating system, the processor,
    and the vector instructions used.
    """
    return {
        "headtohead": metadata.version("headtohead"),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": read_processor_name(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def read_processor_name() -> str:
    """Return the processor of this environment: its model, or the architecture if the model is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines() if cpuinfo.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
