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

MAX_SLOWDOWN = 1.10
"""largest acceptable ratio of watched to unwatched training time"""
MAX_MEMORY_GROWTH_MB = 8.0
"""largest acceptable growth from the middle of the first watched training to the end of the last"""
MAX_NOISE_RATIO = 1.10
"""largest ratio between unwatched trainings; beyond it, the measurement is too noisy"""
EXPECTED_REGIONS = {"status", "trials", "verdicts", "curves", "audits"}
MAX_SILENT_SECONDS = 60.0
"""longer without data is an error; heartbeats come every 15 seconds"""
STATIC_FILES = ("site.css", "report.js", "live.js")


# ---- clients: `python tools/load.py --watch PORT NAME COUNT`, until stdin is closed


@dataclass
class WatchingClient:
    """A client that watches an experiment, and its statistics."""

    bytes: int = 0
    events: int = 0
    regions: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    async def watch_experiment(self, port: int, name: str, is_over: asyncio.Event) -> None:
        """Load the page of an experiment and read its events until `is_over`."""
        try:
            for path in (f"/experiments/{name}", *(f"/static/{file_name}" for file_name in STATIC_FILES)):
                await self._load_file(port, path)
            await self._read_events(port, name, is_over)
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        if missing := EXPECTED_REGIONS - self.regions:
            self.errors.append(f"never sent: {', '.join(sorted(missing))}")

    async def _load_file(self, port: int, path: str) -> None:
        """Load a page, a style sheet or a script."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        response = await reader.read(-1)
        writer.close()
        self.bytes += len(response)
        if not response.startswith(b"HTTP/1.1 200"):
            self.errors.append(f"{path}: {response[:40].decode(errors='replace')}")

    async def _read_events(self, port: int, name: str, is_over: asyncio.Event) -> None:
        """Read server-sent events."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        writer.write(f"GET /experiments/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        stop_task = asyncio.create_task(is_over.wait())
        while not is_over.is_set():
            line_task = asyncio.create_task(reader.readline())
            done_tasks, _ = await asyncio.wait(
                {line_task, stop_task}, timeout=MAX_SILENT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if line_task not in done_tasks:
                line_task.cancel()
                if stop_task not in done_tasks:
                    self.errors.append(f"silent for {MAX_SILENT_SECONDS:.0f} seconds")
                break
            if not self._process_line(await line_task):
                break
        writer.close()

    def _process_line(self, line: bytes) -> bool:
        """Process one line of the stream and return whether more lines follow."""
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


async def watch_with_clients(port: int, name: str, num_clients: int) -> list[WatchingClient]:
    """Run clients until the parent closes stdin."""
    is_over, loop = asyncio.Event(), asyncio.get_running_loop()

    def wait_for_parent() -> None:
        sys.stdin.read()
        loop.call_soon_threadsafe(is_over.set)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    clients = [WatchingClient() for _ in range(num_clients)]
    await asyncio.gather(*(client.watch_experiment(port, name, is_over) for client in clients))
    return clients


def run_clients(port: int, name: str, num_clients: int) -> None:
    """Run the clients at the lowest priority and print their statistics."""
    os.nice(19)
    clients = asyncio.run(watch_with_clients(port, name, num_clients))
    statistics_by_client = [
        {"bytes": client.bytes, "events": client.events, "errors": client.errors} for client in clients
    ]
    print(json.dumps({"clients": statistics_by_client, "processor_seconds": time.process_time()}))


# ---- server and training


class ServerProcess:
    """`h2h serve` as a child process."""

    def __init__(self, runs: Path, log: Path) -> None:
        self.log = log
        command = [sys.executable, "-m", "headtohead.cli", "serve", str(runs), "--port", "0", "--no-open"]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=runs.parent)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().strip().rstrip("/").rpartition(":")[2])

    def read_cpu_seconds(self) -> float:
        """Return CPU seconds of the server and its children, including exited ones."""
        server = psutil.Process(self.process.pid)
        exited_seconds = server.cpu_times().children_user + server.cpu_times().children_system
        processes = (server, *server.children(recursive=True))
        return exited_seconds + sum(_read_cpu_seconds(process) for process in processes)

    def read_memory(self) -> dict[str, float]:
        """Return resident memory in MB of the server and of its children."""
        server = psutil.Process(self.process.pid)
        children = server.children(recursive=True)
        return {"server": _read_memory_mb(server), "children": sum(map(_read_memory_mb, children))}

    def end(self) -> str:
        """Stop the server and return its error output."""
        self.process.terminate()
        self.process.wait(timeout=30)
        return self.log.read_text(errors="replace").strip()


