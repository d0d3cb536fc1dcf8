"""Trackers log the content of the run folders exactly once, also after --resume."""

import json
import os
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import write_text
from typer.testing import CliRunner

import headtohead as h2h
from headtohead.cli.app import app
from headtohead.errors import MissingExtraError, RequestError
from headtohead.execution.trackers.group import TRACKER_NAMES, TrackerGroup
from headtohead.experiment import loading
from headtohead.json_files import read_json, read_jsonl

NO_NETWORK = """
import os, socket
connect = socket.socket.connect
def noted(self, address):
    if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "localhost", "::1"):
        open(os.environ["NOTED"], "a").write(f"{address}\\n")
        raise OSError("no network in this test")
    return connect(self, address)
socket.socket.connect = noted
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small finished experiment that was run without trackers."""
    root = tmp_path_factory.mktemp("trackers")
    raw: dict[str, Any] = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 2,
        "data": {"source": str(write_text(root / "text"))},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 8},
        "training": {"budget": "30 steps", "batch_size": 4, "eval_every": 10},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    h2h.run(loading.build_experiment(raw, "small"), root / "runs", workers=1)
    return root / "runs"


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Block network access; a tracker that attempts it writes a line to this file."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NO_NETWORK)
    paths = [str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("NOTED", str(tmp_path / "noted"))
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / "noted"


Point = tuple[str, int, str, float]
"""run, step, name of the metric, value"""


def read_points_from_folders(folder: Path) -> list[Point]:
    result = []
    for metrics in folder.glob("*/seed-*/metrics.jsonl"):
        name = str(metrics.parent.relative_to(folder))
        for line in read_jsonl(metrics):
            keys = [key for key in ("loss", "perplexity") if key in line]
            result += [(name, line["step"], f"{line['split']}/{key}", line[key]) for key in keys]
    return result


def read_points_from_tensorboard(folder: Path) -> tuple[list[Point], str]:
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    points, texts = [], []
    for file in folder.glob("logs/tensorboard/**/events.*"):
        name = str(file.parent.relative_to(folder / "logs" / "tensorboard"))
        for event in EventFileLoader(str(file)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "text":
                    texts.append(f"{name} {value.tag} {value.tensor.string_val[0].decode()}")
                else:
                    points.append((name, event.step, value.tag, value.tensor.float_val[0]))
    return points, "\n".join(texts)


def read_points_from_wandb(folder: Path) -> tuple[list[Point], str]:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    points, texts = [], []
    for file in (folder / "logs" / "wandb").glob("offline-run-*/*.wandb"):
        store, name = DataStore(), ""
        store.open_for_scan(str(file))
        while (raw := store.scan_data()) is not None:
            record = Record()
            record.ParseFromString(raw)
            if record.WhichOneof("record_type") == "run" and record.run.run_group:
                assert record.run.run_group == "small"
                name = record.run.display_name.removeprefix("small/")
                texts += [f"{name} {item.key} {item.value_json}" for item in record.run.config.update]
            if record.WhichOneof("record_type") == "history":
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                points += [(name, row["step"], key, row[key]) for key in row if "/" in key]
            if record.WhichOneof("record_type") == "summary":
                texts += [
                    f"{name} {item.key or '/'.join(item.nested_key)} {item.value_json}"
                    for item in record.summary.update
                ]
        store.close()
    return points, "\n".join(texts)


def read_points_from_trackio(folder: Path) -> tuple[list[Point], str]:
    points, texts = [], []
    with sqlite3.connect(folder.parent / "trackio" / "small.db") as base:
        for run, step, metrics in base.execute("select run_name, step, metrics from metrics"):
            for key, value in json.loads(metrics).items():
                if isinstance(value, dict):
                    texts.append(f"{run} {key} {value['_value']}")
                else:
                    points.append((run, step, key, value))
        texts += [
            f"{run} {name} {value}"
            for run, config in base.execute("select run_name, config from configs")
            for name, value in json.loads(config).items()
        ]
    return points, "\n".join(texts)


POINT_READERS = {
    "tensorboard": read_points_from_tensorboard,
    "wandb": read_points_from_wandb,
    "trackio": read_points_from_trackio,
}


def write_interrupted_experiment(finished: Path, folder: Path) -> None:
    """Write the state after a kill: one finished trial, one with metrics after its last checkpoint, two not started."""
    shutil.copytree(finished, folder)
    for path in (folder / "alibi" / "seed-1", folder / "baseline" / "seed-1"):
        shutil.rmtree(path)
    (folder / "findings.json").unlink()
    interrupted_run = folder / "alibi" / "seed-0"
    (interrupted_run / "result.json").unlink()
    lines = (interrupted_run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (interrupted_run / "metrics.jsonl").write_bytes(b"".join(lines[:4]) + lines[4][:9])


@pytest.mark.parametrize("kind", TRACKER_NAMES)
def test_a_tracker_logs_everything_in_the_run_folders_once(finished, tmp_path, offline, kind):
    pytest.importorskip(kind)
    messages: list[str] = []
    folder = tmp_path / "runs"
    write_interrupted_experiment(finished, folder)
    with TrackerGroup(folder, [kind], messages.append):
        pass
    assert messages == []
    points, _ = POINT_READERS[kind](folder)
    assert {run for run, *_ in points} == {"baseline/seed-0", "alibi/seed-0"}
    shutil.copytree(finished, folder, dirs_exist_ok=True)
    with TrackerGroup(folder, [kind], messages.append):
        pass
    assert messages == []
    points, texts = POINT_READERS[kind](folder)
    num_logged = Counter((run, step, name) for run, step, name, _ in points)
    expected = read_points_from_folders(finished)
    assert {(run, step, name): num_logged[run, step, name] for run, step, name, _ in expected} == {
        (run, step, name): 1 for run, step, name, _ in expected
    }
    logged_values = {(run, step, name): value for run, step, name, value in points}
    for run, step, name, value in expected:
        assert logged_values[run, step, name] == pytest.approx(value, rel=1e-6)
    assert "model.position" in texts
    (row,) = read_json(finished / "findings.json")["verdicts"]
    assert row["summary"] in texts.replace("\\u00b1", "±")
    assert any("final/test/perplexity" in name for _, _, name, _ in points) or "final/test/perplexity" in texts
    assert not offline.exists(), offline.read_text()


def test_a_failing_tracker_is_reported_once_and_stops_nothing(finished, tmp_path, offline):
    folder = tmp_path / "runs"
    shutil.copytree(finished, folder)
    (folder / "logs").mkdir()
    (folder / "logs" / "tensorboard").write_text("a file where a folder should be")
    experiment = read_json(folder / "experiment.json")["experiment"]
    file = tmp_path / "small.toml"
    lines = [f"{key} = {json.dumps(experiment[key])}" for key in ("question", "task", "seeds")]
    for table in ("data", "model", "training"):
        remaining = {"data": ("source",), "model": ("width", "layers", "heads", "context")}
        names = remaining.get(table, ("budget", "batch_size", "eval_every"))
        lines += [f"[{table}]", *(f"{name} = {json.dumps(experiment[table][name])}" for name in names)]
    file.write_text("\n".join([*lines, "[variants.alibi]", 'model.position = "alibi"']) + "\n")
    result = CliRunner().invoke(
        app, ["run", str(file), "--out", str(folder), "--resume", "--log", "tensorboard"], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    text = " ".join(result.stderr.split())
    assert text.count("--log tensorboard:") == 1
    assert "the experiment continues" in text


def test_an_unknown_tracker_and_one_that_is_not_installed_are_reported(tmp_path, monkeypatch):
    with pytest.raises(RequestError, match=r"unknown tracker 'tensorbord'; did you mean 'tensorboard'\?"):
        TrackerGroup(tmp_path, ["tensorbord"], print)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"--log wandb needs wandb; .*headtohead\[wandb\]"):
        TrackerGroup(tmp_path, ["wandb"], print)


def test_nothing_is_started_for_a_request_that_is_rejected(finished, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(finished, folder)
    with pytest.raises(RequestError, match="refused"), TrackerGroup(folder, ["tensorboard"], print):
        raise RequestError("refused")
    assert not (folder / "logs").exists()
