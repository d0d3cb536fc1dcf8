"""What is asked: experiment files as frozen data. Knows no torch."""

from .data import Columns, Data, Files
from .experiment import Experiment, Primary, Probe, Published, Trial
from .loading import check_settings, parse, read, recipe_names, recipe_path, resolve, schema
from .model import Choice, Model, OwnModel, PerLayer, Transformer
from .training import Training

__all__ = [
    "Choice",
    "Columns",
    "Data",
    "Experiment",
    "Files",
    "Model",
    "OwnModel",
    "PerLayer",
    "Primary",
    "Probe",
    "Published",
    "Training",
    "Transformer",
    "Trial",
    "check_settings",
    "parse",
    "read",
    "recipe_names",
    "recipe_path",
    "resolve",
    "schema",
]
