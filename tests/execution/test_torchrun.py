"""Two processes under torchrun train the same model as one process; killed and restarted, they end bit-identical."""

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
from tests.trials.test_trial import read_lines_without_times

from headtohead.config import trial_settings
from headtohead.errors import RequestError, RunFolderError
from headtohead.execution import torchrun
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run
from headtohead.json_files import read_json, read_jsonl
from headtohead.runner.verification import retrain
from headtohead.training import checkpoints
from headtohead.training.optimization.gradients import check_batch_can_be_split
from headtohead.trials.trial import run_trial

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LOSS_TOLERANCE = 1e-5
pytestmark = pytest.mark.timeout(600)  # two processes in step crawl where the machine is busy
LONG = {"model": {"dropout": 0.1}, "training": {"budget": "160 steps", "eval_every": 80, "checkpoint_every": 10}}
TINY = {"width": 16, "layers": 1, "heads": 2, "context": 8}


def build_raw_experiment(folder: Path, **tables: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "question": "?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(folder)},
        "model": TINY,
        "training": {"budget": "20 steps", "batch_size": 7, "eval_every": 10, "checkpoint_every": 10},
    }
    for table, settings in tables.items():
        raw[table] = {**raw[table], **settings} if isinstance(raw.get(table), dict) else settings
    return raw


