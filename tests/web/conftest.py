"""An experiments folder without training, an HTTP client for the application, and a real server."""

import math
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
from starlette.testclient import TestClient

from headtohead.config.base import ComponentConfig
from headtohead.config.experiment import Experiment, PrimaryMetric
from headtohead.config.tables.model import TransformerConfig
from headtohead.experiment.schemas import ExperimentFile, Findings, MetricsLine, StartFile
from headtohead.experiment.schemas.base import write_record
from headtohead.json_files import append_jsonl, write_json
from headtohead.verdict.record import Verdict
from headtohead.web import training_process
from headtohead.web.app import create_app

START = StartFile(
    tensor_hashes={},
    schedule_digest="x",
    steps=20,
    steps_per_epoch=20,
    parameters=1,
    flops_per_token=1,
    weights_bytes=4,
    training_bytes=8,
    device="cpu",
)
HOSTILE = "<script>alert(1)</script>&\"'"
SERVER = """
import pathlib, sys
from headtohead.web import timeout_protocol
from headtohead.web.server import serve
runs, host, *patience = sys.argv[1:]
if patience:
    timeout_protocol.HEADER_TIMEOUT_SECONDS = timeout_protocol.WRITE_TIMEOUT_SECONDS = float(patience[0])
serve(pathlib.Path(runs), host=host, port=0, on_ready=lambda address: print(address, flush=True))
"""
"""run a server; the optional last argument replaces the client timeouts, in seconds"""

TEXT = """question = "Does ALiBi help here?"
task = "language-model"
seeds = 1
[data]
source = "text"
[model]
width = 16
layers = 1
heads = 2
context = 8
[training]
budget = "8 steps"
batch_size = 4
eval_every = 4
checkpoint_every = 4
[variants.alibi]
model.position = "alibi"
"""


def write_experiment(folder: Path, *, question: str = "Does it help?", seeds: int = 2, finished: int = 2) -> Path:
    """Write an experiment folder as left by training: some trials finished, the next one started."""
    experiment = Experiment(
        name="tiny",
        question=question,
        seeds=seeds,
        task="language-model",
        model=TransformerConfig(position=(ComponentConfig(kind="learned"),)),
        primary=PrimaryMetric(metric="perplexity", split="test"),
        variants={"alibi": {"model": {"position": "alibi"}}},
    )
    write_record(make_folder(folder) / "experiment.json", ExperimentFile(identity="x", experiment=experiment))
    planned_trials = [(name, seed) for seed in range(seeds) for name in ("baseline", "alibi")]
    for index, (name, seed) in enumerate(planned_trials[: finished + 1]):
        run = make_folder(folder / name / f"seed-{seed}")
        write_json(run / "trial.json", {})
        write_record(run / "start.json", START)
        for step in (0, 10):
            append_metrics(run, step, "validation", 30.0 - step)
        if index < finished:
            write_json(run / "result.json", {})
    return folder


def append_metrics(run: Path, step: int, split: str, perplexity: float) -> None:
    line = MetricsLine(step=step, split=split, loss=math.log(perplexity), perplexity=perplexity)
    append_jsonl(run / "metrics.jsonl", line.to_json())


