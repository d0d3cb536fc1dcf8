"""All benchmarks by name, in the order in which they run and are shown."""

from __future__ import annotations

from .classifier import measure_classifier_training
from .decoding import measure_decoding
from .distillation import measure_distillation
from .finetuning import measure_finetuning
from .jax_step import measure_jax_steps
from .large import measure_large_models
from .measurements import Benchmark
from .memory import measure_memory
from .nanogpt import measure_nanogpt
from .startup import measure_startup
from .step import measure_step_efficiency
from .tokenization import measure_tokenization
from .training import measure_decoder_training
from .window import measure_window

BENCHMARKS: dict[str, Benchmark] = {
    "training": measure_decoder_training,
    "classifier": measure_classifier_training,
    "finetuning": measure_finetuning,
    "distillation": measure_distillation,
    "step": measure_step_efficiency,
    "nanogpt": measure_nanogpt,
    "jax": measure_jax_steps,
    "large": measure_large_models,
    "memory": measure_memory,
    "window": measure_window,
    "startup": measure_startup,
    "tokenization": measure_tokenization,
    "decoding": measure_decoding,
}
