"""Head to Head: you changed one thing in a transformer. Did it help, really?

>>> import headtohead as h2h
>>> experiment = h2h.load("speeches-decoder", ["training.steps=100"])
>>> experiment.variants
{'alibi': {'model': {'position': 'alibi'}}}
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lab.loading import from_dict as experiment
    from .lab.loading import load
    from .lab.saved import load as load_model
    from .results import Results, read, run
    from .spec import Experiment
    from .verdict import Scores, Verdict, compare, judge

# Importing the package must not import torch: a name is fetched from its room when it is first asked for.
_HOMES = {
    "Experiment": ("spec", "Experiment"),
    "Results": ("results", "Results"),
    "Scores": ("verdict", "Scores"),
    "Verdict": ("verdict", "Verdict"),
    "compare": ("verdict", "compare"),
    "experiment": ("lab.loading", "from_dict"),
    "judge": ("verdict", "judge"),
    "load": ("lab.loading", "load"),
    "load_model": ("lab.saved", "load"),
    "read": ("results", "read"),
    "run": ("results", "run"),
}

__all__ = [
    "Experiment",
    "Results",
    "Scores",
    "Verdict",
    "compare",
    "experiment",
    "judge",
    "load",
    "load_model",
    "read",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    room, inside = _HOMES[name]
    return getattr(import_module(f".{room}", __name__), inside)


def __dir__() -> list[str]:
    return sorted(__all__)
