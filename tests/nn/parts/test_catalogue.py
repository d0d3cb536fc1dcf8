"""Every idea of the catalogue trains from an experiment file, is short, and has a test of its formula."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from headtohead.config.toml import format_toml_value
from headtohead.experiment.loading import load_experiment
from headtohead.experiment.run_folder import build_trials
from headtohead.json_files import read_jsonl
from headtohead.nn.parts import registry
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.hardware.precision import is_bfloat16_usable
from headtohead.trials.trial import build_training
from tools import catalog, reference

ROOT = Path(__file__).parents[3]
IDEAS = catalog.load_ideas()
BASE = """
question = "Does it train?"
task = "language-model"
seeds = 1
data.source = "text"
data.allow_overlap = true
model.width = 16
model.layers = 2
model.heads = 2
model.context = 8
training.budget = "20 steps"
training.batch_size = 4
training.eval_every = 20
"""


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    monkeypatch.setattr(registry, "_plugin_files", dict(registry._plugin_files))


def write_experiment(folder: Path, idea: catalog.Idea) -> Path:
    settings = [line for line in BASE.splitlines() if not any(line.startswith(f"{key} ") for key in idea.settings)]
    settings += [f"{key} = {format_toml_value(value)}" for key, value in idea.settings.items()]
    plugins = [f"plugins = {format_toml_value([str(idea.example_file)])}"] if idea.example_file else []
    file = folder / "experiment.toml"
    file.write_text("\n".join([*plugins, *settings, "[variants]"]))
    return file


def test_the_page_groups_ideas_by_slot_and_slot_pages_link_to_it() -> None:
    page = reference.build_ideas_page()
    headings = re.findall("^## (.+)$", page, flags=re.MULTILINE)
    slots = [slot for slot in registry.SLOTS if any(idea.slot == slot for idea in IDEAS)]
    assert headings == [*slots, "Other settings", "Length of the files"] and len(slots) > 15
    sections = dict(zip(headings, re.split("^## .+$", page, flags=re.MULTILINE)[1:], strict=True))
    for idea in IDEAS:
        assert f"| {idea.name} |" in sections[idea.slot or "Other settings"]
        assert idea.part is None or idea.slot == idea.part[0]
    for slot in registry.SLOTS:
        assert (f"(../ideas.md#{slot})" in reference.build_slot_page(slot)) == (slot in slots)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("idea", IDEAS, ids=[idea.name for idea in IDEAS])
def test_idea_trains_from_an_experiment_file(idea: catalog.Idea, text_folder: Path, tmp_path: Path) -> None:
    if idea.part == ("optimizer", "muon") and not (hasattr(torch.optim, "Muon") and is_bfloat16_usable()):
        pytest.skip("muon needs torch 2.9, and bfloat16, which crashes on some machines")
    experiment = load_experiment(write_experiment(text_folder.parent, idea))
    (trial,) = build_trials(experiment, range(1))
    dataset = prepare_dataset(trial.data, trial.task)
    _, trainer = build_training(trial, dataset, tmp_path, torch.device("cpu"))
    assert trainer.run().steps == 20
    losses: list[Any] = [line["loss"] for line in read_jsonl(tmp_path / "metrics.jsonl") if line["split"] == "train"]
    assert losses[-1] < losses[0]


def test_the_catalogue_has_every_idea_once() -> None:
    names = [idea.name for idea in IDEAS]
    assert len(names) == len(set(names)) > 80  # the documentation says "more than 80"


def test_every_example_belongs_to_an_idea() -> None:
    """Two examples are built-in parts as well: they show how short a part may be."""
    used = {idea.example_file for idea in IDEAS}
    others = {file.stem for file in catalog.EXAMPLE_PARTS_FOLDER.glob("*.py") if file not in used}
    assert others == {"output_softcap", "score_softcap"}


@pytest.mark.parametrize("test", sorted({idea.test for idea in IDEAS}))
def test_the_named_test_exists(test: str) -> None:
    path, name = test.split("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def test_parts_of_users_are_short() -> None:
    """The catalogue of the documentation prints the median."""
    assert catalog.compute_median_lines() <= 15
