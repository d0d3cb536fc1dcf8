"""`h2h push`: the model card contains the verdict of the experiment, and the client of the hub uploads all files."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from tests.exchange.tiny_runs import write_run

from headtohead.errors import ModelError, RequestError
from headtohead.exchange.export.hub import push_run
from headtohead.experiment.findings_view import read_findings
from headtohead.experiment.loading import load_experiment
from headtohead.runner import run_experiment

EXPERIMENT = """
question = "Does it help?"
task = "language-model"
seeds = 2
data = {{ source = "{source}" }}
model = {{ width = 16, layers = 1, context = 16 }}
training = {{ budget = "4 steps", batch_size = 4 }}

[variants]
alibi = {{ model.position = "alibi" }}
rope = {{ model.position = "rope" }}
"""


@pytest.mark.usefixtures("in_process_workers")
def test_the_model_card_contains_the_verdict(text_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(EXPERIMENT.format(source=text_folder))
    run_experiment.run_experiment(load_experiment(path), tmp_path / "runs")
    summaries = {verdict.variant: verdict.summary for verdict in read_findings(tmp_path / "runs").verdicts}
    for variant, expected in (("alibi", {"alibi"}), ("baseline", {"alibi", "rope"})):
        folder = tmp_path / variant
        assert push_run(tmp_path / "runs" / variant / "seed-0", "owner/name", folder=folder) == str(folder)
        card = (folder / "README.md").read_text(encoding="utf-8")
        assert {name for name, summary in summaries.items() if summary in card} == expected
        assert f"Variant `{variant}` of the experiment" in card
    with pytest.raises(RequestError, match="owner/name"):
        push_run(tmp_path / "runs/alibi/seed-0", "name")
    with pytest.raises(ModelError, match="owner/name: cannot be uploaded"):
        push_run(tmp_path / "runs/alibi/seed-0", "owner/name")


class FakeHub(BaseHTTPRequestHandler):
    """The part of the hub's interface that creates a repository and commits small files."""

    requests: list[tuple[str, Any]]
    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        lines = [json.loads(line) for line in body.splitlines()]
        self.requests.append((self.path, lines[0]))
        address = f"http://{self.headers['Host']}"
        answer: dict[str, Any] = {"url": f"{address}/owner/name"}
        if "/preupload/" in self.path:
            paths = [file["path"] for file in lines[0]["files"]]
            answer = {"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]}
        elif "/commit/" in self.path:
            files = [line["value"] for line in lines if line["key"] == "file"]
            self.files.update({file["path"]: base64.b64decode(file["content"]) for file in files})
            answer = {"commitUrl": f"{address}/owner/name/commit/0", "commitOid": "0" * 40}
        self._answer(answer)

    def do_GET(self) -> None:
        self._answer({"id": "owner/name", "sha": "0" * 40, "siblings": []})

    def _answer(self, content: dict[str, Any]) -> None:
        encoded = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, *_: Any) -> None:
        """Do not print requests."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[FakeHub]]:
    handler = type("Handler", (FakeHub,), {"requests": [], "files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "0" * 34)
    yield handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("is_private", [False, True])
def test_all_files_are_uploaded(hub: type[FakeHub], is_private: bool, tmp_path: Path) -> None:
    write_run(tmp_path / "run", {"position": "rope"})
    address = push_run(tmp_path / "run", "owner/name", is_private=is_private)
    assert address.endswith("/owner/name")
    created = dict(hub.requests)["/api/repos/create"]
    assert (created["name"], created["organization"]) == ("name", "owner")
    assert (created.get("visibility") == "private" or bool(created.get("private"))) is is_private
    assert {"README.md", "config.json", "model.safetensors", "tokenizer.json"} <= set(hub.files)
    assert "Variant `v` of the experiment" in hub.files["README.md"].decode()
