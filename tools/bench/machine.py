"""What the figures were measured on."""

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

SQUARE = 2048
PACKAGES = ("headtohead", "torch", "transformers", "accelerate", "x-transformers", "tokenizers")


def facts(cores: int) -> dict[str, Any]:
    """The machine, the versions, and how busy it was."""
    return {
        "processor": _processor(),
        "cores": cores,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
        "load": round(os.getloadavg()[0], 2),
        "day": datetime.now(UTC).date().isoformat(),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.is_file() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def square_product() -> tuple[Callable[[], object], float]:
    """The product that a machine's limit is measured by, in float32, and how many operations it takes."""
    a, b = torch.randn(SQUARE, SQUARE), torch.randn(SQUARE, SQUARE)
    out = torch.empty(SQUARE, SQUARE)
    return (lambda: torch.mm(a, b, out=out)), 2.0 * SQUARE**3
