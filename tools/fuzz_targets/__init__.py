"""Fuzz targets: one for each kind of input from untrusted sources, with valid inputs to start from.

A target gets bytes and puts them where the package expects a file. It must either succeed or raise one of the package's
errors with a message of bounded length; `run_target` checks that. `watched` checks the rest: no file outside the
scratch folder is written or read, no code from the input is run, no process is started and no connection is opened.
Used by `tools/fuzz.py` and tests/hostile. Valid inputs come from a training run of a few steps.
"""

from . import caches, models, runs, texts
from .sandbox import TrespassError, watched
from .target import FUZZ_TARGETS, FuzzTarget, run_target

__all__ = ["FUZZ_TARGETS", "FuzzTarget", "TrespassError", "caches", "models", "run_target", "runs", "texts", "watched"]
