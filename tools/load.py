"""Measure how much watching clients slow down a training: the same training alternately alone and with 50 clients.

python tools/load.py [--clients 50] [--seconds 60] [--rounds 3] [--steps 1200] [--out load.json]

Runs one `h2h serve` and a sequence of `h2h run speeches-decoder` with one seed, so that baseline and variant train on
two workers and keep both cores busy. A client acts like a browser: it loads the page with style sheet and scripts, then
reads server-sent events until the training ends, and for at least the given time.

Clients run in a separate process at the lowest priority (nice 19), on the same cores. Their CPU time is reported
separately from that of the server and its children; both contribute to the slow-down. The slow-down is the ratio of the
best rounds, per training step and for the whole command.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

WANTED = 1.10
"""largest acceptable slow-down"""
FLAT = 8.0
"""largest acceptable memory growth in MB, from the middle of the first watched training to the end of the last"""
QUIET = 1.10
"""largest ratio between unwatched trainings; beyond it, the measurement is too noisy"""
REGIONS = {"status", "trials", "verdicts", "curves", "audits"}
SILENT = 60.0
"""seconds without data that count as an error; heartbeats come every 15"""
STATIC = ("site.css", "report.js", "live.js")


# ---- clients: `python tools/load.py --watch PORT NAME COUNT`, until stdin is closed


@dataclass
class Client:
    """A watching client and its statistics."""

    bytes: int = 0
    events: int = 0
    regions: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    async def watch(self, port: int, name: str, over: asyncio.Event) -> None:
        try:
            for path in (f"/experiments/{name}", *(f"/static/{file_name}" for file_name in STATIC)):
                await self._load(port, path)
            await self._listen(port, name, over)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        if missing := REGIONS - self.regions:
            self.errors.append(f"never sent: {', '.join(sorted(missing))}")

    async def _load(self, port: int, path: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read(-1)
        writer.close()
        self.bytes += len(answer)
        if not answer.startswith(b"HTTP/1.1 200"):
            self.errors.append(f"{path}: {answer[:40].decode(errors='replace')}")

    async def _listen(self, port: int, name: str, over: asyncio.Event) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        writer.write(f"GET /experiments/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        stopped = asyncio.create_task(over.wait())
        while not over.is_set():
            line = asyncio.create_task(reader.readline())
            done, _ = await asyncio.wait({line, stopped}, timeout=SILENT, return_when=asyncio.FIRST_COMPLETED)
            if line not in done:
                line.cancel()
                if stopped not in done:
                    self.errors.append(f"silent for {SILENT:.0f} seconds")
                break
            if not self._take(await line):
                break
        writer.close()

    def _take(self, line: bytes) -> bool:
        """Process one line of the stream and return whether there are more."""
        self.bytes += len(line)
        if line.startswith(b"HTTP/") and b" 200 " not in line:
            self.errors.append(line.decode(errors="replace").strip())
            return False
        if line.startswith(b"data: "):
            self.events += 1
            self.regions.add(json.loads(line[6:])["region"])
        if not line:
            self.errors.append("connection closed")
        return bool(line)


async def watch(port: int, name: str, count: int) -> list[Client]:
    """Run clients until the parent closes stdin."""
    over, loop = asyncio.Event(), asyncio.get_running_loop()

    def listen() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(over.set)

    threading.Thread(target=listen, daemon=True).start()
    clients = [Client() for _ in range(count)]
    await asyncio.gather(*(client.watch(port, name, over) for client in clients))
    return clients


def run_clients(port: int, name: str, count: int) -> None:
    os.nice(19)
    clients = asyncio.run(watch(port, name, count))
    rows = [{"bytes": client.bytes, "events": client.events, "errors": client.errors} for client in clients]
    print(json.dumps({"clients": rows, "processor_seconds": time.process_time()}))


# ---- server and training


class Server:
    """`h2h serve` as a child process."""

    def __init__(self, runs: Path, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "headtohead.cli", "serve", str(runs), "--port", "0", "--no-open"]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=runs.parent)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def processor_seconds(self) -> float:
        """Return CPU seconds of the server and its children, including exited ones."""
        me = psutil.Process(self.process.pid)
        ended = me.cpu_times().children_user + me.cpu_times().children_system
        return ended + sum(_processor_seconds(process) for process in (me, *me.children(recursive=True)))

    def memory(self) -> dict[str, float]:
        """Return resident memory in MB of the server and of its children."""
        me = psutil.Process(self.process.pid)
        return {"server": _megabytes(me), "children": sum(map(_megabytes, me.children(recursive=True)))}

    def end(self) -> str:
        """Stop the server and return its error output."""
        self.process.terminate()
        self.process.wait(timeout=30)
        return self.log.read_text(errors="replace").strip()


def _processor_seconds(process: psutil.Process) -> float:
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0


def _megabytes(process: psutil.Process) -> float:
    try:
        return round(process.memory_info().rss / 1e6, 1)
    except psutil.Error:
        return 0.0


@dataclass
class Turn:
    """Measurements of one training, alone or watched."""

    watched: bool
    seconds: float = 0.0
    """duration of the whole command"""
    seconds_per_step: float = 0.0
    """of the slower trial, without evaluations"""
    training_processor: float = 0.0
    """CPU seconds of the command and its workers"""
    server_processor: float = 0.0
    clients_processor: float = 0.0
    memory: list[dict[str, float]] = field(default_factory=list)
    """samples of time and of the memory of server and children"""
    clients: list[dict[str, Any]] = field(default_factory=list)

    @property
    def errors(self) -> list[str]:
        return [error for client in self.clients for error in client["errors"]]

    def share(self, processor: float) -> float:
        """Return CPU time as a fraction of the machine's capacity during the training."""
        return processor / (self.seconds * (os.cpu_count() or 1))


