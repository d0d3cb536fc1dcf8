"""Loaded by every Python process that finds this folder in PYTHONPATH: its clock is off by what a file says."""

import os
import time
from pathlib import Path

FILE = "H2H_FAULTS_CLOCK"
_time, _time_ns = time.time, time.time_ns


def seconds_off() -> float:
    try:
        return float(Path(os.environ[FILE]).read_text(encoding="utf-8"))
    except (KeyError, OSError, ValueError):
        return 0.0


time.time = lambda: _time() + seconds_off()
time.time_ns = lambda: _time_ns() + int(seconds_off() * 1e9)
