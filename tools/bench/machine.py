"""Describe the machine that benchmarks run on, and measure its peak."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch

MATRIX_SIZE = 2048
PACKAGES = ("headtohead", "torch", "transformers", "accelerate", "x-transformers", "tokenizers")


def describe(cores: int) -> dict[str, Any]:
    """Return the hardware, the versions and the load."""
    return {
        "processor": _read_processor_name(),
        "cores": cores,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _get_version(name))},
        "load": round(os.getloadavg()[0], 2),
        "day": datetime.now(UTC).date().isoformat(),
    }


def _get_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_processor_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def build_matrix_product() -> tuple[Callable[[], object], float]:
    """Return the float32 product by which the peak of the machine is measured, and its number of FLOPs."""
    a, b = torch.randn(MATRIX_SIZE, MATRIX_SIZE), torch.randn(MATRIX_SIZE, MATRIX_SIZE)
    out = torch.empty(MATRIX_SIZE, MATRIX_SIZE)
    return (lambda: torch.mm(a, b, out=out)), 2.0 * MATRIX_SIZE**3