def make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_verdict(folder: Path, sentence: str = "alibi helped: perplexity 5 % lower.") -> None:
    verdict = Verdict(
        variant="alibi",
        outcome="helped",
        metric="perplexity",
        equivalence_margin=0.01,
        baseline_mean=20.0,
        variant_mean=19.0,
        effect=-0.05,
        is_better=True,
        interval=(-0.06, -0.04),
        seed_interval=(-0.055, -0.045),
        equivalence_interval=(-0.058, -0.042),
        confidence=0.95,
        adjusted_confidence=0.95,
        seeds=2,
        examples=100,
        documents=100,
        dominant_noise_source="seeds",
        min_detectable_effect=0.02,
        additional_seeds=None,
        additional_documents=None,
        summary=sentence,
    )
    write_record(folder / "findings.json", Findings(metric="perplexity", verdicts=[verdict]))


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """RUNS with one finished and one stopped experiment."""
    result = tmp_path / "runs"
    write_verdict(write_experiment(result / "done", finished=4))
    write_experiment(result / "stopped")
    return result


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The working folder of the server: an experiment file and its text."""
    return write_files(tmp_path)


def write_files(folder: Path) -> Path:
    """Write an experiment file and its text."""
    text = make_folder(folder / "text")
    for name in ("train", "validation", "test"):
        (text / f"{name}.txt").write_text("\n".join(f"word{i % 7} is {name} line {i} ." for i in range(40)))
    (folder / "mine.toml").write_text(TEXT)
    return folder


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, in_process_pool: Any) -> Path:
    """Return the folder of a real experiment with its verdict and report."""
    from headtohead import report
    from headtohead.experiment.loading import load_experiment
    from headtohead.runner.run_experiment import run_experiment

    folder = tmp_path_factory.mktemp("finished")
    experiment = load_experiment(write_files(folder) / "mine.toml", ["seeds=2"])
    assert not run_experiment(experiment, folder / "runs" / "real", backend=in_process_pool).failed_jobs
    report.write(folder / "runs" / "real")
    return folder / "runs" / "real"


@pytest.fixture
def client(runs: Path, files: Path) -> Iterator[TestClient]:
    with TestClient(
        create_app(runs, experiment_files_folder=files), base_url="http://127.0.0.1:8000", follow_redirects=False
    ) as test_client:
        yield test_client


@pytest.fixture
def server(runs: Path, files: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Start a real server in a separate process and yield (process, port). The server and its children are ended
    afterwards.
    """
    processes = []

    def start(host: str = "127.0.0.1", *timeouts: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", SERVER, str(runs), host, *timeouts]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=files)
        processes.append(process)
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        assert address.port is not None and ("token=" in address.query) == (host != "127.0.0.1")
        return process, address.port

    yield start
    for process in processes:
        process.terminate()
        process.wait(timeout=20)
        assert process.stdout is not None
        process.stdout.close()
    for name in training_process.list_names_started_by_server(runs):
        if (leftover_process := training_process.find_training_process(runs, name)) is not None:
            leftover_process.send_signal(signal.SIGKILL)


def send_raw_request(port: int, text: str, *, seconds: float = 60) -> str:
    """Send a raw request and return the complete response."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        connection.sendall(text.encode())
        result = b""
        while chunk := connection.recv(65536):
            result += chunk
        return result.decode(errors="replace")


def wait_until(condition: Callable[[], Any], seconds: float = 150) -> Any:
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.1)
    return result


MARKUP = "<img/src=x/onerror=alert(1)>"
"""a token that would be an element, were it not escaped"""
WORDS = ["the", "people", "will", "build", "schools", "and", "honor", "law", "peace", "jobs", MARKUP]


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<unk>", "<s>", "</s>", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(path))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUNS with one experiment of two small language models; the baseline has a checkpoint."""
    import random
    import shutil

    import torch

    from headtohead.config.trial_settings import build_trial
    from headtohead.experiment import loading
    from headtohead.saved_models import model_io
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.trials.trial import build_training

    folder = tmp_path_factory.mktemp("trained")
    rng = random.Random(0)
    for name, count in (("train", 60), ("validation", 20), ("test", 20)):
        rows = [" ".join(rng.choices(WORDS, k=8)) for _ in range(count)]
        (make_folder(folder / "data") / f"{name}.txt").write_text("\n".join(rows) + "\n")
    _write_tokenizer(folder / "tokenizer.json")
    raw: dict[str, Any] = {
        "question": "Where does it look?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(folder / "data"), "tokenizer": {"kind": "file", "path": str(folder / "tokenizer.json")}},
        "model": {"width": 16, "layers": 2, "heads": 2, "context": 24},
        "training": {"budget": "12 steps", "batch_size": 8, "checkpoint_every": 6},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    experiment = loading.build_experiment(raw, "tiny")
    runs = make_folder(folder / "runs")
    write_record(make_folder(runs / "tiny") / "experiment.json", ExperimentFile(identity="x", experiment=experiment))
    for name in experiment.names:
        run = runs / "tiny" / name / "seed-0"
        trial = build_trial(experiment, name, 0)
        prepared = prepare_dataset(trial.data, trial.task)
        model, training = build_training(trial, prepared, run, torch.device("cpu"))
        training.run()
        model_io.save_model(run, model, prepared.tokenizer, trial, prepared.corpus.label_names)
        for checkpoint in run.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    halfway = make_folder(runs / "tiny" / "baseline" / "seed-0" / "checkpoint-000006")
    untrained = model_io.load_saved_model(runs / "tiny" / "baseline" / "seed-0", use_initial_weights=True)
    model_io.save_model_weights(halfway / "model.safetensors", untrained.model)
    return runs


@pytest.fixture(scope="session")
def model_client(trained: Path) -> Iterator[TestClient]:
    """An application with models. Its model process is shared by the tests."""
    with TestClient(
        create_app(trained, experiment_files_folder=trained.parent), base_url="http://127.0.0.1:8000"
    ) as test_client:
        yield test_client
