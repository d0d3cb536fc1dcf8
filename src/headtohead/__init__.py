"""Head to Head: you changed one thing in a transformer. Did it help, really?

>>> import headtohead as h2h
>>> experiment = h2h.load_experiment("speeches-decoder", ["training.budget=100 steps"])
>>> experiment.variants
{'alibi': {'model': {'position': 'alibi'}}}
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from headtohead.errors import WINDOWS_MESSAGE

if TYPE_CHECKING:
    from headtohead import key_design
    from headtohead.attention_analysis.analysis import analyze_attention
    from headtohead.generation.generate import generate
    from headtohead.runner.api.experiment import Experiment, experiment_from_dict, load_experiment
    from headtohead.runner.api.results import Results, read_results
    from headtohead.runner.api.run import run
    from headtohead.saved_models.open_model import open_model as load_model
    from headtohead.verdict.compare import compare_scores
    from headtohead.verdict.external_scores.judge_csv import judge_csv
    from headtohead.verdict.record import Verdict
    from headtohead.verdict.scores import Scores
    from headtohead.versus.pairing import paired
    from headtohead.versus.script_recording import record

# Importing the package must not import torch, so each public name is imported on first access.
_LOCATIONS = {
    "Experiment": "headtohead.runner.api.experiment:Experiment",
    "Results": "headtohead.runner.api.results:Results",
    "Scores": "headtohead.verdict.scores:Scores",
    "Verdict": "headtohead.verdict.record:Verdict",
    "analyze_attention": "headtohead.attention_analysis.analysis:analyze_attention",
    "compare_scores": "headtohead.verdict.compare:compare_scores",
    "experiment_from_dict": "headtohead.runner.api.experiment:experiment_from_dict",
    "generate": "headtohead.generation.generate:generate",
    "judge_csv": "headtohead.verdict.external_scores.judge_csv:judge_csv",
    "key_design": "headtohead.key_design:",
    "load_experiment": "headtohead.runner.api.experiment:load_experiment",
    "load_model": "headtohead.saved_models.open_model:open_model",
    "paired": "headtohead.versus.pairing:paired",
    "read_results": "headtohead.runner.api.results:read_results",
    "record": "headtohead.versus.script_recording:record",
    "run": "headtohead.runner.api.run:run",
}

__all__ = [
    "Experiment",
    "Results",
    "Scores",
    "Verdict",
    "analyze_attention",
    "compare_scores",
    "experiment_from_dict",
    "generate",
    "judge_csv",
    "key_design",
    "load_experiment",
    "load_model",
    "paired",
    "read_results",
    "record",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import a name of the public Python API from its module on first access."""
    if name not in _LOCATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if sys.platform == "win32":
        raise ImportError(WINDOWS_MESSAGE)
    module_name, symbol = _LOCATIONS[name].split(":")
    module = import_module(module_name)
    return getattr(module, symbol) if symbol else module


def __dir__() -> list[str]:
    return sorted(__all__)
