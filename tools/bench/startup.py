"""Start-up: the duration of a command without work, of a worker until its first trial, and of a trial besides steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from . import child_processes
from .isolated import run_isolated
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target
from .timing import run_alternating
from .workload import build_decoder_experiment

ROUNDS = 7
MAX_HELP_SECONDS = 0.3
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
    contestants |= {
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
    num_importing = sum(imports_torch(arguments) for arguments in commands.values())
    name, target = f"{' and '.join(commands)}: number that import torch", Target(0, is_maximum=True)
    yield Measurement(name, num_importing, "commands", result=num_importing, kind="commands", target=target)
    worker_seconds, import_seconds = best["worker"].wall_seconds, best["import torch"].wall_seconds
    yield Measurement("a worker, until it is ready", worker_seconds, "s", import_seconds, "import torch")
    yield _build_trial_table(settings)


def _build_command_runner(command: Sequence[str]) -> Callable[[], object]:
    """Return a function that runs a command."""
    return lambda: child_processes.run_command(command)


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