def train(server: Server, runs: Path, name: str, options: argparse.Namespace, *, watched: bool) -> Turn:
    """Run one training and return its measurements."""
    turn, began, used, ended = Turn(watched), time.monotonic(), server.processor_seconds(), _of_children()
    log_path = runs.parent / f"{name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(_run(runs / name, options), stdout=log, stderr=log, cwd=runs.parent)
    clients = None
    next_look, until = began, began + (options.seconds if watched else 0)
    while process.poll() is None or time.monotonic() < until:
        if watched and clients is None and (runs / name / "experiment.json").exists():
            clients, until = _clients(server.port, name, options.clients), time.monotonic() + options.seconds
        if time.monotonic() >= next_look:
            turn.memory.append({"at": round(time.monotonic() - began, 1), **server.memory()})
            next_look += options.every
        if process.returncode is not None and not turn.seconds:
            turn.seconds = time.monotonic() - began
        time.sleep(0.05)
    turn.seconds = turn.seconds or time.monotonic() - began
    turn.training_processor = _of_children() - ended
    if process.returncode != 0:
        raise SystemExit(f"the training failed:\n{log_path.read_text(errors='replace')[-2000:]}")
    if clients is not None:
        out, _ = clients.communicate("", timeout=120)
        report = json.loads(out)
        turn.clients, turn.clients_processor = report["clients"], report["processor_seconds"]
    turn.memory.append({"at": round(time.monotonic() - began, 1), **server.memory()})
    turn.server_processor = server.processor_seconds() - used
    results = [json.loads(path.read_text()) for path in (runs / name).glob("*/seed-*/result.json")]
    turn.seconds_per_step = max(result["trained"]["seconds_per_step"] for result in results)
    return turn


