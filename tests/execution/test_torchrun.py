"""Two processes under torchrun train what one trains; killed and started again, they end with the same bits."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from jaxtyping import config
from tests.conftest import write_rows, write_text
from tests.trials.test_trial import without_times

from headtohead.atomic_io import read_json, read_jsonl
from headtohead.config import loading as config_loading
from headtohead.errors import RequestError, RunFolderError
from headtohead.execution import torchrun
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run
from headtohead.runner import recompute
from headtohead.training import checkpoints
from headtohead.training.processes import check_batch_can_be_split
from headtohead.trials.trial import run_trial

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
CLOSE = 1e-5
pytestmark = pytest.mark.timeout(600)  # two processes in step crawl where the machine is busy
LONG = {"model": {"dropout": 0.1}, "training": {"steps": 160, "eval_every": 80, "checkpoint_every": 10}}
TINY = {"width": 16, "layers": 1, "heads": 2, "context": 8}


def experiment(folder: Path, **tables: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "question": "?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(folder)},
        "model": TINY,
        "training": {"steps": 20, "batch_size": 7, "eval_every": 10, "checkpoint_every": 10},
    }
    for table, settings in tables.items():
        raw[table] = {**raw[table], **settings} if isinstance(raw.get(table), dict) else settings
    return raw


def cases(text: Path, rows: Path, roberta: Path) -> dict[str, dict[str, Any]]:
    """Every kind of training that the loop has."""
    return {
        "stream": experiment(text),
        # Padding, and 300 rows by 13: the last batch of an epoch has one row, so that the other process has none.
        "padded": experiment(
            text,
            data={"rows": "sentences"},
            model={"tie_word_embeddings": True},
            training={"batch_size": 13, "steps": 26, "max_grad_norm": 1.0},
        ),
        # So slow that accuracy stays as it is: the first weights are the best.
        "best": experiment(
            rows,
            task="classify",
            model={"context": 12},
            training={
                "eval_every": 5,
                "optimizer": {"kind": "sgd", "lr": 1e-3},
                "load_best_model_at_end": True,
                "metric_for_best_model": "accuracy",
                "early_stopping": {"patience": 2},
            },
        ),
        "classifier": experiment(rows, task="classify", model={"context": 12}),
        "finetune": experiment(rows, task="finetune", training={"steps": 10, "group_by_length": True})
        | {"model": {"pretrained": str(roberta), "max_length": 64}},
        "distil": experiment(
            text,
            task="distil",
            training={"steps": 10, "distillation": {"targets": "logits", "weight": 0.5, "top_k": 5}},
            teacher={"model": {**TINY, "layers": 2}, "training": {"steps": 5, "eval_every": 5}, "documents": 60},
        ),
        "dropout": experiment(text, model={"dropout": 0.1}),
        "killed": experiment(text, **LONG),
        "halted": experiment(text, training={"steps": 30}),
    }


def without_dropout(model: Path, folder: Path) -> Path:
    shutil.copytree(model, folder)
    settings = read_json(folder / "config.json")
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def launch(*arguments: object, folder: Path, **named: Any) -> "subprocess.Popen[str]":
    """Two processes; the tests' hooks that check shapes are left out."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*TORCHRUN, *map(str, arguments)],
        env=environment,
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **named,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> Path:
    """Every case trained by two processes, in NAME, and by this one, in NAME-alone."""
    place = tmp_path_factory.mktemp("together")
    config.update("jaxtyping_disable", True)
    encoder = without_dropout(tiny_roberta, place / "encoder")
    asked = []
    for name, raw in cases(write_text(place / "text"), write_rows(place / "rows"), encoder).items():
        seed = 0 if name == "killed" else 1  # the first seed is also audited, which takes longer
        trial = config_loading.build_trial(loading.build_experiment(raw, name), "baseline", seed)
        if name != "killed":
            run_trial(trial, place / f"{name}-alone")
        stop = 20 if name == "halted" else -1
        asked.append({"trial": trial.model_dump(mode="json"), "folder": str(place / name), "stop": stop})
    config.update("jaxtyping_disable", False)
    (place / "asked.json").write_text(json.dumps(asked))
    process = launch(Path(__file__).with_name("rank_trials.py"), place / "asked.json", folder=place)
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    return place


def losses(folder: Path) -> tuple[list[tuple[int, str]], list[float]]:
    lines = read_jsonl(folder / "metrics.jsonl")
    return [(line["step"], line["split"]) for line in lines], [line["loss"] for line in lines]


def near(one: Path, other: Path) -> None:
    """The same trial to 1e-5: every loss on the way, every score at the end."""
    (places, found), (wanted_places, wanted) = losses(one), losses(other)
    assert places == wanted_places
    assert np.abs(np.subtract(found, wanted)).max() < CLOSE
    assert Run(one).scores.keys() == Run(other).scores.keys()
    for name, column in Run(one).scores.items():
        counts = Run(one).scores[name.split(".")[0] + ".counts"]
        assert np.abs((column - Run(other).scores[name]) / counts.clip(1)).max() < CLOSE, name
    training, wanted_training = Run(one).result.training, Run(other).result.training
    assert training.steps == wanted_training.steps
    assert training.chosen_step == wanted_training.chosen_step
    assert training.is_stopped_early == wanted_training.is_stopped_early


