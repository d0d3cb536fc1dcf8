"""Small experiment files, and the real command that runs them in child processes."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PROJECT_ROOT = Path(__file__).parents[2]
WORKER_MODULE = "headtohead.execution.worker"
ORPHAN_TIMEOUT = 10.0
"""seconds after which a worker must have ended when its parent has"""
COMMAND_TIMEOUT = 240.0
"""maximum seconds of a command without faults"""
SINGLE_THREAD_VARIABLES = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

PLAIN_EXPERIMENT = """\
question = "Does ALiBi help?"
task = "language-model"
seeds = 2
data = {{ source = "{text}" }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training.budget = "{steps} steps"
training.batch_size = 8
training.eval_every = {eval_every}
training.checkpoint_every = {checkpoint_every}
training.load_best_model_at_end = true
probe = {{ prompts = ["the people"], sentences = {{ normal = "the people will defend the peace ." }} }}
[variants.alibi]
model.position = "alibi"
"""
SEARCH_EXPERIMENT = """\
question = "Which rate is best?"
task = "language-model"
seeds = 1
data = {{ source = "{text}" }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training.budget = "{steps} steps"
training.batch_size = 8
training.eval_every = {eval_every}
training.checkpoint_every = {checkpoint_every}
[search]
seeds = 1
[search.space]
training.optimizer.lr = [0.01, 0.001]
training.batch_size = [4, 8]
"""
DISTILLATION_EXPERIMENT = """\
question = "Does a teacher help?"
task = "distil"
seeds = 1
data = {{ source = "{text}" }}
model = {{ width = 8, layers = 1, heads = 2, context = 8 }}
training.budget = "{steps} steps"
training.batch_size = 8
training.eval_every = {eval_every}
training.checkpoint_every = {checkpoint_every}
[teacher]
model = {{ width = 16, layers = 2, heads = 2, context = 8 }}
training = {{ budget = "200 steps", batch_size = 8, eval_every = 200 }}
documents = 60
prompt_tokens = 3
[variants.both]
training.distillation = {{ targets = "both", weight = 1.0, top_k = 5 }}
"""
EXPERIMENT_FILES = {"plain": PLAIN_EXPERIMENT, "search": SEARCH_EXPERIMENT, "distillation": DISTILLATION_EXPERIMENT}

SUBJECTS = ("the president", "the people", "our nation", "a free country", "the congress", "every worker")
VERBS = ("will defend", "must build", "has asked for", "cannot forget", "will honor", "wants")
OBJECTS = ("the peace", "a stronger economy", "new schools", "the law", "this promise", "better jobs", "our allies")


def write_text_corpus(folder: Path) -> Path:
    """Write a small corpus of simple sentences, which is the same at every call."""
    rng = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for split, num_lines in (("train", 300), ("validation", 60), ("test", 60)):
        lines = [f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} ." for _ in range(num_lines)]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@dataclass
class Workspace:
    """A folder with an experiment file, its corpus, its runs and its cache."""

    folder: Path
    kind: str = "plain"
    steps: int = 1500
    checkpoint_every: int = 50
    variables: dict[str, str] = field(default_factory=dict)
    """additional environment variables"""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = write_text_corpus(self.folder / "text")
        self.file = self.folder / f"{self.kind}.toml"
        intervals = {"eval_every": max(1, self.steps // 4), "checkpoint_every": self.checkpoint_every}
        self.file.write_text(
            EXPERIMENT_FILES[self.kind].format(text=text, steps=self.steps, **intervals), encoding="utf-8"
        )
        self.runs = self.folder / "runs"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def build_environment(self) -> dict[str, str]:
        variables = {**os.environ, **SINGLE_THREAD_VARIABLES, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return {**variables, "XDG_CACHE_HOME": str(self.cache), "COLUMNS": "200", "NO_COLOR": "1", **self.variables}

    def start(self, *arguments: str, out: Path | None = None) -> StartedRun:
        """Start `h2h run --resume` in a child process."""
        command = [sys.executable, "-m", "headtohead.cli", "run", str(self.file), "--out", str(out or self.runs)]
        command += ["--resume", *(arguments or ("--workers", "2", "--device", "cpu"))]
        log = self.folder / f"output-{time.monotonic_ns()}.txt"
        with log.open("wb") as file:
            streams = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file}
            process = subprocess.Popen(command, **streams, env=self.build_environment(), cwd=self.folder)
        return StartedRun(process, log)

    def run_to_end(self, *arguments: str, out: Path | None = None) -> StartedRun:
        """Run `h2h run --resume` to its end."""
        running = self.start(*arguments, out=out)
        running.wait()
        return running

    def reset(self) -> None:
        """Remove the runs and the cache."""
        for path in (self.runs, self.cache):
            shutil.rmtree(path, ignore_errors=True)


@dataclass
class StartedRun:
    """A started `h2h run`."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    @property
    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = COMMAND_TIMEOUT) -> int:
        return self.process.wait(timeout=seconds)

    def list_workers(self) -> list[psutil.Process]:
        """Return the worker processes that are alive."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if is_worker(child)]

    def terminate(self) -> None:
        """End the command and all its workers."""
        workers = self.list_workers()
        if not self.has_ended:
            self.process.kill()
        self.process.wait()
        for worker in workers:
            if worker.is_running():
                worker.kill()
        psutil.wait_procs(workers, timeout=ORPHAN_TIMEOUT)


def is_worker(process: psutil.Process) -> bool:
    """Return whether a process is one of our workers."""
    try:
        return WORKER_MODULE in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def is_alive(process: psutil.Process) -> bool:
    """Return whether the process runs; a zombie does not count."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def get_last_line(output: str) -> str:
    """Return the last line of a command's output, which is its error message if it failed."""
    lines = [line for line in output.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no output"


def wait_for_file(running: StartedRun, pattern: str, folder: Path, seconds: float = COMMAND_TIMEOUT) -> Path | None:
    """Return the first file that matches while the command runs, or None."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if paths := sorted(folder.glob(pattern)):
            return paths[0]
        if running.has_ended:
            return None
        time.sleep(0.01)
    return None
