"""What is asked: experiment files as frozen data. Knows no torch."""

from .base import Choice
from .data import Columns, Data, Files, Once
from .distil import ContestClaim, Taught, Teacher
from .experiment import (
    BASELINE,
    Claim,
    Comparison,
    Experiment,
    Original,
    Primary,
    Probe,
    Published,
    Task,
    Trial,
)
from .loading import changes_of, parse, read, recipe_names, recipe_path, resolve, schema, trial
from .model import Model, OwnModel, PerLayer, Transformer
from .pretrained import Lora, Pretrained
from .training import Training

__all__ = [
    "BASELINE",
    "Choice",
    "Claim",
    "Columns",
    "Comparison",
    "ContestClaim",
    "Data",
    "Experiment",
    "Files",
    "Lora",
    "Model",
    "Once",
    "Original",
    "OwnModel",
    "PerLayer",
    "Pretrained",
    "Primary",
    "Probe",
    "Published",
    "Task",
    "Taught",
    "Teacher",
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
