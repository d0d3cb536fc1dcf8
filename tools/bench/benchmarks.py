"""All benchmarks by name, in the order in which they run and are shown."""

from __future__ import annotations

from .classifier import classifier
from .decoding import decoding
from .measurements import Benchmark
from .memory import memory
from .startup import startup
from .step import step
from .tokenization import tokenization
from .training import training
from .window import window

BENCHMARKS: dict[str, Benchmark] = {
    "training": training,
    "classifier": classifier,
    "step": step,
    "memory": memory,
    "window": window,
    "startup": startup,
    "tokenization": tokenization,
    "decoding": decoding,
}
