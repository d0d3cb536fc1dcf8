"""Hostile experiment folders of every kind among valid ones, opened by `verify`, `report` and `serve`.

No code is executed, nothing is written outside of the folders, memory stays bounded, `verify` reports every hostile
folder, and every valid one passes. The slow test has five folders of each kind (`make hostile`).
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from headtohead.report import write

from .hostile_folders import KINDS, build_folders

MAX_MEMORY = 1 << 30
"""resident memory of each process, in bytes"""
MAX_RESPONSE_SECONDS = 60
PAGES = ("", "/events", "/report", "/report/content", "/report.pdf")
REPORT_SCRIPT = """
import json, sys
from typer.testing import CliRunner
from headtohead.cli import app
from headtohead.errors import HeadToHeadError
for folder in sys.argv[1:]:
    result = CliRunner().invoke(app, ["report", folder, "--format", "html", "--format", "csv", "--format", "tex"])
    error = result.exception
    is_handled = error is None or isinstance(error, (HeadToHeadError, OSError, SystemExit))
    print(json.dumps([folder, result.exit_code, is_handled, repr(error)[:300]]), flush=True)
"""


@dataclass
class HostileRuns:
    """A folder of experiments, and surrounding files that must not change."""

    root: Path
    good: list[str]
    bad: list[str]
    outside: dict[str, object] = field(default_factory=dict)
    peak_memory: int = 0

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def folders(self) -> list[str]:
        return [str(self.runs / name) for name in [*self.bad, *self.good]]

    def check_surroundings(self) -> None:
        """Check that no code was executed and nothing was written outside of the folders."""
        assert not (self.root / "canary").exists(), "code of a folder was executed"
        assert take_snapshot(self.root) == self.outside
        allowed = {name for folder in (*self.bad, *self.good) for name in (folder, f".{folder}.lock")}
        records = {f".{folder}.training{suffix}" for folder in self.bad for suffix in (".json", ".log")}
        assert {path.name for path in self.runs.iterdir()} <= allowed | records

    @contextlib.contextmanager
    def watch(self, process: subprocess.Popen[str]) -> Iterator[None]:
        """Record the peak memory of a process and its children, while continuously modifying some files."""
        is_over = threading.Event()

        def measure() -> None:
            while not is_over.wait(0.05):
                with contextlib.suppress(psutil.Error):
                    parent = psutil.Process(process.pid)
                    for child in (parent, *parent.children(recursive=True)):
                        self.peak_memory = max(self.peak_memory, read_peak_memory(child.pid))

        def change() -> None:
            paths = [self.runs / name / "baseline" / "seed-0" / "metrics.jsonl" for name in self.bad]
            paths = [path for path in paths if path.parents[2].name.startswith("changing_file")]
            while not is_over.wait(0.002):
                for path in paths:
                    os.truncate(path, time.monotonic_ns() % 100_000)

        threads = [threading.Thread(target=target) for target in (measure, change)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
            process.kill()
            process.communicate()


def read_peak_memory(pid: int) -> int:
    """Return the peak resident memory of a process in bytes; 0 if it has exited."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(match[1]) << 10 if match else 0


def take_snapshot(root: Path) -> dict[str, object]:
    """Return the content of every file outside of the runs folder."""
    entries: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if relative.parts[0] in ("runs", "cache"):
            continue
        content = str(path.readlink()) if path.is_symlink() else path.is_dir() or path.read_bytes()[:4096]
        size = 0 if path.is_dir() else path.lstat().st_size
        entries[str(relative)] = (content, size)
    return entries


@pytest.fixture(params=[1, pytest.param(5, marks=pytest.mark.slow)], ids=["sample", "all"])
def hostile(request: pytest.FixtureRequest, tmp_path: Path, finished_runs: Path) -> HostileRuns:
    num_good = 2 if request.param == 1 else 20
    for name in ("runs", "home", "empty", "cache"):
        (tmp_path / name).mkdir()
    bad = build_folders(
        finished_runs,
        tmp_path / "runs",
        tmp_path / "outside",
        tmp_path / "canary",
        per_kind=request.param,
        num_good=num_good,
    )
    good = [f"good-{index}" for index in range(num_good)]
    write(tmp_path / "runs" / "good-0", ["html", "md"])
    runs = HostileRuns(tmp_path, good, bad)
    runs.outside = take_snapshot(tmp_path)
    return runs


