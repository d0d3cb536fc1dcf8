"""How much memory the process has needed at most, since a mark was set; and memory that is kept for the next step."""

import ctypes
import resource
import sys
from functools import cache
from pathlib import Path
from typing import Any

_PROC_STATUS, _PROC_CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""as malloc.h of glibc numbers them"""
_TRIM_THRESHOLD_BYTES, _MMAP_THRESHOLD_BYTES = 512 << 20, 32 << 20


@cache
def _load_glibc() -> Any:
    """The C library, where it is the one that has these two functions."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") and hasattr(library, "malloc_trim") else None


def retain_freed_memory() -> None:
    """Keep memory that is freed, for the same tensors of the next step. Otherwise the C library may give it back, and
    the system clears every page of it anew: of a step of the base decoder 1,400 pages, which is a twentieth of its
    time, and whether it does so is chance."""
    if library := _load_glibc():
        library.mallopt(_M_TRIM_THRESHOLD, _TRIM_THRESHOLD_BYTES)
        library.mallopt(
            _M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES
        )  # what is larger comes from the system and goes back, as ever


def reset_peak() -> None:
    """Forget the peak so far, where the system lets us (Linux). What was kept of earlier work is given back first."""
    if library := _load_glibc():
        library.malloc_trim(0)
    try:
        _PROC_CLEAR_REFS.write_text("5")
    except OSError:
        pass


def read_peak_bytes() -> int:
    """Bytes at the highest point since the mark; where no mark can be set, since the process began."""
    if _PROC_STATUS.is_file():
        for line in _PROC_STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