def _read_cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time of a process; 0 if it has ended."""
    try:
        return float(sum(process.cpu_times()[:2]))
    except psutil.Error:
        return 0.0


def _read_memory_mb(process: psutil.Process) -> float:
    """Return the resident memory of a process; 0 if it has ended."""
    try:
        return round(process.memory_info().rss / 1e6, 1)
    except psutil.Error:
        return 0.0


@dataclass
class TrainingMeasurement:
    """Measurements of one training, alone or watched."""

    watched: bool
    seconds: float = 0.0
    """duration of the whole command"""
    seconds_per_step: float = 0.0
    """training time per step of the slower trial, without evaluations"""
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

    def compute_capacity_fraction(self, cpu_seconds: float) -> float:
        """Return CPU time as a fraction of the machine's capacity during the training."""
        return cpu_seconds / (self.seconds * (os.cpu_count() or 1))


def run_training(
    server: ServerProcess, runs: Path, name: str, options: argparse.Namespace, *, watched: bool
) -> TrainingMeasurement:
    """Run one training and return its measurements."""
    measurement, start_time = TrainingMeasurement(watched), time.monotonic()
    server_cpu_before, children_cpu_before = server.read_cpu_seconds(), _read_children_cpu_seconds()
    log_path = runs.parent / f"{name}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            _build_training_command(runs / name, options), stdout=log, stderr=log, cwd=runs.parent
        )
    clients = None
    next_sample_time = start_time
    end_time = start_time + (options.seconds if watched else 0)
    while process.poll() is None or time.monotonic() < end_time:
        if watched and clients is None and (runs / name / "experiment.json").exists():
            clients = _start_clients(server.port, name, options.clients)
            end_time = time.monotonic() + options.seconds
        if time.monotonic() >= next_sample_time:
            measurement.memory.append({"at": round(time.monotonic() - start_time, 1), **server.read_memory()})
            next_sample_time += options.every
        if process.returncode is not None and not measurement.seconds:
            measurement.seconds = time.monotonic() - start_time
        time.sleep(0.05)
    measurement.seconds = measurement.seconds or time.monotonic() - start_time
    measurement.training_processor = _read_children_cpu_seconds() - children_cpu_before
    if process.returncode != 0:
        raise SystemExit(f"the training failed:\n{log_path.read_text(errors='replace')[-2000:]}")
    if clients is not None:
        out, _ = clients.communicate("", timeout=120)
        report = json.loads(out)
        measurement.clients, measurement.clients_processor = report["clients"], report["processor_seconds"]
    measurement.memory.append({"at": round(time.monotonic() - start_time, 1), **server.read_memory()})
    measurement.server_processor = server.read_cpu_seconds() - server_cpu_before
    results = [json.loads(path.read_text()) for path in (runs / name).glob("*/seed-*/result.json")]
    measurement.seconds_per_step = max(result["training"]["seconds_per_step"] for result in results)
    return measurement