def start(hostile: HostileRuns, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "HOME": str(hostile.root / "home"), "XDG_CACHE_HOME": str(hostile.root / "cache")}
    command = [sys.executable, *arguments]
    pipe = subprocess.PIPE
    working_folder = hostile.root / "empty"
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment, cwd=working_folder)


def report_figures(hostile: HostileRuns, command: str, seconds: float) -> None:
    """Print the figures of docs/security.md (shown by `pytest -s`)."""
    counts = f"{len(hostile.bad)} hostile folders of {len(KINDS)} kinds, {len(hostile.good)} good"
    print(f"{command}: {counts}; peak {hostile.peak_memory >> 20} MiB, {seconds:.0f} s")


def test_there_are_forty_kinds():
    assert len(KINDS) >= 40


def test_verify_names_every_bad_folder_and_passes_every_good_one(hostile):
    began = time.monotonic()
    process = start(hostile, "-m", "headtohead.cli", "verify", "--json", *hostile.folders)
    with hostile.watch(process):
        output, errors = process.communicate()
    assert process.returncode == 1, errors[-2000:]
    rows = {Path(row["folder"]).name: row for row in json.loads(output)}
    assert [name for name in hostile.bad if rows[name]["passed"]] == []
    failed_good = {name: [check for check in rows[name]["checks"] if not check["passed"]] for name in hostile.good}
    assert failed_good == {name: [] for name in hostile.good}
    hostile.check_surroundings()
    assert hostile.peak_memory < MAX_MEMORY
    report_figures(hostile, "verify", time.monotonic() - began)


def test_report_writes_or_refuses(hostile):
    began = time.monotonic()
    process = start(hostile, "-c", REPORT_SCRIPT, *hostile.folders)
    with hostile.watch(process):
        output, errors = process.communicate()
    rows = [json.loads(line) for line in output.splitlines()]
    assert len(rows) == len(hostile.folders), errors[-2000:]
    assert [row for row in rows if not row[2]] == [], "errors that nothing handles"
    assert [row for row in rows if row[1] and Path(row[0]).name in hostile.good] == []
    hostile.check_surroundings()
    assert hostile.peak_memory < MAX_MEMORY
    report_figures(hostile, "report", time.monotonic() - began)


def test_serve_answers_every_page(hostile):
    began = time.monotonic()
    process = start(hostile, "-m", "headtohead.cli", "serve", str(hostile.runs), "--port", "0", "--no-open")
    statuses: dict[str, int] = {}
    with hostile.watch(process):
        assert process.stdout is not None
        address = re.search(r"http://\S+", process.stdout.readline())
        assert address is not None
        base = address[0].rstrip("/")
        listing = ask(f"{base}/")[1]
        names = [*hostile.bad, *hostile.good]
        for name in names:
            quoted = urllib.parse.quote(name)
            for page in PAGES:
                statuses[f"{name}{page}"] = ask(f"{base}/experiments/{quoted}{page}")[0]
            statuses[f"{name} api"] = ask(f"{base}/api/experiments/{quoted}")[0]
        assert ask(f"{base}/")[0] == 200
        process.send_signal(signal.SIGTERM)
    assert {page: status for page, status in statuses.items() if status >= 500} == {}
    assert [name for name in names if f"/experiments/{name}" not in listing] == []
    good_pages = [f"{name}{page}" for name in hostile.good for page in ("", "/events", "/report.pdf", " api")]
    assert {page: statuses[page] for page in good_pages if statuses[page] != 200} == {}
    hostile.check_surroundings()
    assert hostile.peak_memory < MAX_MEMORY
    report_figures(hostile, "serve", time.monotonic() - began)


def ask(address: str) -> tuple[int, str]:
    """Return the status and text of a page; for an event stream, the first line."""
    try:
        with urllib.request.urlopen(address, timeout=MAX_RESPONSE_SECONDS) as response:
            is_stream = address.endswith("/events")
            body = response.readline() if is_stream else response.read()
            return response.status, body.decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
