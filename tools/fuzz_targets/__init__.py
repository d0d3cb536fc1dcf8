"""Fuzz targets: one for each kind of input from untrusted sources, with valid inputs to start from.

A target writes the bytes of an input where the package expects a file and opens it. It must either succeed or raise one
of the package's errors with a message of bounded length; `run_target` checks that. `run_in_sandbox` checks the rest: no
file outside the scratch folder is written or read, no code from the input is run, no process is started and no
connection is opened. Used by `tools/fuzz.py` and tests/hostile. Valid inputs come from a training run of a few steps.
"""

from . import caches, models, runs, texts
from .sandbox import SandboxViolationError, run_in_sandbox
from .target import FUZZ_TARGETS, FuzzTarget, run_target

__all__ = [
    "FUZZ_TARGETS",
    "FuzzTarget",
    "SandboxViolationError",
    "caches",
    "models",
    "run_in_sandbox",
    "run_target",
    "runs",
    "texts",
]
