"""A folder of experiments without any training, a client that speaks to the application, and a real server."""

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

from headtohead.atomic_io import append_jsonl, write_json
from headtohead.config.base import ComponentConfig
from headtohead.config.experiment import Experiment, PrimaryMetric
from headtohead.config.model import TransformerConfig
from headtohead.experiment.schemas import ExperimentFile, Findings, MetricsLine, StartFile
from headtohead.experiment.schemas.base import write_record
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
steps = 8
batch_size = 4
eval_every = 4
checkpoint_every = 4
[variants.alibi]
model.position = "alibi"
"""


def write_experiment(folder: Path, *, question: str = "Does it help?", seeds: int = 2, finished: int = 2) -> Path:
    """An experiment's folder as a training leaves it: some trials finished, the next one begun."""
    experiment = Experiment(
        name="tiny",
        question=question,
        seeds=seeds,
        task="language-model",
        model=TransformerConfig(position=(ComponentConfig(kind="learned"),)),
        primary=PrimaryMetric(metric="perplexity", split="test"),
        variants={"alibi": {"model": {"position": "alibi"}}},
    )
    write_record(folder_made(folder) / "experiment.json", ExperimentFile(identity="x", experiment=experiment))
    wanted = [(name, seed) for seed in range(seeds) for name in ("baseline", "alibi")]
    for at, (name, seed) in enumerate(wanted[: finished + 1]):
        run = folder_made(folder / name / f"seed-{seed}")
        write_json(run / "trial.json", {})
        write_record(run / "start.json", START)
        for step in (0, 10):
            append_metrics(run, step, "validation", 30.0 - step)
        if at < finished:
            write_json(run / "result.json", {})
    return folder


def append_metrics(run: Path, step: int, split: str, perplexity: float) -> None:
    line = MetricsLine(step=step, split=split, loss=math.log(perplexity), perplexity=perplexity)
    append_jsonl(run / "metrics.jsonl", line.to_json())


def folder_made(folder: Path) -> Path:
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
    """RUNS with an experiment that is finished and one that was stopped."""
    made = tmp_path / "runs"
    write_verdict(write_experiment(made / "done", finished=4))
    write_experiment(made / "stopped")
    return made


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder that the server is started in: an experiment file and its text."""
    return write_files(tmp_path)


def write_files(place: Path) -> Path:
    """An experiment file and its text."""
    text = folder_made(place / "text")
    for name in ("train", "validation", "test"):
        (text / f"{name}.txt").write_text("\n".join(f"word{i % 7} is {name} line {i} ." for i in range(40)))
    (place / "mine.toml").write_text(TEXT)
    return place


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a real experiment, trained to its verdict by `h2h run` in a terminal."""
    place = write_files(tmp_path_factory.mktemp("finished"))
    command = [sys.executable, "-m", "headtohead.cli", "run", "mine.toml", "--seeds", "2", "--workers", "1"]
    subprocess.run([*command, "--out", "runs/real"], cwd=place, check=True, capture_output=True)
    return place / "runs" / "real"


@pytest.fixture
def client(runs: Path, files: Path) -> Iterator[TestClient]:
    with TestClient(
        create_app(runs, experiment_files_folder=files), base_url="http://127.0.0.1:8000", follow_redirects=False
    ) as made:
        yield made


@pytest.fixture
def server(runs: Path, files: Path) -> Iterator[Callable[..., tuple[subprocess.Popen[str], int]]]:
    """Starts a real server in a process of its own: (process, port). All are ended, and so is what they started."""
    started = []

    def start(host: str = "127.0.0.1", *patience: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-c", SERVER, str(runs), host, *patience]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=files)
        started.append(process)
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        assert address.port is not None and ("token=" in address.query) == (host != "127.0.0.1")
        return process, address.port

    yield start
    for process in started:
        process.terminate()
        process.wait(timeout=20)
        assert process.stdout is not None
        process.stdout.close()
    for name in training_process.list_started_names(runs):
        if (left := training_process.find_training_process(runs, name)) is not None:
            left.signal(signal.SIGKILL)


def ask(port: int, text: str, *, seconds: float = 60) -> str:
    """A request as it is written, and the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as line:
        line.sendall(text.encode())
        found = b""
        while piece := line.recv(65536):
            found += piece
        return found.decode(errors="replace")


def wait_until(true: Callable[[], Any], seconds: float = 150) -> Any:
    until = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.1)
    return found


MARKUP = "<img/src=x/onerror=alert(1)>"
"""a token that would be an element, were it not escaped"""
SPOKEN = ["the", "people", "will", "build", "schools", "and", "honor", "law", "peace", "jobs", MARKUP]


def _write_tokenizer(path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate(["<pad>", "<unk>", "<s>", "</s>", *SPOKEN])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(path))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUNS with one experiment of two small language models, trained in a second; the baseline kept a checkpoint."""
    import random
    import shutil

    import torch

    from headtohead.config.loading import build_trial
    from headtohead.experiment import loading
    from headtohead.saved_models import model_io
    from headtohead.tasks.registry import prepare_dataset
    from headtohead.trials.trial import build_training

    place = tmp_path_factory.mktemp("trained")
    draw = random.Random(0)
    for name, count in (("train", 60), ("validation", 20), ("test", 20)):
        rows = [" ".join(draw.choices(SPOKEN, k=8)) for _ in range(count)]
        (folder_made(place / "data") / f"{name}.txt").write_text("\n".join(rows) + "\n")
    _write_tokenizer(place / "tokenizer.json")
    raw: dict[str, Any] = {
        "question": "Where does it look?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(place / "data"), "tokenizer": {"kind": "file", "path": str(place / "tokenizer.json")}},
        "model": {"width": 16, "layers": 2, "heads": 2, "context": 24},
        "training": {"steps": 12, "batch_size": 8, "checkpoint_every": 6},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    experiment = loading.build_experiment(raw, "tiny")
    runs = folder_made(place / "runs")
    write_record(folder_made(runs / "tiny") / "experiment.json", ExperimentFile(identity="x", experiment=experiment))
    for name in experiment.names:
        run = runs / "tiny" / name / "seed-0"
        trial = build_trial(experiment, name, 0)
        prepared = prepare_dataset(trial.data, trial.task)
        model, training = build_training(trial, prepared, run, torch.device("cpu"))
        training.run()
        model_io.save(run, model, prepared.tokenizer, trial, prepared.corpus.label_names)
        for rest in run.glob("checkpoint-*"):
            shutil.rmtree(rest)
    halfway = folder_made(runs / "tiny" / "baseline" / "seed-0" / "checkpoint-000006")
    untrained = model_io.load(runs / "tiny" / "baseline" / "seed-0", use_initial_weights=True)
    model_io.save_weights(halfway / "model.safetensors", untrained.model)
    return runs


@pytest.fixture(scope="session")
def looking(trained: Path) -> Iterator[TestClient]:
    """An application with models to look at; its model process lives as long as the tests."""
    with TestClient(
        create_app(trained, experiment_files_folder=trained.parent), base_url="http://127.0.0.1:8000"
    ) as made:
        yield made
