"""What is asked: experiment files as frozen data. Knows no torch."""

from .base import Choice
from .data import Columns, Data, Files, Once
from .experiment import BASELINE, Claim, Experiment, Original, Primary, Probe, Published, Trial
from .loading import changes_of, parse, read, recipe_names, recipe_path, resolve, schema, trial
from .model import Model, OwnModel, PerLayer, Transformer
from .training import Training

__all__ = [
    "BASELINE",
    "Choice",
    "Claim",
    "Columns",
    "Data",
    "Experiment",
    "Files",
    "Model",
    "Once",
    "Original",
    "OwnModel",
    "PerLayer",
    "Primary",
    "Probe",
    "Published",
    "Training",
    "Transformer",
    "Trial",
    "changes_of",
    "parse",
    "read",
    "recipe_names",
    "recipe_path",
    "resolve",
    "schema",
    "trial",
]