def _of_children() -> float:
    """Return CPU seconds of exited children: trainings, and clients of earlier turns."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _run(folder: Path, options: argparse.Namespace) -> list[str]:
    settings = (f"training.steps={options.steps}", f"training.eval_every={max(1, options.steps // 12)}")
    command = [sys.executable, "-m", "headtohead.cli", "run", "speeches-decoder", "--seeds", "1", "--workers", "2"]
    return [*command, "--out", str(folder), *(word for setting in settings for word in ("--set", setting))]


def _clients(port: int, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, "--watch", str(port), name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# ---- results


def summarize(turns: list[Turn], complaints: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return all measurements and whether they meet the limits."""
    alone, watched = ([turn for turn in turns if turn.watched is side] for side in (False, True))
    ratios = {
        name: min(getattr(turn, name) for turn in watched) / min(getattr(turn, name) for turn in alone)
        for name in ("seconds_per_step", "seconds")
    }
    early, late = watched[0].memory[len(watched[0].memory) // 2], watched[-1].memory[-1]
    growth = late["server"] - early["server"]
    spread = max(turn.seconds_per_step for turn in alone) / min(turn.seconds_per_step for turn in alone)
    errors = [error for turn in watched for error in turn.errors] + ([complaints] if complaints else [])
    return {
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "cores": os.cpu_count(),
        "ratios": ratios,
        "errors": errors,
        "growth": growth,
        "spread": spread,
        "fine": {
            "no error": not errors,
            f"memory flat (at most {FLAT:.0f} MB more)": early["at"] < late["at"] and growth <= FLAT,
            f"low noise: at least two unwatched trainings within {QUIET - 1:.0%}": len(alone) > 1 and spread <= QUIET,
            f"at most {WANTED - 1:.0%} slower": ratios["seconds_per_step"] <= WANTED,
        },
        "turns": [asdict(turn) for turn in turns],
    }


def show_turn(turn: Turn) -> None:
    events = [client["events"] for client in turn.clients] or [0]
    sent = [client["bytes"] / 1e3 for client in turn.clients] or [0.0]
    last = turn.memory[-1]
    print(
        f"{'watched' if turn.watched else 'alone':8} {turn.seconds:8.1f} {1000 * turn.seconds_per_step:10.2f} "
        f"{turn.server_processor:8.2f} {turn.share(turn.server_processor):6.1%} "
        f"{turn.clients_processor:8.2f} {turn.share(turn.clients_processor):6.1%} "
        f"{last['server']:8.0f} {last['children']:8.0f} {len(turn.errors):7d} "
        f"{min(events):5d}-{max(events):<5d} {statistics.median(sent):8.0f}",
        flush=True,
    )


HEAD = """\
             whole    ms a step     server        clients       server  children           events    kB
training   seconds      (worse)  s of CPU       s of CPU         MB       MB  errors  a client   a client"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 50), ("seconds", 60), ("rounds", 3), ("steps", 1200), ("every", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path, help="write all measurements to this JSON file")
    parser.add_argument("--watch", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # also stops the processes started here
    if options.watch:
        run_clients(int(options.watch[0]), options.watch[1], int(options.watch[2]))
        return
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options)
    ratios = report["ratios"]
    print(
        f"\nwatched / alone, best of {options.rounds}: {ratios['seconds_per_step']:.3f} per step, "
        f"{ratios['seconds']:.3f} for the whole command\nserver: {report['growth']:+.1f} MB "
        "from the middle of the first watched training to the end of the last\n"
        f"trainings alone differ by {report['spread'] - 1:.0%}"
    )
    print(*(f"{'yes' if fine else 'NO '}  {name}" for name, fine in report["fine"].items()), sep="\n")
    print(*(f"     {words}" for words in report["errors"][:10]), sep="\n")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(not all(report["fine"].values()))


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    runs = folder / "runs"
    runs.mkdir()
    server = Server(runs, folder / "server.log")
    turns = []
    print(
        f"{options.clients} clients in one process with nice 19; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(HEAD)
    try:
        for number in range(options.rounds):
            for watched in (False, True):
                name = f"{'watched' if watched else 'alone'}-{number + 1}"
                turns.append(train(server, runs, name, options, watched=watched))
                show_turn(turns[-1])
    finally:
        complaints = server.end()
    return summarize(turns, complaints, options)


if __name__ == "__main__":
    main()
