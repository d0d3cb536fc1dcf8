"""What `h2h verify` guarantees if files of a run folder were edited and all checksums, the journal and findings.json
were rewritten (docs/security.md).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file as save_tensors
from tests.conftest import write_rows, write_text

from headtohead.atomic_io import compute_sha256
from headtohead.experiment import loading
from headtohead.experiment.run_folder import open_experiment_runs
from headtohead.json_files import read_json_object, write_json
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verification.isolated_scoring import remove_corpus_settings
from headtohead.runner.verification.verify import verify_experiment
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.trials.evaluation import evaluate_splits
from headtohead.trials.trial import run_trial

from .test_runs_belong import forge_journal

RETRAINED = {"num_retrained": 99}
RESCORED = {"rescore": True}


def build(folder: Path, task: str) -> Any:
    source = folder / task
    if not source.exists() and task == "language-model":
        write_text(source)
    elif not source.exists():
        write_rows(source, test=200)
    data: dict[str, Any] = {"source": str(source), "allow_overlap": True}
    variant: dict[str, Any] = {"position": "alibi"}
    if task == "classify":
        data["tokenizer"] = {"kind": "words", "add_mask": True}
        variant["init_from"] = {"training": {"budget": "5 steps"}}
    raw = {
        "question": "Does it help?",
        "task": task,
        "seeds": 1,
        "data": data,
        "model": {"width": 16, "layers": 1, "heads": 2, "context": 12},
        "training": {"budget": "10 steps", "batch_size": 8, "eval_every": 5},
        "variants": {"alibi": {"model": variant}},
        "probe": {"sentences": {"normal": "the people will defend the peace ."}},
    }
    return loading.build_experiment(raw, "forged")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, in_process_pool: Any) -> Path:
    root = tmp_path_factory.mktemp("forged")
    for task in ("language-model", "classify"):
        assert not run_experiment(build(root, task), root / f"{task}-runs", backend=in_process_pool).failed_jobs
    return root


def edit_result(run: Path, edit: Callable[[dict[str, Any]], None] = lambda result: None) -> None:
    """Edit result.json and rewrite the checksums of all files of the run."""
    result = read_json_object(run / "result.json")
    result.pop("checksum")
    edit(result)
    result["sha256"] = {name: compute_sha256(run / name) for name in result["sha256"]}
    write_json(run / "result.json", result, with_checksum=True)


def edit_scores(run: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Edit scores.safetensors and update the numbers in result.json to match."""
    arrays = load_file(run / "scores.safetensors")
    edit(arrays)
    save_file(arrays, run / "scores.safetensors")

    def recompute(result: dict[str, Any]) -> None:
        for split, score in result["scores"].items():
            losses, counts, correct = (arrays[f"{split}.{name}"].sum() for name in ("losses", "counts", "correct"))
            score["loss"] = float(losses / counts)
            for name, value in (("perplexity", float(np.exp(losses / counts))), ("accuracy", float(correct / counts))):
                if score[name] is not None:
                    score[name] = value

    edit_result(run, recompute)


def lower_losses(run: Path) -> None:
    """Forge a better score for every test example."""

    def lower(arrays: dict[str, Any]) -> None:
        arrays["test.losses"] = 0.9 * arrays["test.losses"]

    edit_scores(run, lower)


def correct_one_answer(run: Path) -> None:
    """Forge one correct prediction."""

    def correct(arrays: dict[str, Any]) -> None:
        wrong = int(np.flatnonzero(arrays["test.correct"] == 0)[0])
        arrays["test.correct"][wrong] = 1
        arrays["test.guessed"][wrong] = arrays["test.labels"][wrong]

    edit_scores(run, correct)


