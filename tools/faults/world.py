"""Small experiments, as files, and the real command that runs them in processes of their own."""

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

ROOT = Path(__file__).parents[2]
WORKER = "headtohead.execution.worker"
WITHIN = 10.0
"""seconds after which a worker whose parent is gone must be gone too"""
AT_MOST = 240.0
"""seconds that one undisturbed command may take"""
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

PLAIN = """\
question = "Does ALiBi help?"
task = "language-model"
seeds = 2
data = {{ source = "{text}" }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training.steps = {steps}
training.batch_size = 8
training.eval_every = {evaluate}
training.checkpoint_every = {checkpoint}
training.load_best_model_at_end = true
probe = {{ prompts = ["the people"], sentences = {{ normal = "the people will defend the peace ." }} }}
[variants.alibi]
model.position = "alibi"
"""
SEARCHED = """\
question = "Which rate is best?"
task = "language-model"
seeds = 1
data = {{ source = "{text}" }}
model = {{ width = 16, layers = 1, heads = 2, context = 8 }}
training = {{ steps = {steps}, batch_size = 8, eval_every = {evaluate}, checkpoint_every = {checkpoint} }}
[search]
seeds = 1
[search.space]
training.optimizer.lr = [0.01, 0.001]
training.batch_size = [4, 8]
"""
TAUGHT = """\
question = "Does a teacher help?"
task = "distil"
seeds = 1
data = {{ source = "{text}" }}
model = {{ width = 8, layers = 1, heads = 2, context = 8 }}
training = {{ steps = {steps}, batch_size = 8, eval_every = {evaluate}, checkpoint_every = {checkpoint} }}
[teacher]
model = {{ width = 16, layers = 2, heads = 2, context = 8 }}
training = {{ steps = 200, batch_size = 8, eval_every = 200 }}
documents = 60
prompt_tokens = 3
[variants.both]
training.distillation = {{ targets = "both", weight = 1.0, top_k = 5 }}
"""
KINDS = {"plain": PLAIN, "searched": SEARCHED, "taught": TAUGHT}

SUBJECTS = ("the president", "the people", "our nation", "a free country", "the congress", "every worker")
VERBS = ("will defend", "must build", "has asked for", "cannot forget", "will honor", "wants")
OBJECTS = ("the peace", "a stronger economy", "new schools", "the law", "this promise", "better jobs", "our allies")


def write_text(folder: Path) -> Path:
    """Sentences with some sense in them, the same every time."""
    draw = random.Random(0)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", 300), ("validation", 60), ("test", 60)):
        lines = [f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)} ." for _ in range(rows)]
        (folder / f"{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@dataclass
class World:
    """An experiment file with a corpus, and places for its runs and for what is kept between them."""

    folder: Path
    kind: str = "plain"
    steps: int = 1500
    checkpoint: int = 50
    variables: dict[str, str] = field(default_factory=dict)
    """more of the environment of its processes"""

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        text = write_text(self.folder / "text")
        self.file = self.folder / f"{self.kind}.toml"
        sizes = {"steps": self.steps, "evaluate": max(1, self.steps // 4), "checkpoint": self.checkpoint}
        self.file.write_text(KINDS[self.kind].format(text=text, **sizes), encoding="utf-8")
        self.runs = self.folder / "runs"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def environment(self) -> dict[str, str]:
        known = {**os.environ, **ONE_THREAD, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        return {**known, "XDG_CACHE_HOME": str(self.cache), "COLUMNS": "200", "NO_COLOR": "1", **self.variables}

    def start(self, *more: str, out: Path | None = None) -> Running:
        """`h2h run --resume` in a process of its own."""
        command = [sys.executable, "-m", "headtohead.cli", "run", str(self.file), "--out", str(out or self.runs)]
        command += ["--resume", *(more or ("--workers", "2", "--device", "cpu"))]
        errors = self.folder / f"errors-{time.monotonic_ns()}.txt"
        with errors.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=self.environment(), cwd=self.folder
            )
        return Running(process, errors)

    def finish(self, *more: str, out: Path | None = None) -> Running:
        """The same, to its end."""
        running = self.start(*more, out=out)
        running.wait()
        return running

    def anew(self) -> None:
        """Runs and what was kept of the corpus are gone: the next start makes everything again."""
        for place in (self.runs, self.cache):
            shutil.rmtree(place, ignore_errors=True)


@dataclass
class Running:
    """An `h2h run` that was started."""

    process: subprocess.Popen[bytes]
    errors: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        return self.process.poll() is not None

    @property
    def code(self) -> int | None:
        return self.process.poll()

    @property
    def said(self) -> str:
        return self.errors.read_text(encoding="utf-8", errors="replace")

    def wait(self, seconds: float = AT_MOST) -> int:
        return self.process.wait(timeout=seconds)

    def workers(self) -> list[psutil.Process]:
        """Its worker processes that are alive now."""
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        return [child for child in children if is_worker(child)]

    def end(self) -> None:
        """Whatever is left of it is ended."""
        left = self.workers()
        if not self.is_over:
            self.process.kill()
        self.process.wait()
        for worker in left:
            if worker.is_running():
                worker.kill()
        psutil.wait_procs(left, timeout=WITHIN)


def is_worker(process: psutil.Process) -> bool:
    try:
        return WORKER in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


def is_alive(process: psutil.Process) -> bool:
    """Still there, and more than an entry that nobody has collected yet."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def last_words(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "nothing was said"


def wait_for(running: Running, pattern: str, folder: Path, seconds: float = AT_MOST) -> Path | None:
    """The first file of this form that appears while the command runs."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
        if running.is_over:
            return None
        time.sleep(0.01)
    return None
