"""Selection of the training device, number of threads, and number of available cores."""

from __future__ import annotations

import os
import sys

import torch

from headtohead.errors import DeviceError, RequestError, suggest

DEVICES = ("auto", "cpu", "cuda", "mps")
_DEVICE_ALIASES = {"gpu": "cuda", "nvidia": "cuda", "metal": "mps", "apple": "mps"}


def select_device(device: str = "auto") -> torch.device:
    """Return the device to train on. `auto` selects the fastest available type."""
    if device not in DEVICES:
        suggestion = _DEVICE_ALIASES.get(device) or suggest(device, DEVICES)
        hint = f"; did you mean {suggestion!r}?" if suggestion else ""
        raise DeviceError(f"unknown device {device!r}{hint} (allowed: {', '.join(DEVICES)})")
    if device == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if _explain_unavailable_device(kind) is None))
    if reason := _explain_unavailable_device(device):
        raise DeviceError(f"device {device!r} is not available: {reason}; use --device auto or --device cpu")
    return torch.device(device)


def _explain_unavailable_device(kind: str) -> str | None:
    """Return the reason why this type of device cannot be used, or None if it can."""
    if kind == "cuda" and not torch.cuda.is_available():
        is_built = torch.version.cuda or torch.version.hip
        return "no GPU was found" if is_built else "this build of torch has no CUDA support"
    if kind == "mps" and not torch.backends.mps.is_available():
        return "no GPU was found" if torch.backends.mps.is_built() else "this build of torch has no MPS support"
    return None


def set_num_threads(num_threads: int) -> int:
    """Set the number of torch threads in this process; return the previous number."""
    if num_threads < 1:
        raise RequestError(f"threads must be 1 or more, got {num_threads}")
    previous_num_threads = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    return previous_num_threads


def count_available_cores() -> int:
    """Return the number of cores available to this process, which can be lower than that of the machine."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1
