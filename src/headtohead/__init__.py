"""Head to Head: you changed one thing in a transformer. Did it help, really?

>>> import headtohead as h2h
>>> experiment = h2h.load("speeches-decoder", ["training.steps=100"])
>>> experiment.variants
{'alibi': {'model': {'position': 'alibi'}}}
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import design
    from .decode.generate import generate
    from .lab.loading import from_dict as experiment
    from .lab.loading import load
    from .lab.opening import open_model as load_model
    from .looking import attention
    from .results import Results, read, run
    from .spec import Experiment
    from .verdict import Scores, Verdict, compare, judge

# Importing the package must not import torch: a name is fetched from its room when it is first asked for.
_HOMES = {
    "Experiment": ("spec", "Experiment"),
    "Results": ("results", "Results"),
    "Scores": ("verdict", "Scores"),
    "Verdict": ("verdict", "Verdict"),
    "attention": ("looking", "attention"),
    "compare": ("verdict", "compare"),
    "design": ("design", ""),  # a room of its own: headtohead.design.select
    "experiment": ("lab.loading", "from_dict"),
    "generate": ("decode", "generate"),
    "judge": ("verdict", "judge"),
    "load": ("lab.loading", "load"),
    "load_model": ("lab.opening", "open_model"),
    "read": ("results", "read"),
    "run": ("results", "run"),
}

__all__ = [
    "Experiment",
    "Results",
    "Scores",
    "Verdict",
    "attention",
    "compare",
    "design",
    "experiment",
    "generate",
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
    home = import_module(f".{room}", __name__)
    return getattr(home, inside) if inside else home


def __dir__() -> list[str]:
    return sorted(__all__)
