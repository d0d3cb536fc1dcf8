"""All benchmarks by name, in the order in which they run and are shown."""

from __future__ import annotations

from .classifier import measure_classifier_training
from .decoding import measure_decoding
from .measurements import Benchmark
from .memory import measure_memory
from .startup import measure_startup
from .step import measure_step_efficiency
from .tokenization import measure_tokenization
from .training import measure_decoder_training
from .window import measure_window

BENCHMARKS: dict[str, Benchmark] = {
    "training": measure_decoder_training,
    "classifier": measure_classifier_training,
    "step": measure_step_efficiency,
    "memory": measure_memory,
    "window": measure_window,
    "startup": measure_startup,
    "tokenization": measure_tokenization,
    "decoding": measure_decoding,
}
