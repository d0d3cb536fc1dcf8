"""Count false verdicts of `h2h versus`: compare a training script with itself many times, each time on new seeds.

    python tools/versus_noise.py --data input.txt --out FOLDER                   200 comparisons, five seeds per command
    python tools/versus_noise.py --data input.txt --out FOLDER --count 20 --workers 2

Every run is a process of its own, as in `h2h versus --noise`, but forked from a server that has imported torch, which
would take most of the time. Interrupted, it continues where it stopped. Prints the number of each outcome and the exact
95 % interval of the rate of false verdicts.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import runpy
import signal
import socket
import sys
from collections import Counter
from pathlib import Path

from scipy.stats import binomtest

from headtohead.experiment.schemas import Findings, read_record
from headtohead.versus.config import build_comparison_config
from headtohead.versus.findings.compute import write_findings
from headtohead.versus.run_comparison import run_comparison

TRAINING_SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "examples" / "train_gpt.py"
CLIENT_CODE = """
import json, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(connection, [json.dumps(sys.argv[2:]).encode()], [1, 2])
sys.exit(int(connection.recv(16) or 1))
"""
"""code of a run: passes its arguments and output streams to the server, and exits with the script's exit code"""


def start_fork_server(address: Path) -> int:
    """Start the process that runs the script for clients, until this process exits. Return its process id."""
    parent_id = os.getpid()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(address))
    listener.listen()
    listener.settimeout(1)
    if process_id := os.fork():
        return process_id
    importlib.import_module("torch._dynamo")  # torch imports it at the first optimizer step
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while os.getppid() == parent_id:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        message, descriptors, _, _ = socket.recv_fds(connection, 2**16, 2)
        if os.fork() == 0:
            run_script(json.loads(message), connection, descriptors)
        connection.close()
        for descriptor in descriptors:
            os.close(descriptor)
    os._exit(0)


def run_script(arguments: list[str], connection: socket.socket, descriptors: list[int]) -> None:
    """Run the script in this process with the output of a client, send its exit code and exit."""
    for target, descriptor in zip((1, 2), descriptors, strict=True):
        os.dup2(descriptor, target)
    sys.argv = [str(TRAINING_SCRIPT), *arguments]
    exit_code = 1
    try:
        runpy.run_path(str(TRAINING_SCRIPT), run_name="__main__")
        exit_code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.send(str(exit_code).encode())
        os._exit(exit_code)


def judge_comparison(folder: Path, command: list[str], index: int, arguments: argparse.Namespace) -> Findings:
    """Return the findings of one comparison of the script with itself; run it if it has not run yet."""
    if (folder / "findings.json").is_file():
        return read_record(folder / "findings.json", Findings)
    config = build_comparison_config(
        {
            "metric": "val_loss",
            "baseline": command,
            "variants": {"repeated": command},
            "is_aa_test": True,
            "seeds": arguments.seeds,
            "first_seed": index * 2 * arguments.seeds,
        },
        "versus_noise",
    )
    comparison = run_comparison(
        folder, config, directory=TRAINING_SCRIPT.parent, num_workers=arguments.workers, resume=True
    )
    return write_findings(comparison, sys.argv)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="text file")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=200, help="comparisons")
    parser.add_argument("--seeds", type=int, default=5, help="seeds per command")
    parser.add_argument("--steps", type=int, default=60, help="training steps of each run")
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    outcomes: Counter[str] = Counter()
    address = arguments.out.resolve() / "socket"
    address.unlink(missing_ok=True)
    server_process_id = start_fork_server(address)
    command = [sys.executable, "-S", "-c", CLIENT_CODE, str(address), "--data", str(arguments.data.resolve())]
    command += ["--seed", "{seed}", "--steps", str(arguments.steps), "--eval-interval", str(arguments.steps)]
    command += ["--eval-batches", "4"]
    try:
        for index in range(arguments.count):
            findings = judge_comparison(arguments.out / f"{index:04d}", command, index, arguments)
            outcomes[findings.verdicts[0].outcome] += 1
            print_false_verdict_rate(outcomes)
    finally:
        os.kill(server_process_id, signal.SIGTERM)


def print_false_verdict_rate(outcomes: Counter[str]) -> None:
    """Print how often each outcome occurred, and the rate of false verdicts."""
    num_false = outcomes["helped"] + outcomes["hurt"]
    interval = binomtest(num_false, outcomes.total()).proportion_ci()
    print(
        f"{outcomes.total()} comparisons: {dict(outcomes)}; false verdicts {num_false / outcomes.total():.1%} "
        f"(95 % interval {interval.low:.1%} to {interval.high:.1%})",
        flush=True,
    )


if __name__ == "__main__":
    main()