@pytest.mark.parametrize("name", ["stream", "padded", "best", "classifier", "finetune", "distil"])
def test_two_processes_train_what_one_trains(trained, name):
    near(trained / name, trained / f"{name}-alone")
    for key in ("start.json", "trial.json"):
        assert read_json(trained / name / key) == read_json(trained / f"{name}-alone" / key)
    both, alone = Run(trained / name), Run(trained / f"{name}-alone")
    assert (both.result.training.processes, alone.result.training.processes) == (2, 1)
    assert both.result.sha256.keys() == alone.result.sha256.keys()
    assert both.find_damaged_files() == []
    assert not list(both.folder.glob("checkpoint-*"))


def test_the_early_stop_of_two_processes_is_that_of_one(trained):
    training = Run(trained / "best").result.training
    assert training.is_stopped_early
    assert (training.chosen_step, training.steps) == (0, 10)


def test_each_process_has_a_stream_of_its_own_for_dropout(trained):
    (_, both), (_, alone) = losses(trained / "dropout"), losses(trained / "dropout-alone")
    assert abs(both[-1] - alone[-1]) > CLOSE
    assert both[-1] == pytest.approx(alone[-1], rel=0.1)


def test_another_number_of_processes_is_refused_unless_asked_for(trained, tmp_path):
    shutil.copytree(trained / "halted", tmp_path / "run")
    trial = Run(tmp_path / "run").trial
    with pytest.raises(RunFolderError, match=r"saved by 2 processes, this run has one process; .*--reshard"):
        run_trial(trial, tmp_path / "run")
    assert checkpoints.reshard(tmp_path / "run", 1)
    assert not checkpoints.reshard(tmp_path / "run", 1)
    result = run_trial(trial, tmp_path / "run")
    assert result.training.processes == 1
    assert result.training.resharded == [10]  # it was halted at 20 before it could save
    near(tmp_path / "run", trained / "halted-alone")


def test_verify_trains_again_alone_what_two_processes_trained(trained, unchecked):
    assert recompute.compare_retrained(Run(trained / "stream")) == ""
    assert "differs from step 10" in recompute.compare_retrained(Run(trained / "dropout"))


def test_every_unfinished_run_of_an_experiment_is_resharded(trained, tmp_path):
    for name in ("halted", "stream"):
        shutil.copytree(trained / name, tmp_path / "runs" / name / "seed-1")
    run = tmp_path / "runs" / "halted" / "seed-1"
    assert torchrun.reshard_runs(tmp_path / "runs", 3) == [run]
    with pytest.raises(RunFolderError, match="saved by 3 processes"):
        run_trial(Run(run).trial, run)
    assert torchrun.reshard_runs(tmp_path / "nothing", 3) == []


def test_rows_that_see_each_other_are_not_shared_out():
    check_batch_can_be_split(torch.nn.Linear(2, 2))
    with pytest.raises(RequestError, match="rows of a batch depend on each other"):
        check_batch_can_be_split(torch.nn.Sequential(torch.nn.BatchNorm1d(2)))


def test_what_means_nothing_under_torchrun_is_refused():
    with pytest.raises(RequestError, match="--workers: cannot be used under torchrun"):
        torchrun.check_torchrun_options(None, 2)
    with pytest.raises(RequestError, match="--backend: cannot be used under torchrun"):
        torchrun.check_torchrun_options("ray", None)
    torchrun.check_torchrun_options(None, None)
    assert torchrun.read_ranks({}) == (0, 1, 0)


def as_file(raw: dict[str, Any], path: Path) -> Path:
    """The experiment as TOML, for the command line."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for table, settings in raw.items():
        if isinstance(settings, dict):
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def ranks_of(process: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            rank = child.environ().get("RANK")
        except psutil.Error:
            continue
        if rank is not None:
            found[int(rank)] = child
    return found


def wait_for_step(run: Path, step: int, process: "subprocess.Popen[str]") -> None:
    """Until a checkpoint beyond this step is there."""
    until = time.monotonic() + 200
    while not any(int(one.name[-6:]) > step for one in run.glob("checkpoint-*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.01)


def last_step(run: Path) -> int:
    newest = checkpoints.find_latest(run)
    assert newest is not None
    return int(newest.name[-6:])


def test_killed_and_started_again_they_end_with_the_same_bits(trained, tmp_path):
    """One is killed, and torchrun starts both anew; the other is, which ends all; then all are; then to the end."""
    raw = cases(trained / "text", trained / "rows", trained)["killed"]
    command = [
        "-m",
        "headtohead.cli",
        "run",
        as_file(raw, tmp_path / "file.toml"),
        "--out",
        tmp_path / "runs",
        "--resume",
    ]
    run = tmp_path / "runs" / "baseline" / "seed-0"

    process = launch("--max-restarts=1", *command, folder=tmp_path)
    wait_for_step(run, 10, process)
    ranks_of(process)[1].kill()
    step = last_step(run)
    wait_for_step(run, step + 10, process)
    ranks_of(process)[0].kill()
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "run the same command with --resume" in said
    assert not Run(run).is_finished
    assert Run(run).failure is None

    process = launch(*command, folder=tmp_path)
    wait_for_step(run, last_step(run), process)
    for one in [*ranks_of(process).values(), psutil.Process(process.pid)]:
        one.kill()
    process.communicate(timeout=120)
    assert not Run(run).is_finished

    process = launch(*command, folder=tmp_path)
    said, _ = process.communicate(timeout=250)
    assert process.returncode == 0, said
    assert without_times(run) == without_times(trained / "killed")
    for name in ("model.safetensors", "scores.safetensors", "start.json"):
        assert (run / name).read_bytes() == (trained / "killed" / name).read_bytes(), name
    assert Run(run).result.training.processes == 2
    assert (tmp_path / "runs" / "report.html").is_file()
