"""Contestants in processes of their own: with all threads, or one process a core with one thread each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[2]
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """So many threads, no network, no notes about what a tokenizer does when a process is copied."""
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    return {**os.environ, **dict.fromkeys(THREADS, str(threads)), **quiet}


def run(command: Sequence[str], *, threads: int = 1, **settings: str) -> str:
    """What the command prints; its complaints are shown when it fails."""
    return together([command], threads=threads, **settings)[0]


def together(commands: Sequence[Sequence[str]], *, threads: int = 1, **settings: str) -> list[str]:
    """Side by side, until the last has ended; gives what each of them printed. `settings` go into their environment."""
    with ExitStack() as opened:
        words = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(2 * len(commands))]
        started = [
            _Child.start(command, {**environment(threads), **settings}, *words[2 * i : 2 * i + 2])
            for i, command in enumerate(commands)
        ]
        for one in started:
            opened.callback(one.end)
        for one in started:
            one.process.wait()
            if one.process.returncode:
                raise RuntimeError(f"{' '.join(one.command)} ended with {one.process.returncode}:\n{one.complaints()}")
        return [one.said() for one in started]


@dataclass(frozen=True)
class _Child:
    """A process whose words go to files: a pipe that nobody reads would stop it."""

    command: Sequence[str]
    process: subprocess.Popen[bytes]
    out: IO[bytes]
    err: IO[bytes]

    @classmethod
    def start(cls, command: Sequence[str], settings: dict[str, str], out: IO[bytes], err: IO[bytes]) -> _Child:
        return cls(command, subprocess.Popen(list(command), stdout=out, stderr=err, env=settings, cwd=ROOT), out, err)

    def said(self) -> str:
        self.out.seek(0)
        return self.out.read().decode()

    def complaints(self) -> str:
        self.err.seek(0)
        return self.err.read().decode()[-2000:]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def python(module: str, *arguments: str) -> list[str]:
    """The command line of a module, with this Python."""
    return [sys.executable, "-m", module, *arguments]


def answer(said: str) -> Any:
    """A child's last line is its answer, as JSON."""
    return json.loads(said.strip().splitlines()[-1])
