"""Small runs to look at: trained once, in a second, and shared by the tests."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.config import experiment
from headtohead.config.loading import build_trial
from headtohead.experiment import loading
from headtohead.saved_models import model_io
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.trial import build_training

WORDS = ["the", "people", "will", "build", "schools", "and", "honor", "law", "peace", "jobs", "we", "ask", "new", "."]
TEXT = "the people will build new schools ."


def _rows(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=8)) for _ in range(count)]


def _experiment(folder: Path, task: str) -> experiment.Experiment:
    folder.mkdir()
    for name, count in (("train", 120), ("validation", 40), ("test", 40)):
        rows = _rows(count, len(name))
        if task == "classify":
            lines = ["label\ttext", *(f"{'jobs' if 'jobs' in row else 'none'}\t{row}" for row in rows)]
            (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n")
        else:
            (folder / f"{name}.txt").write_text("\n".join(rows) + "\n")
    raw: dict[str, Any] = {
        "question": "Where does it look?",
        "task": task,
        "seeds": 1,
        "data": {"source": str(folder)},
        "model": {"width": 16, "layers": 2, "heads": 2, "context": 12},
        "training": {"steps": 12, "batch_size": 8},
        "variants": {
            "alibi": {"model": {"position": "alibi"}},
            "window": {"model": {"pattern": {"kind": "window", "size": 3}}},
            "wide": {"model": {"heads": 4}},
            **({"seen": {"model": {"mask_padding": False}}} if task == "classify" else {}),
        },
    }
    return loading.build_experiment(raw, "tiny")


def _runs(place: Path, task: str) -> dict[str, Path]:
    """Trained and saved; not audited, which takes longer than all the rest."""
    experiment = _experiment(place / "data", task)
    found = {}
    for name in experiment.names:
        found[name] = place / name / "seed-0"
        trial = build_trial(experiment, name, 0)
        prepared = prepare_dataset(trial.data, trial.task)
        model, training = build_training(trial, prepared, found[name], torch.device("cpu"))
        training.run()
        model_io.save(found[name], model, prepared.tokenizer, trial, prepared.corpus.label_names)
    return found


@pytest.fixture(scope="session")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of a language model, by variant."""
    return _runs(tmp_path_factory.mktemp("decoders"), "language-model")


@pytest.fixture(scope="session")
def classifiers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return _runs(tmp_path_factory.mktemp("classifiers"), "classify")
