"""A small world: a text with some sense in it, and an experiment on it that trains in a second."""

import random
from pathlib import Path
from typing import Any

import pytest

from headtohead.config import experiment
from headtohead.experiment import loading

SUBJECTS = ["the president", "the people", "our nation", "a free country", "the congress", "every worker"]
VERBS = ["will defend", "must build", "has asked for", "cannot forget", "will honor", "wants"]
OBJECTS = ["the peace", "a stronger economy", "new schools", "the law", "this promise", "better jobs", "our allies"]


def sentence(draw: random.Random) -> str:
    return f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)} ."


def write_text(folder: Path) -> Path:
    draw = random.Random(0)
    folder.mkdir()
    for name, rows in (("train", 300), ("test", 60), ("validation", 60)):
        (folder / f"{name}.txt").write_text("\n".join(sentence(draw) for _ in range(rows)) + "\n")
    return folder


def write_rows(folder: Path) -> Path:
    draw = random.Random(1)
    folder.mkdir()
    for name, rows in (("train", 200), ("test", 60)):
        lines = []
        for _ in range(rows):
            text = sentence(draw)
            lines.append(f"{'builder' if 'build' in text or 'jobs' in text else 'other'}\t{text}")
        (folder / f"{name}.tsv").write_text("label\ttext\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def text_folder(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text")


@pytest.fixture
def rows_folder(tmp_path: Path) -> Path:
    return write_rows(tmp_path / "rows")


@pytest.fixture
def small(text_folder: Path) -> Any:
    """Builds the experiment; keyword arguments replace tables' settings."""

    def build(**changes: dict[str, Any]) -> experiment.Experiment:
        raw: dict[str, Any] = {
            "question": "Does it help?",
            "task": "language-model",
            "seeds": 2,
            "data": {"source": str(text_folder)},
            "model": {"width": 16, "layers": 1, "heads": 2, "context": 8},
            "training": {"steps": 40, "batch_size": 8, "eval_every": 10, "checkpoint_every": 10},
            "variants": {"alibi": {"model": {"position": "alibi"}}},
            "probe": {"prompts": ["the people"], "sentences": {"normal": "the people will defend the peace ."}},
        }
        for table, settings in changes.items():
            merged = isinstance(settings, dict) and table != "variants"
            raw[table] = {**raw.get(table, {}), **settings} if merged else settings
        return loading.build_experiment(raw, "small")

    return build
