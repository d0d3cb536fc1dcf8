"""Start-up: commands without work, `h2h run` until its first step, a worker, and the stages of a trial."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headtohead.training.checkpoints import list_checkpoints

from . import child_processes
from .experiments import build_decoder_experiment
from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target
from .timing import run_alternating
from .workload import render_toml

ROUNDS = 7
MAX_HELP_SECONDS = 0.3
MAX_RATIO = 2.0
"""of `h2h recipes` to the import of its libraries, and of `h2h run` until its first step to the import of torch"""
MAX_START_SECONDS = 120.0
IMPORT_CHECK_SCRIPT = """
import sys
from headtohead.cli import main
sys.argv = ["h2h", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print("torch" in sys.modules)
"""


def measure_startup(settings: BenchmarkSettings) -> Measurements:
    """Measure commands that do not need torch, a worker, and a trial."""
    commands = {"h2h --help": ("--help",), "h2h recipes": ("recipes",)}
    contestants: dict[str, Callable[[], object]] = {
        name: _build_command_runner(child_processes.build_python_command("headtohead.cli", *arguments))
        for name, arguments in commands.items()
    }
    experiment_folder = settings.scratch / "startup"
    experiment_folder.mkdir()
    raw = build_decoder_experiment(settings.data, steps=500, eval_every=100)
    (experiment_folder / "bench.toml").write_text(render_toml(raw))
    contestants |= {
        "libraries": _build_command_runner([sys.executable, "-c", "import typer, rich, pydantic"]),
        "first step": lambda: run_until_first_step(experiment_folder, settings.num_cores),
        "python": _build_command_runner([sys.executable, "-c", "pass"]),
        "import torch": _build_command_runner([sys.executable, "-c", "import torch"]),
        "worker": _start_worker,
    }
    best = run_alternating(contestants, settings.get_num_rounds(ROUNDS))
    python_seconds = best["python"].wall_seconds
    for name in commands:
        seconds = best[name].wall_seconds
        target = Target(MAX_HELP_SECONDS, is_maximum=True) if name == "h2h --help" else None
        yield Measurement(name, seconds, "s", python_seconds, "python alone", seconds, "seconds", target)
    for name, peer, title in (
        ("h2h recipes", "libraries", "h2h recipes, compared with its libraries"),
        ("first step", "import torch", "h2h run on a cached corpus, until its first step"),
    ):
        ours, theirs = best[name].wall_seconds, best[peer].wall_seconds
        peer_title = "import typer, rich, pydantic" if peer == "libraries" else peer
        target = Target(MAX_RATIO, is_maximum=True)
        yield Measurement(title, ours, "s", theirs, peer_title, ours / theirs, target=target)
    num_importing = sum(imports_torch(arguments) for arguments in commands.values())
    name, target = f"{' and '.join(commands)}: number that import torch", Target(0, is_maximum=True)
    yield Measurement(name, num_importing, "commands", result=num_importing, kind="commands", target=target)
    worker_seconds, import_seconds = best["worker"].wall_seconds, best["import torch"].wall_seconds
    yield Measurement("a worker, until it is ready", worker_seconds, "s", import_seconds, "import torch")
    yield _build_trial_table(settings)


def _build_command_runner(command: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs a command."""
    return lambda: child_processes.run_command(command)


def run_until_first_step(folder: Path, num_workers: int) -> None:
    """Run the experiment in `folder` until the first training step starts, which follows the first checkpoint."""
    runs_folder = folder / "runs"
    shutil.rmtree(runs_folder, ignore_errors=True)
    arguments = ("run", str(folder / "bench.toml"), "--out", str(runs_folder), "--workers", str(num_workers))
    command = child_processes.build_python_command("headtohead.cli", *arguments)
    environment = child_processes.build_environment(1)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        deadline = time.monotonic() + MAX_START_SECONDS
        while not list_checkpoints(runs_folder / "baseline" / "seed-0"):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"h2h run has not reached a training step (exit code {process.returncode})")
            time.sleep(0.005)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def imports_torch(arguments: Sequence[str]) -> bool:
    """Return whether a command imports torch."""
    output = child_processes.run_command([sys.executable, "-c", IMPORT_CHECK_SCRIPT, *arguments])
    return output.strip().splitlines()[-1] == "True"


def _start_worker() -> None:
    """Start a worker and wait for its first message."""
    worker = subprocess.Popen(
        child_processes.build_python_command("headtohead.execution.worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=child_processes.build_environment(1),
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    message = worker.stdout.readline()
    worker.stdin.close()
    worker.wait()
    worker.stdout.close()
    assert '"ready"' in message


def _build_trial_table(settings: BenchmarkSettings) -> Table:
    """Return the stages of one trial of the base decoder in a new process, with and without the audits of seed 0."""
    steps, eval_every = (20, 10) if settings.is_short else (500, 100)
    raw = build_decoder_experiment(settings.data, steps=steps, eval_every=eval_every)
    fastest_runs: list[dict[str, float]] = []
    for seed in (0, 1):
        runs = [run_isolated("trial-stages", raw=raw, seed=seed) for _ in range(settings.get_num_rounds(3))]
        fastest_runs.append(min(runs, key=lambda seconds: seconds["total"]))
    stages = dict.fromkeys([*fastest_runs[0], *fastest_runs[1]])
    rows = [[stage, *(f"{run[stage]:.2f}" if stage in run else "-" for run in fastest_runs)] for stage in stages]
    note = "Seconds, one thread. A worker reads and tokenizes the corpus once, for all of its trials."
    return Table(f"Stages of a trial of {steps} steps", ["stage", "seed 0", "another seed"], rows, note)
