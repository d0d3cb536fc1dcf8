"""Run commands in child processes: one with all threads, or one per core with a single thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

PROJECT_ROOT = Path(__file__).resolve().parents[2]
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def build_environment(num_threads: int) -> dict[str, str]:
    """Return an environment with this many threads, without network access and without library messages."""
    library_variables = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(num_threads)), **library_variables}


def run_command(command: Sequence[str], *, num_threads: int = 1, **variables: str) -> str:
    """Run a command and return its output; raise RuntimeError with its stderr if it fails."""
    return run_commands_in_parallel([command], num_threads=num_threads, **variables)[0]


def run_commands_in_parallel(commands: Sequence[Sequence[str]], *, num_threads: int = 1, **variables: str) -> list[str]:
    """Run commands at the same time and return their outputs.

    `variables` are added to their environment. Raises RuntimeError if a command fails.
    """
    environment = {**build_environment(num_threads), **variables}
    with ExitStack() as stack:
        children = []
        for command in commands:  # output goes to files, because a full pipe would block the child
            stdout, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            process = subprocess.Popen(list(command), stdout=stdout, stderr=stderr, env=environment, cwd=PROJECT_ROOT)
            stack.callback(_kill_if_running, process)
            children.append((command, process, stdout, stderr))
        outputs = []
        for command, process, stdout, stderr in children:
            if process.wait():
                stderr.seek(0)
                message = stderr.read().decode()[-2000:]
                raise RuntimeError(f"{' '.join(command)} failed with exit code {process.returncode}:\n{message}")
            stdout.seek(0)
            outputs.append(stdout.read().decode())
        return outputs


def _kill_if_running(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def build_python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module with this Python."""
    return [sys.executable, "-m", module, *arguments]


def parse_json_result(output: str) -> Any:
    """Parse the last line of a child's output, which is its result as JSON."""
    return json.loads(output.strip().splitlines()[-1])
