"""Describe the machine that benchmarks run on, and build the matrix product that measures its peak FLOP/s."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psutil
import torch

from headtohead.experiment.provenance.environment import read_processor_name

MATRIX_SIZE = 2048
"""rows and columns of the matrices whose product measures the peak"""
REPORTED_PACKAGES = (
    *("headtohead", "torch", "transformers", "accelerate", "x-transformers", "tokenizers"),
    *("jax", "trl"),
)


def describe_machine(num_cores: int) -> dict[str, Any]:
    """Return the hardware, the package versions and the load of the machine."""
    return {
        "processor": read_processor_name(),
        "cores": num_cores,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version for name in REPORTED_PACKAGES if (version := _get_version(name))},
        "load": round(os.getloadavg()[0], 2),
        "day": datetime.now(UTC).date().isoformat(),
    }


def _get_version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def build_matrix_product() -> tuple[Callable[[], object], float]:
    """Return the float32 product by which the peak of the machine is measured, and its number of FLOPs."""
    a, b = torch.randn(MATRIX_SIZE, MATRIX_SIZE), torch.randn(MATRIX_SIZE, MATRIX_SIZE)
    out = torch.empty(MATRIX_SIZE, MATRIX_SIZE)
    return (lambda: torch.mm(a, b, out=out)), 2.0 * MATRIX_SIZE**3