def build_raw_experiments(text: Path, rows: Path, roberta: Path) -> dict[str, dict[str, Any]]:
    """Return a trial for every feature of the training loop."""
    return {
        "stream": build_raw_experiment(text),
        # Padding, and 300 rows by 13: the last batch of an epoch has one row, so that the other process has none.
        "padded": build_raw_experiment(
            text,
            data={"rows": "sentences"},
            model={"tie_word_embeddings": True},
            training={"batch_size": 13, "budget": "26 steps", "max_grad_norm": 1.0},
        ),
        # So slow that accuracy stays as it is: the first weights are the best.
        "best": build_raw_experiment(
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
        "classifier": build_raw_experiment(rows, task="classify", model={"context": 12}),
        "finetune": build_raw_experiment(rows, task="finetune", training={"budget": "10 steps", "order": "by-length"})
        | {"model": {"pretrained": str(roberta), "max_length": 64}},
        "distil": build_raw_experiment(
            text,
            task="distil",
            training={"budget": "10 steps", "distillation": {"targets": "logits", "weight": 0.5, "top_k": 5}},
            teacher={
                "model": {**TINY, "layers": 2},
                "training": {"budget": "5 steps", "eval_every": 5},
                "documents": 60,
            },
        ),
        "dropout": build_raw_experiment(text, model={"dropout": 0.1}),
        "killed": build_raw_experiment(text, **LONG),
        "halted": build_raw_experiment(text, training={"budget": "30 steps"}),
    }


def copy_without_dropout(model_folder: Path, folder: Path) -> Path:
    shutil.copytree(model_folder, folder)
    settings = read_json(folder / "config.json")
    settings |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def launch_torchrun(*arguments: object, folder: Path, **named: Any) -> "subprocess.Popen[str]":
    """Start two processes, without the shape checks of the tests."""
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
    """Train every case with two processes, in NAME, and with this process, in NAME-alone."""
    root = tmp_path_factory.mktemp("together")
    config.update("jaxtyping_disable", True)
    encoder = copy_without_dropout(tiny_roberta, root / "encoder")
    requests = []
    for name, raw in build_raw_experiments(write_text(root / "text"), write_rows(root / "rows"), encoder).items():
        seed = 0 if name == "killed" else 1  # the first seed is also audited, which takes longer
        trial = trial_settings.build_trial(loading.build_experiment(raw, name), "baseline", seed)
        if name != "killed":
            run_trial(trial, root / f"{name}-alone")
        stop_step = 20 if name == "halted" else -1
        requests.append({"trial": trial.model_dump(mode="json"), "folder": str(root / name), "stop_step": stop_step})
    config.update("jaxtyping_disable", False)
    (root / "requests.json").write_text(json.dumps(requests))
    process = launch_torchrun(Path(__file__).with_name("rank_trials.py"), root / "requests.json", folder=root)
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 0, output
    return root


def read_losses(folder: Path) -> tuple[list[tuple[int, str]], list[float]]:
    lines = read_jsonl(folder / "metrics.jsonl")
    return [(line["step"], line["split"]) for line in lines], [line["loss"] for line in lines]


def assert_runs_agree(one: Path, other: Path) -> None:
    """Assert that two runs agree to 1e-5 in every recorded loss and every final score."""
    (evaluations, losses), (expected_evaluations, expected_losses) = read_losses(one), read_losses(other)
    assert evaluations == expected_evaluations
    assert np.abs(np.subtract(losses, expected_losses)).max() < LOSS_TOLERANCE
    assert Run(one).scores.keys() == Run(other).scores.keys()
    for name, column in Run(one).scores.items():
        counts = Run(one).scores[name.split(".")[0] + ".counts"]
        assert np.abs((column - Run(other).scores[name]) / counts.clip(1)).max() < LOSS_TOLERANCE, name
    training, expected_training = Run(one).result.training, Run(other).result.training
    assert training.steps == expected_training.steps
    assert training.chosen_step == expected_training.chosen_step
    assert training.is_stopped_early == expected_training.is_stopped_early


@pytest.mark.parametrize("name", ["stream", "padded", "best", "classifier", "finetune", "distil"])
def test_two_processes_train_what_one_trains(trained, name):
    assert_runs_agree(trained / name, trained / f"{name}-alone")
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


def test_each_process_has_its_own_dropout_stream(trained):
    (_, both), (_, alone) = read_losses(trained / "dropout"), read_losses(trained / "dropout-alone")
    assert abs(both[-1] - alone[-1]) > LOSS_TOLERANCE
    assert both[-1] == pytest.approx(alone[-1], rel=0.1)


def test_a_different_number_of_processes_is_rejected_without_reshard(trained, tmp_path):
    shutil.copytree(trained / "halted", tmp_path / "run")
    trial = Run(tmp_path / "run").trial
    with pytest.raises(RunFolderError, match=r"saved by 2 processes, this run has one process; .*--reshard"):
        run_trial(trial, tmp_path / "run")
    assert checkpoints.reshard_checkpoint(tmp_path / "run", 1)
    assert not checkpoints.reshard_checkpoint(tmp_path / "run", 1)
    result = run_trial(trial, tmp_path / "run")
    assert result.training.processes == 1
    assert result.training.resharded == [10]  # it was halted at 20 before it could save
    assert_runs_agree(tmp_path / "run", trained / "halted-alone")


def test_verify_trains_again_alone_what_two_processes_trained(trained, unchecked):
    assert retrain.retrain_and_compare(Run(trained / "stream")) == ""
    assert "differs from step 10" in retrain.retrain_and_compare(Run(trained / "dropout"))


def test_every_unfinished_run_of_an_experiment_is_resharded(trained, tmp_path):
    for name in ("halted", "stream"):
        shutil.copytree(trained / name, tmp_path / "runs" / name / "seed-1")
    run = tmp_path / "runs" / "halted" / "seed-1"
    assert torchrun.reshard_unfinished_runs(tmp_path / "runs", 3) == [run]
    with pytest.raises(RunFolderError, match="saved by 3 processes"):
        run_trial(Run(run).trial, run)
    assert torchrun.reshard_unfinished_runs(tmp_path / "nothing", 3) == []


def test_batches_whose_rows_depend_on_each_other_are_not_split():
    check_batch_can_be_split(torch.nn.Linear(2, 2), "")
    with pytest.raises(RequestError, match="rows of a batch depend on each other"):
        check_batch_can_be_split(torch.nn.Sequential(torch.nn.BatchNorm1d(2)), "")


def test_options_that_do_not_apply_under_torchrun_are_rejected():
    with pytest.raises(RequestError, match="--workers: cannot be used under torchrun"):
        torchrun.check_torchrun_options(None, 2)
    with pytest.raises(RequestError, match="--backend: cannot be used under torchrun"):
        torchrun.check_torchrun_options("ray", None)
    torchrun.check_torchrun_options(None, None)
    assert torchrun.read_ranks({}) == (0, 1, 0)


def write_toml(raw: dict[str, Any], path: Path) -> Path:
    """Write the experiment as TOML, for the command line."""
    lines = [f"{key} = {json.dumps(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for table, settings in raw.items():
        if isinstance(settings, dict):
            lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def find_rank_processes(process: "subprocess.Popen[str]") -> dict[int, psutil.Process]:
    result = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            rank = child.environ().get("RANK")
        except psutil.Error:
            continue
        if rank is not None:
            result[int(rank)] = child
    return result


def wait_for_step(run: Path, step: int, process: "subprocess.Popen[str]") -> None:
    """Wait until there is a checkpoint after this step."""
    deadline = time.monotonic() + 200
    while not any(int(path.name[-6:]) > step for path in run.glob("checkpoint-*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_last_checkpoint_step(run: Path) -> int:
    newest = checkpoints.find_latest_checkpoint(run)
    assert newest is not None
    return int(newest.name[-6:])


def test_killed_and_started_again_they_end_with_the_same_bits(trained, tmp_path):
    """One process is killed, and torchrun restarts both; the other is killed, which ends the run; then all; then run to
    completion.
    """
    raw = build_raw_experiments(trained / "text", trained / "rows", trained)["killed"]
    command = [
        "-m",
        "headtohead.cli",
        "run",
        write_toml(raw, tmp_path / "file.toml"),
        "--out",
        tmp_path / "runs",
        "--resume",
    ]
    run = tmp_path / "runs" / "baseline" / "seed-0"

    process = launch_torchrun("--max-restarts=1", *command, folder=tmp_path)
    wait_for_step(run, 10, process)
    find_rank_processes(process)[1].kill()
    step = read_last_checkpoint_step(run)
    wait_for_step(run, step + 10, process)
    find_rank_processes(process)[0].kill()
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "run the same command with --resume" in output
    assert not Run(run).is_finished
    assert Run(run).failure is None

    process = launch_torchrun(*command, folder=tmp_path)
    wait_for_step(run, read_last_checkpoint_step(run), process)
    for started_process in [*find_rank_processes(process).values(), psutil.Process(process.pid)]:
        started_process.kill()
    process.communicate(timeout=120)
    assert not Run(run).is_finished

    process = launch_torchrun(*command, folder=tmp_path)
    output, _ = process.communicate(timeout=250)
    assert process.returncode == 0, output
    assert read_lines_without_times(run) == read_lines_without_times(trained / "killed")
    for name in ("model.safetensors", "scores.safetensors", "start.json"):
        assert (run / name).read_bytes() == (trained / "killed" / name).read_bytes(), name
    assert Run(run).result.training.processes == 2
    assert (tmp_path / "runs" / "report.html").is_file()
