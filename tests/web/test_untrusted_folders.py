"""Untrusted folders in the runs folder: no code is executed, no link followed, and no file read without limit."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tools.fuzz_targets.sample_experiment import build_sample_runs

from headtohead.experiment import trust
from headtohead.json_files import CHECKSUM_KEY, read_json, write_json
from headtohead.web import request_guard, training_process
from headtohead.web.app import create_app
from headtohead.web.request_guard import AllowedHosts

from .conftest import wait_until

MARKER_CODE = "from pathlib import Path\nPath({path!r}).write_text('executed')\n"


@pytest.fixture(scope="session")
def trained_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_sample_runs(tmp_path_factory.mktemp("sample"))


@pytest.fixture
def foreign(runs: Path, trained_runs: Path) -> Path:
    """Return the folder of an experiment that another user ran."""
    import shutil

    return Path(shutil.copytree(trained_runs, runs / "foreign"))


def change_experiment(folder: Path, change) -> None:
    """Change experiment.json and update its identity and checksum, as an attacker can."""
    from headtohead.config.experiment import Experiment

    content = read_json(folder / "experiment.json")
    content.pop(CHECKSUM_KEY, None)
    change(content["experiment"])
    content["identity"] = Experiment.model_validate(content["experiment"]).identity()
    write_json(folder / "experiment.json", content, with_checksum=True)


def wait_for_training(runs: Path, name: str) -> None:
    wait_until(lambda: training_process.find_training_process(runs, name) is None)


# ---- row 1: code


@pytest.mark.parametrize("setting", ["plugins", "model.module", "variant", "search"])
@pytest.mark.parametrize("action", ["resume", "seeds"])
def test_code_of_a_foreign_folder_runs_only_with_consent(client, runs, foreign, tmp_path, setting, action):
    marker = tmp_path / "marker"
    code = foreign / "evil.py"
    code.write_text(
        MARKER_CODE.format(path=str(marker)) + "from torch import nn\nclass Net(nn.Module):\n"
        "    def __init__(self, vocab_size):\n        super().__init__()\n"
        "        self.e = nn.Embedding(vocab_size, vocab_size)\n"
        "    def forward(self, x):\n        return self.e(x)\n"
    )

    def name_code(experiment):
        if setting == "plugins":
            experiment["plugins"] = [str(code)]
        elif setting == "model.module":
            experiment["model"] = {"module": f"{code}:Net", "context": 8}
            experiment["variants"] = {}
        elif setting == "variant":
            experiment["variants"]["evil"] = {"model": {"module": f"{code}:Net"}}
        else:
            experiment["search"] = {"space": {"model.module": [f"{code}:Net"]}, "budget": "1 trial"}

    try:
        change_experiment(foreign, name_code)
    except ValueError:  # not a valid experiment in this combination: write it without identity
        content = read_json(foreign / "experiment.json")
        name_code(content["experiment"])
        write_json(foreign / "experiment.json", content)
    response = client.post(f"/experiments/foreign/{action}", data={"num_seeds": "1"} if action == "seeds" else None)
    wait_for_training(runs, "foreign")
    assert not marker.exists(), "the code of a foreign folder was executed"
    assert response.status_code == 422


def test_a_trusted_folder_is_resumed(client, runs, foreign, tmp_path):
    marker = tmp_path / "marker"
    code = foreign / "mine.py"
    code.write_text(MARKER_CODE.format(path=str(marker)))
    change_experiment(foreign, lambda experiment: experiment.update(plugins=[str(code)]))
    refused = client.post("/experiments/foreign/resume")
    assert refused.status_code == 422
    assert "h2h trust" in refused.text and "mine.py" in refused.text
    assert code in trust.trust_run(foreign)
    assert client.post("/experiments/foreign/resume").status_code == 303
    wait_until(marker.exists)
    wait_for_training(runs, "foreign")


# ---- row 2: links that a training would write through


@pytest.mark.parametrize("name", [".foreign.training.log", ".foreign.lock", ".foreign.training.json"])
def test_a_web_start_does_not_write_through_links(client, runs, foreign, tmp_path, name):
    target = tmp_path / "precious"
    target.write_text("precious")
    (runs / name).symlink_to(target)
    client.post("/experiments/foreign/resume")
    wait_for_training(runs, "foreign")
    assert target.read_text() == "precious"


# ---- row 5: forged training records


def test_a_forged_training_record_stops_nobody(client, runs):
    victim = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        began = psutil.Process(victim.pid).create_time()
        write_json(runs / ".stopped.training.json", {"pid": victim.pid, "began": began, "command": ["h2h"]})
        response = client.post("/experiments/stopped/stop")
        time.sleep(1)
        assert victim.poll() is None, "a process that no server started was stopped"
        assert response.status_code == 409
    finally:
        victim.kill()
        victim.wait()


# ---- rows 6 and 7: links and pipes


def test_logs_and_metrics_that_are_links_are_not_shown(client, runs, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text('{"step": 10, "split": "validation", "perplexity": 31337}\nthe secret\n')
    (runs / ".stopped.training.log").symlink_to(secret)
    metrics = runs / "stopped" / "baseline" / "seed-0" / "metrics.jsonl"
    metrics.unlink()
    metrics.symlink_to(secret)
    for path in ("/experiments/stopped", "/api/experiments/stopped"):
        text = client.get(path).text
        assert "the secret" not in text
        assert "31337" not in text and "31,337" not in text


def test_a_pipe_does_not_block_pages(runs, files):
    for name in (
        ".stopped.training.log",
        "stopped/baseline/seed-0/metrics.jsonl",
        "stopped/corpus.json",
        "done/report.html",
    ):
        (runs / name).unlink(missing_ok=True)
        os.mkfifo(runs / name)
    script = (
        "import sys; from pathlib import Path; from starlette.testclient import TestClient\n"
        "from headtohead.web.app import create_app\n"
        "client = TestClient(create_app(Path(sys.argv[1])), base_url='http://127.0.0.1:8000')\n"
        "for path in ('/', '/experiments/stopped', '/experiments/done', '/experiments/done/report'):\n"
        "    print(client.get(path).status_code)\n"
    )
    try:
        result = subprocess.run(
            [sys.executable, "-c", script, str(runs)], timeout=120, check=True, capture_output=True, text=True
        )
    except subprocess.TimeoutExpired:
        pytest.fail("a page waits for a pipe")
    assert result.stdout.split() == ["200", "200", "200", "404"]


# ---- row 9: sizes


def test_memory_and_pages_are_bounded(runs, files):
    about = read_json(runs / "stopped" / "experiment.json")
    about["experiment"]["variants"] = {f"v{i}": {"model": {"position": "alibi"}} for i in range(100_000)}
    (runs / "stopped" / "experiment.json").write_text(json.dumps(about))
    metrics = runs / "done" / "baseline" / "seed-0" / "metrics.jsonl"
    with metrics.open("ab") as file:
        file.truncate(1_500_000_000)
    findings = read_json(runs / "done" / "findings.json")
    verdict = findings["verdicts"][0]
    findings["verdicts"] = [{**verdict, "variant": f"v{i}", "summary": "x" * 500} for i in range(12_000)]
    (runs / "done" / "findings.json").write_text(json.dumps(findings))
    script = (
        "import sys, time; from pathlib import Path; from starlette.testclient import TestClient\n"
        "from headtohead.web.app import create_app\n"
        "client = TestClient(create_app(Path(sys.argv[1])), base_url='http://127.0.0.1:8000')\n"
        "start = time.process_time()\n"
        "paths = ('/', '/experiments/stopped', '/experiments/done', '/api/experiments/done')\n"
        "pages = [client.get(path) for path in paths]\n"
        "print([page.status_code for page in pages])\n"
        "print(max(len(page.content) for page in pages))\n"
        # ru_maxrss of a child starts at the size of the process that forked it; VmHWM does not
        "status = Path('/proc/self/status').read_text()\n"
        "print(int(status.split('VmHWM:')[1].split()[0]) // 1024)\n"
        "print(time.process_time() - start)\n"
    )
    result = subprocess.run([sys.executable, "-c", script, str(runs)], check=True, capture_output=True, text=True)
    codes, largest, megabytes, seconds = result.stdout.splitlines()
    assert codes == "[200, 200, 200, 200]"
    assert int(largest) < 4 << 20, "a page of many megabytes"
    assert int(megabytes) < 500, "memory grows with a foreign file"
    assert float(seconds) < 20


# ---- row 10: nesting and large integers


@pytest.mark.parametrize("value", ["[" * 100_000, "[" * 60 + "]" * 60, "9" * 4000, "-" + "9" * 400, "1e999"])
@pytest.mark.parametrize("key", ["step", "perplexity"])
def test_metrics_that_cannot_be_shown_are_left_out(client, runs, key, value):
    row = {"step": '"step": 10', "perplexity": '"perplexity": 1.0'} | {key: f'"{key}": {value}'}
    with (runs / "stopped" / "baseline" / "seed-0" / "metrics.jsonl").open("a") as file:
        file.write("{" + f'"split": "validation", {row["step"]}, {row["perplexity"]}' + "}\n")
    assert client.get("/experiments/stopped").status_code == 200
    assert client.get("/api/experiments/stopped").status_code == 200

    async def first_events() -> list[bytes]:
        app = create_app(runs)
        watcher = app.state.context.watchers.get_watcher("stopped")
        await watcher.update_regions()
        try:
            return [region.event for region in watcher.regions.values()]
        finally:
            await app.state.context.watchers.render_worker.end()

    assert any(b"trials" in event for event in asyncio.run(first_events()))


@pytest.mark.parametrize("text", ["[" * 600 + "]" * 600, "{a=" * 480 + "1" + "}" * 480])
def test_deep_nesting_in_a_form_field_is_an_error_of_the_form(client, text):
    form = {"name": "mine", "model.position": text, "do": "start"}
    response = client.post("/start/mine.toml", data=form)
    assert response.status_code == 200
    assert "nested" in response.text


# ---- row 17: event streams


def test_unread_event_streams_of_one_client_do_not_shut_out_others(server):
    _, port = server()
    streams = []
    request = "GET /experiments/stopped/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    try:
        for _ in range(request_guard.MAX_CONCURRENT_REQUESTS["watch"] + 60):
            stream = socket.create_connection(("127.0.0.1", port), timeout=60)
            stream.sendall(request.encode())
            streams.append(stream)
        time.sleep(2)
        with socket.create_connection(("127.0.0.1", port), timeout=60, source_address=("127.0.0.2", 0)) as other:
            other.sendall(request.encode())
            status = other.recv(65536).split(b"\r\n")[0].decode()
        assert " 200 " in status, f"another watcher gets {status}"
    finally:
        for stream in streams:
            stream.close()


# ---- row 18: reports, hosts, Sec-Fetch-Site


def test_a_foreign_report_is_shown_in_a_sandboxed_frame(client, runs):
    (runs / "done" / "report.html").write_text('<meta http-equiv="refresh" content="0;url=http://evil.example/">')
    page = client.get("/experiments/done/report")
    assert "evil.example" not in page.text, "the foreign document is the page itself, and can redirect it"
    frame = re.search(r"<iframe[^>]*>", page.text)
    assert frame is not None
    assert 'sandbox="allow-scripts"' in frame[0]
    assert "frame-src 'self'" in page.headers["content-security-policy"]
    source = re.search(r'src="([^"]*)"', frame[0])
    assert source is not None
    content = client.get(source[1], headers={"sec-fetch-dest": "iframe"})
    assert "evil.example" in content.text
    assert "sandbox" in content.headers["content-security-policy"]
    assert "frame-ancestors 'self'" in content.headers["content-security-policy"]
    alone = client.get(source[1], headers={"sec-fetch-dest": "document"})
    assert alone.status_code == 303 and alone.headers["location"] == "/experiments/done/report"


@pytest.mark.parametrize(
    "host", ["[::1]evil", "[::1]evil:80", "[::1", "::1]", "127.0.0.1:80:80", "127.0.0.1:", "localhost:+1"]
)
def test_malformed_hosts_are_rejected(host):
    assert not AllowedHosts.for_address("127.0.0.1").is_allowed(host)


@pytest.mark.parametrize("host", ["[::1]", "[::1]:80", "127.0.0.1", "localhost:8000", "LOCALHOST"])
def test_well_formed_hosts_are_accepted(host):
    assert AllowedHosts.for_address("127.0.0.1").is_allowed(host)


def test_a_doubled_fetch_site_header_is_rejected(client):
    headers = [("sec-fetch-site", "cross-site"), ("sec-fetch-site", "same-origin")]
    assert client.post("/experiments/stopped/stop", headers=headers).status_code == 403
