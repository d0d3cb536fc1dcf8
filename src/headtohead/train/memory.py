"""How much memory the process has needed at most, since a mark was set."""

import resource
import sys
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def mark() -> None:
    """Forget the peak so far, where the system lets us (Linux)."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        pass


def peak() -> int:
    """Bytes at the highest point since the mark; where no mark can be set, since the process began."""
    if _STATUS.is_file():
        for line in _STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