def improve_curves(run: Path) -> None:
    """Forge a steeper learning curve."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for line in lines[1:-2]:
        line["loss"] *= 0.9
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    edit_result(run)


def edit_probes(run: Path) -> None:
    """Forge a different prediction for a probe sentence."""
    probes = read_json_object(run / "probes.json")
    (run / "probes.json").write_text(re.sub(r"\d\.\d+", "0.123", json.dumps(probes)))
    edit_result(run)


def train_on_test(run: Path) -> None:
    """Replace the weights by weights trained on the test text, and record their scores."""
    trial = open_experiment_runs(run.parents[1]).run(run.parent.name, 0).trial
    dataset, task = prepare_dataset(trial.data, trial.task), get_task(trial.task)
    model, objective = task.build_model(trial, dataset, None), task.build_objective(dataset)
    model.load_state_dict(load_tensors(run / "model.safetensors"))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        for batch in task.build_split_examples(trial, dataset, "test").iter_batches(16):
            optimizer.zero_grad()
            objective.compute_loss(model, batch).backward()
            optimizer.step()
    save_tensors(model.state_dict(), run / "model.safetensors")
    evaluations = evaluate_splits(trial, dataset, model.eval(), torch.device("cpu"))
    edit_scores(
        run,
        lambda arrays: arrays.update(
            {f"{split}.{name}": values for split, row in evaluations.items() for name, values in row.columns.items()}
        ),
    )


def train_on_test_as_if_by_two_processes(run: Path) -> None:
    """Like `train_on_test`, but declare two processes and change a loss by rounding: such runs are reproduced
    approximately.
    """
    train_on_test(run)
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(re.sub(r'("loss": \d\.\d{6})\d+', r"\1", text, count=1))
    edit_result(run, lambda result: result["training"].update(processes=2))


def take_another_seed(run: Path) -> None:
    """Replace the run by the run of a better seed."""
    record = read_json_object(run / "trial.json")
    trial = open_experiment_runs(run.parents[1]).run(run.parent.name, 0).trial
    shutil.rmtree(run)
    run_trial(trial.model_copy(update={"seed": 5}), run, device="cpu")
    write_json(run / "trial.json", {key: record[key] for key in record if key != "checksum"}, with_checksum=True)
    edit_result(run, lambda result: result.update(seed=0))


FORGED: dict[str, tuple[str, Callable[[Path], None], dict[str, Any]]] = {
    "losses lowered": ("language-model", lower_losses, RESCORED),
    "losses lowered, retrained": ("language-model", lower_losses, RETRAINED),
    "one answer corrected": ("classify", correct_one_answer, RESCORED),
    "one answer corrected, retrained": ("classify", correct_one_answer, RETRAINED),
    "another seed": ("language-model", take_another_seed, RESCORED),
    "another seed of a pre-trained classifier": ("classify", take_another_seed, RESCORED),
    "curves improved": ("language-model", improve_curves, RETRAINED),
    "probes edited": ("language-model", edit_probes, RETRAINED),
    "trained on test": ("language-model", train_on_test, RETRAINED),
    "trained on test by two": ("language-model", train_on_test_as_if_by_two_processes, RETRAINED),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_forgery_is_reported(trained: Path, tmp_path: Path, forgery: str) -> None:
    task, forge, level = FORGED[forgery]
    runs = tmp_path / "runs"
    shutil.copytree(trained / f"{task}-runs", runs)
    forge(runs / "alibi" / "seed-0")
    forge_journal(runs)
    assert all(check.passed for check in verify_experiment(runs)), "the forgery is consistent"
    failed = [check for check in verify_experiment(runs, **level) if not check.passed]
    assert {check.location for check in failed} == {"alibi/seed-0"}, failed


def test_untouched_runs_pass(trained: Path) -> None:
    for task in ("language-model", "classify"):
        checks = verify_experiment(trained / f"{task}-runs", isolated=True, **RESCORED, **RETRAINED)
        assert all(check.passed for check in checks), [check for check in checks if not check.passed]
        isolated = {check.observation for check in checks if check.description == "scores of an isolated process"}
        assert isolated == {"the same" if task == "language-model" else "does not apply: the model reads whole texts"}


def test_the_isolated_process_is_not_told_where_the_corpus_is(trained: Path) -> None:
    for task in ("language-model", "classify"):
        config = read_json_object(trained / f"{task}-runs" / "alibi" / "seed-0" / "config.json")
        assert str(trained) in str(config)
        assert str(trained) not in str(remove_corpus_settings(config))