def _read_children_cpu_seconds() -> float:
    """Return CPU seconds of exited children: trainings, and clients of earlier trainings."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _build_training_command(folder: Path, options: argparse.Namespace) -> list[str]:
    """Return the command of a training with a baseline and a variant."""
    settings = (f"training.budget={options.steps} steps", f"training.eval_every={max(1, options.steps // 12)}")
    command = [sys.executable, "-m", "headtohead.cli", "run", "speeches-decoder", "--seeds", "1", "--workers", "2"]
    return [*command, "--out", str(folder), *(word for setting in settings for word in ("--set", setting))]


def _start_clients(port: int, name: str, num_clients: int) -> subprocess.Popen[str]:
    """Start the process of all clients."""
    command = [sys.executable, __file__, "--watch", str(port), name, str(num_clients)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# ---- results


def summarize_measurements(
    measurements: list[TrainingMeasurement], server_errors: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Return all measurements and whether they meet the limits."""
    alone, watched = (
        [measurement for measurement in measurements if measurement.watched is is_watched]
        for is_watched in (False, True)
    )
    ratios = {
        name: min(getattr(measurement, name) for measurement in watched)
        / min(getattr(measurement, name) for measurement in alone)
        for name in ("seconds_per_step", "seconds")
    }
    early_memory, late_memory = watched[0].memory[len(watched[0].memory) // 2], watched[-1].memory[-1]
    memory_growth = late_memory["server"] - early_memory["server"]
    seconds_alone = [measurement.seconds_per_step for measurement in alone]
    noise_ratio = max(seconds_alone) / min(seconds_alone)
    errors = [error for measurement in watched for error in measurement.errors]
    errors += [server_errors] if server_errors else []
    return {
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in vars(options).items()},
        "cores": os.cpu_count(),
        "ratios": ratios,
        "errors": errors,
        "growth": memory_growth,
        "spread": noise_ratio,
        "fine": {
            "no error": not errors,
            f"memory flat (at most {MAX_MEMORY_GROWTH_MB:.0f} MB more)": early_memory["at"] < late_memory["at"]
            and memory_growth <= MAX_MEMORY_GROWTH_MB,
            f"low noise: at least two unwatched trainings within {MAX_NOISE_RATIO - 1:.0%}": len(alone) > 1
            and noise_ratio <= MAX_NOISE_RATIO,
            f"at most {MAX_SLOWDOWN - 1:.0%} slower": ratios["seconds_per_step"] <= MAX_SLOWDOWN,
        },
        "turns": [asdict(measurement) for measurement in measurements],
    }


def print_measurement(measurement: TrainingMeasurement) -> None:
    """Print the table row of one training."""
    events = [client["events"] for client in measurement.clients] or [0]
    kilobytes = [client["bytes"] / 1e3 for client in measurement.clients] or [0.0]
    last_memory = measurement.memory[-1]
    server_cpu, clients_cpu = measurement.server_processor, measurement.clients_processor
    print(
        f"{'watched' if measurement.watched else 'alone':8} {measurement.seconds:8.1f} "
        f"{1000 * measurement.seconds_per_step:10.2f} "
        f"{server_cpu:8.2f} {measurement.compute_capacity_fraction(server_cpu):6.1%} "
        f"{clients_cpu:8.2f} {measurement.compute_capacity_fraction(clients_cpu):6.1%} "
        f"{last_memory['server']:8.0f} {last_memory['children']:8.0f} {len(measurement.errors):7d} "
        f"{min(events):5d}-{max(events):<5d} {statistics.median(kilobytes):8.0f}",
        flush=True,
    )


TABLE_HEAD = """\
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
        report = measure_slowdown(Path(folder), options)
    ratios = report["ratios"]
    print(
        f"\nwatched / alone, best of {options.rounds}: {ratios['seconds_per_step']:.3f} per step, "
        f"{ratios['seconds']:.3f} for the whole command\nserver: {report['growth']:+.1f} MB "
        "from the middle of the first watched training to the end of the last\n"
        f"trainings alone differ by {report['spread'] - 1:.0%}"
    )
    print(*(f"{'yes' if is_met else 'NO '}  {limit}" for limit, is_met in report["fine"].items()), sep="\n")
    print(*(f"     {error}" for error in report["errors"][:10]), sep="\n")
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(not all(report["fine"].values()))


def measure_slowdown(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run trainings alone and watched, in measurement, and return the report."""
    runs = folder / "runs"
    runs.mkdir()
    server = ServerProcess(runs, folder / "server.log")
    measurements = []
    print(
        f"{options.clients} clients in one process with nice 19; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"
    )
    print(TABLE_HEAD)
    try:
        for number in range(options.rounds):
            for watched in (False, True):
                name = f"{'watched' if watched else 'alone'}-{number + 1}"
                measurements.append(run_training(server, runs, name, options, watched=watched))
                print_measurement(measurements[-1])
    finally:
        server_errors = server.end()
    return summarize_measurements(measurements, server_errors, options)


if __name__ == "__main__":
    main()
