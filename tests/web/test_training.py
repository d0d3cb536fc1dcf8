"""Training started by the server: survives a restart, can be stopped, resumed, and extended by more seeds."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from starlette.testclient import TestClient

from headtohead.errors import RequestError
from headtohead.json_files import read_json, write_json
from headtohead.web import training_process
from headtohead.web.live.experiment_state import ExperimentReader
from headtohead.web.training_process import ConflictError, TrainingProcess

from .conftest import TEXT, send_raw_request, wait_until

Start = Callable[[], tuple[Any, int]]
SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def sleeper(runs: Path) -> Iterator[TrainingProcess]:
    """Return a training process that only sleeps."""
    result = training_process._launch_process(runs, "asleep", SLEEPER)
    yield result
    result.send_signal(signal.SIGKILL)


def test_a_training_is_known_by_its_number_and_by_when_it_began(runs: Path, sleeper: TrainingProcess) -> None:
    assert training_process.find_training_process(runs, "asleep") == sleeper
    assert os.getsid(sleeper.pid) == sleeper.pid, "a session of its own: what ends the server does not end it"
    write_json(runs / ".asleep.training.json", {"pid": sleeper.pid, "began": sleeper.start_time - 500})
    assert training_process.find_training_process(runs, "asleep") is None, (
        "the number was given to another process since"
    )
    with pytest.raises(ConflictError, match="this experiment is not being trained"):
        training_process.stop_training_process(runs, "asleep")
    assert sleeper.is_alive(), "and that one is left alone"
    for damaged in ("", "[]", '{"pid": "x", "began": 0}', '{"pid": -1, "began": 0}'):
        (runs / ".asleep.training.json").write_text(damaged)
        assert training_process.find_training_process(runs, "asleep") is None


def test_stop_asks_and_then_tells(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_process, "INTERRUPT_GRACE_SECONDS", 0.5)
    code = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    result = training_process._launch_process(runs, "deaf", [sys.executable, "-c", code])
    wait_until(lambda: training_process.read_log_tail(runs, "deaf") == "ready")
    training_process.stop_training_process(runs, "deaf")
    time.sleep(0.2)
    assert result.is_alive(), "Ctrl-C was not heard"
    wait_until(lambda: not result.is_alive())
    wait_until(lambda: not psutil.pid_exists(result.pid))  # and nothing of it is left


def test_no_more_than_a_few_at_once_and_no_name_twice(runs: Path, sleeper: TrainingProcess) -> None:
    with pytest.raises(RequestError, match="an experiment 'done' already exists"):
        training_process.start_training_process(runs, "done", ["mine.toml"])
    with pytest.raises(RequestError, match="an experiment 'asleep' already exists"):
        training_process.start_training_process(runs, "asleep", ["mine.toml"])
    second = training_process._launch_process(runs, "second", SLEEPER)
    try:
        with pytest.raises(ConflictError, match=r"2 trainings are running \(asleep, second\)"):
            training_process.start_training_process(runs, "third", ["mine.toml"])
    finally:
        second.send_signal(signal.SIGKILL)
    for name in ("", ".hidden", "a/b", "..", "a b", "<b>", "x" * 65, "a\n", "é"):
        with pytest.raises(RequestError, match="starting with a letter or digit"):
            training_process.start_training_process(runs, name, ["mine.toml"])


def test_what_a_terminal_trains_is_shown_and_not_ended_from_here(runs: Path) -> None:
    hold = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True)"
    )
    command = [sys.executable, "-c", f"{hold}; time.sleep(60)", str(runs / ".stopped.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        live = ExperimentReader(runs, "stopped").read_state()
        assert (live.state, live.can_stop) == ("running", False)
        with pytest.raises(ConflictError, match="press Ctrl-C in its terminal"):
            training_process.stop_training_process(runs, "stopped")
        with pytest.raises(ConflictError, match="is being trained"):
            training_process.resume_training_process(runs, "stopped")
        process.kill()


def test_a_training_that_cannot_begin_reports_the_reason(client: TestClient, runs: Path, files: Path) -> None:
    (files / "bad.toml").write_text(TEXT.replace('"text"', '"no-such-folder"'))
    response = client.post("/api/experiments", json={"recipe": "bad.toml", "name": "bad"})
    assert response.status_code == 201, response.text
    wait_until(lambda: training_process.find_training_process(runs, "bad") is None)
    content = client.get("/api/experiments/bad").json()
    assert content["state"] == "failed"
    assert "no-such-folder" in content["message"]
    assert "no-such-folder" in client.get("/experiments/bad").text
    assert "bad" in client.get("/").text


def test_a_real_training_survives_the_server_and_is_found_again(server: Start, runs: Path, files: Path) -> None:
    process, port = server()
    long = TEXT.replace("8 steps", "100000 steps").replace("checkpoint_every = 4", "checkpoint_every = 20")
    (files / "long.toml").write_text(long.replace("eval_every = 4", "eval_every = 20"))
    assert _post(port, "/api/experiments", {"recipe": "long.toml", "name": "long"})[0] == 201
    wait_until(lambda: _get(port, "long").get("state") == "running" and _get(port, "long")["trials"][0]["step"] >= 20)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=10)
    training = training_process.find_training_process(runs, "long")
    assert training is not None, "the server's end is not its end"
    _, port = server()
    result = _get(port, "long")
    assert (result["state"], result["can_stop"]) == ("running", True)
    assert _post(port, "/api/experiments/long/resume", {})[0] == 409
    assert _post(port, "/api/experiments/long/stop", {})[0] == 200
    wait_until(lambda: not training.is_alive())
    wait_until(lambda: _get(port, "long")["state"] == "stopped")
    assert list((runs / "long" / "baseline" / "seed-0").glob("checkpoint-*")), "what was trained is kept"


def test_a_tiny_experiment_from_start_to_verdict_and_more_seeds(client: TestClient, runs: Path) -> None:
    expected = {"recipe": "mine.toml", "name": "tiny", "settings": {"training.batch_size": "5"}}
    assert client.post("/api/experiments", json=expected).status_code == 201
    wait_until(lambda: training_process.find_training_process(runs, "tiny") is None)
    content = client.get("/api/experiments/tiny").json()
    assert (content["state"], content["summary"]) == ("finished", "Finished: 2 of 2 trials finished."), content
    assert read_json(runs / "tiny" / "experiment.json")["experiment"]["training"]["batch_size"] == 5
    assert client.get("/experiments/tiny/report").status_code == 200
    assert client.post("/experiments/tiny/seeds", data={"num_seeds": "1"}).status_code == 303
    wait_until(lambda: training_process.find_training_process(runs, "tiny") is None)
    content = client.get("/api/experiments/tiny").json()
    assert [(t["variant"], t["seed"], t["state"]) for t in content["trials"]][2:] == [
        ("baseline", 1, "finished"),
        ("alibi", 1, "finished"),
    ]
    assert content["verdicts"][0]["seeds"] == 2
    assert read_json(runs / "tiny" / "experiment.json")["command"][-2:] == ["--seeds", "2"]


def _get(port: int, name: str) -> dict[str, Any]:
    text = send_raw_request(
        port, f"GET /api/experiments/{name} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    )
    result: dict[str, Any] = json.loads(text.partition("\r\n\r\n")[2])
    return result


def _post(port: int, path: str, body: dict[str, Any]) -> tuple[int, str]:
    messages = json.dumps(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    text = send_raw_request(port, f"{head}Content-Length: {len(messages)}\r\n\r\n{messages}", seconds=30)
    return int(text.split(" ")[1]), text
