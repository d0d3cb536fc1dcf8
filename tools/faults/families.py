"""Every fault by its name."""

from __future__ import annotations

from . import clock, disks, flips, folders, kills, nodes
from .seen import Fault

FAULTS: dict[str, Fault] = {
    "kills": kills.kills,
    "nodes": nodes.nodes,
    "disk": disks.full,
    "readonly": disks.read_only,
    "bytes": flips.flips,
    "removed": folders.removed,
    "twice": folders.twice,
    "clock": clock.clock,
}
FULL_ONLY = ("nodes",)
"""what takes too long for every day"""
