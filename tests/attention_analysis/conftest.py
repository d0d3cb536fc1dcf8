"""Small trained runs, created once in about a second and shared by the tests."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.config import experiment
from headtohead.config.trial_settings import build_trial
from headtohead.experiment import loading
from headtohead.saved_models import model_io
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import build_training

WORDS = ["the", "people", "will", "build", "schools", "and", "honor", "law", "peace", "jobs", "we", "ask", "new", "."]
TEXT = "the people will build new schools ."


def _sample_sentences(num_sentences: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=8)) for _ in range(num_sentences)]


def _build_experiment(folder: Path, task: str) -> experiment.Experiment:
    """Write a tiny corpus to a folder and return an experiment that uses it."""
    folder.mkdir()
    for split, num_sentences in (("train", 120), ("validation", 40), ("test", 40)):
        sentences = _sample_sentences(num_sentences, seed=len(split))
        if task == "classify":
            labels = ["jobs" if "jobs" in sentence else "none" for sentence in sentences]
            lines = ["label\ttext", *(f"{label}\t{text}" for label, text in zip(labels, sentences, strict=True))]
            (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
        else:
            (folder / f"{split}.txt").write_text("\n".join(sentences) + "\n")
    raw: dict[str, Any] = {
        "question": "What do heads attend to?",
        "task": task,
        "seeds": 1,
        "data": {"source": str(folder)},
        "model": {"width": 16, "layers": 2, "heads": 2, "context": 12},
        "training": {"budget": "12 steps", "batch_size": 8},
        "variants": {
            "alibi": {"model": {"position": "alibi"}},
            "window": {"model": {"pattern": {"kind": "window", "size": 3}}},
            "wide": {"model": {"heads": 4}},
            **({"unmasked": {"model": {"mask_padding": False}}} if task == "classify" else {}),
        },
    }
    return loading.build_experiment(raw, "tiny")


def _train_variants(folder: Path, task: str) -> dict[str, Path]:
    """Train every variant and return its run folder. Runs are not audited, because audits take most of the time."""
    experiment = _build_experiment(folder / "data", task)
    run_folders = {}
    for variant in experiment.names:
        run_folders[variant] = folder / variant / "seed-0"
        trial = build_trial(experiment, variant, 0)
        dataset = prepare_dataset(trial.data, trial.task)
        model, trainer = build_training(trial, dataset, run_folders[variant], torch.device("cpu"))
        trainer.run()
        model_io.save_model(run_folders[variant], model, dataset.tokenizer, trial, dataset.corpus.label_names)
    return run_folders


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folder of each variant of a language model."""
    return _train_variants(tmp_path_factory.mktemp("decoders"), "language-model")


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the run folder of each variant of a classifier."""
    return _train_variants(tmp_path_factory.mktemp("classifiers"), "classify")
