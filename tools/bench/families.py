"""The families by name, in the order in which they are run and shown."""

from __future__ import annotations

from .classifier import classifier
from .decoding import decoding
from .findings import Family
from .memory import memory
from .startup import startup
from .step import step
from .tokenising import tokenising
from .training import training
from .window import window

FAMILIES: dict[str, Family] = {
    "training": training,
    "classifier": classifier,
    "step": step,
    "memory": memory,
    "window": window,
    "startup": startup,
    "tokenising": tokenising,
    "decoding": decoding,
}
