"""Do those who watch slow a training down? Trains the same tiny experiment alternately with and without 50 clients.

python tools/load.py [--clients 50] [--seconds 60] [--rounds 3] [--steps 400]

A server and its clients run in this folder's temporary place. Told at the end: seconds a step with and without clients,
requests that failed, and the server's memory at the beginning and the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SERVER = """
import pathlib, sys
from headtohead.serve.running import serve
serve(pathlib.Path(sys.argv[1]), port=0, ready=lambda address: print(address, flush=True))
"""
EXPERIMENT = """question = "Is it slower while somebody watches?"
task = "language-model"
seeds = 1
[model]
width = 64
layers = 2
[training]
steps = {steps}
evaluate = 50
"""


async def watch(port: int, name: str, until: float, events: list[int], errors: list[str]) -> None:
    """One client that reads what it is sent."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /experiments/{name}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        first = await reader.readline()
        if b"200" not in first:
            errors.append(first.decode())
        while time.monotonic() < until:
            try:
                async with asyncio.timeout(max(0.1, until - time.monotonic())):
                    line = await reader.readline()
            except TimeoutError:
                break
            if not line:
                errors.append("the line was closed")
                break
            events[0] += line.startswith(b"event:")
        writer.close()
    except OSError as error:
        errors.append(str(error))


async def clients(port: int, name: str, count: int, seconds: float) -> tuple[int, list[str]]:
    events, errors = [0], list[str]()
    until = time.monotonic() + seconds
    await asyncio.gather(*(watch(port, name, until, events, errors) for _ in range(count)))
    return events[0], errors


def train(folder: Path, file: Path) -> float:
    """Seconds a step."""
    command = [sys.executable, "-m", "headtohead.cli", "run", str(file), "--out", str(folder), "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        process.wait()
    result = json.loads((folder / "baseline" / "seed-0" / "result.json").read_text())
    return float(result["trained"]["seconds_per_step"])


async def watched(
    port: int, runs: Path, name: str, file: Path, count: int, seconds: float
) -> tuple[float, int, list[str]]:
    training = asyncio.create_task(asyncio.to_thread(train, runs / name, file))
    while not (runs / name / "experiment.json").exists():
        await asyncio.sleep(0.1)
    events, errors = await clients(port, name, count, seconds)
    return await training, events, errors


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("clients", 50), ("seconds", 60), ("rounds", 3), ("steps", 400)):
        asked.add_argument(f"--{name}", type=int, default=default)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as place:
        runs, file = Path(place) / "runs", Path(place) / "load.toml"
        file.write_text(EXPERIMENT.format(steps=given.steps))
        runs.mkdir()
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(runs)], stdout=subprocess.PIPE, text=True, cwd=place
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline().strip().rstrip("/").rpartition(":")[2])
            memory = [psutil.Process(server.pid).memory_info().rss]
            alone, together = [], []
            for at in range(given.rounds):
                alone.append(train(runs / f"alone-{at}", file))
                found, events, errors = asyncio.run(
                    watched(port, runs, f"watched-{at}", file, given.clients, given.seconds)
                )
                together.append(found)
                memory.append(psutil.Process(server.pid).memory_info().rss)
                print(
                    f"round {at + 1}: {1000 * alone[-1]:.2f} ms a step alone, {1000 * found:.2f} ms watched; "
                    f"{events} events, {len(errors)} errors {errors[:1]}; server {memory[-1] / 1e6:.0f} MB"
                )
            ratio = statistics.median(together) / statistics.median(alone)
            print(f"watched / alone: {ratio:.3f}; memory {memory[1] / 1e6:.0f} -> {memory[-1] / 1e6:.0f} MB")
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
