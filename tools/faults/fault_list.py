"""All faults by name."""

from __future__ import annotations

from . import clock, cluster_nodes, corruption, disks, folders, kills
from .outcome import Fault

FAULTS: dict[str, Fault] = {
    "kills": kills.kill_processes,
    "nodes": cluster_nodes.kill_nodes,
    "disk": disks.fill_disk,
    "readonly": disks.make_read_only,
    "bytes": corruption.corrupt_files,
    "removed": folders.remove_folders,
    "twice": folders.start_twice,
    "clock": clock.shift_clock,
}
FULL_RUN_ONLY_FAULTS = ("nodes",)
"""faults that take too long for a short run"""
