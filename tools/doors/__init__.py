"""Every door that input from outside comes through: what opens it, and a few sound inputs to begin from.

A door is given bytes and puts them where the package expects a file. All that may come of it is an answer, or one of
the package's own errors with a message of bounded length. `knock` holds every door to that, and `watched` to the rest:
no file outside the scratch folder is written or read, no code of the input is run, nothing is started or connected.
Used by `tools/fuzz.py` and by tests/hostile. Sound inputs are made on the spot, from a training of a few steps.
"""

from . import kept, models, runs, texts
from .frame import DOORS, Door, knock
from .watching import TrespassError, watched

__all__ = ["DOORS", "Door", "TrespassError", "kept", "knock", "models", "runs", "texts", "watched"]
