"""Start-up: what a command costs before it does anything, a worker before its first trial, a trial besides steps."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from . import alone, children, lessons
from .findings import Bar, Finding, Found, How, Table
from .turns import take_turns

ROUNDS = 7
QUICK = 0.3
SAYS_WHETHER_TORCH = """
import sys
from headtohead.cli import main
sys.argv = ["h2h", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print("torch" in sys.modules)
"""


def startup(how: How) -> Found:
    """Verbs that need no torch, a worker, a trial."""
    rounds = how.rounds(ROUNDS)
    verbs = {"h2h --help": ("--help",), "h2h recipes": ("recipes",)}
    sides: dict[str, Callable[[], object]] = {
        name: _command(children.python("headtohead.cli", *arguments)) for name, arguments in verbs.items()
    }
    sides |= {
        "python": _command([sys.executable, "-c", "pass"]),
        "import torch": _command([sys.executable, "-c", "import torch"]),
        "worker": _worker_is_ready,
    }
    best = take_turns(sides, rounds)
    bare = best["python"].wall
    for name in verbs:
        bar = Bar(QUICK, at_most=True) if name == "h2h --help" else None
        yield Finding(name, best[name].wall, "s", bare, "python alone", best[name].wall, "seconds", bar)
    heavy = sum(imports_torch(arguments) for arguments in verbs.values())
    none = Bar(0, at_most=True)
    yield Finding(f"{' and '.join(verbs)}: how many import torch", heavy, "verbs", figure=heavy, kind="verbs", bar=none)
    yield Finding("a worker, until it is ready", best["worker"].wall, "s", best["import torch"].wall, "import torch")
    yield _trial(how)


def _command(command: Sequence[str]) -> Callable[[], object]:
    return lambda: children.run(command)


def imports_torch(arguments: Sequence[str]) -> bool:
    """Whether the verb has imported torch by the time it ends."""
    said = children.run([sys.executable, "-c", SAYS_WHETHER_TORCH, *arguments])
    return said.strip().splitlines()[-1] == "True"


def _worker_is_ready() -> None:
    """From the start of the process to its first word."""
    worker = subprocess.Popen(
        children.python("headtohead.execution.worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=children.environment(1),
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    said = worker.stdout.readline()
    worker.stdin.close()
    worker.wait()
    worker.stdout.close()
    assert '"ready"' in said


def _trial(how: How) -> Table:
    """One trial of the base decoder in a fresh process, stage by stage, with and without the audits of seed 0."""
    size = {"steps": 20, "eval_every": 10} if how.short else {"steps": 500, "eval_every": 100}
    raw = lessons.decoder(how.data, seeds=1, **size)
    found: list[dict[str, float]] = []
    for seed in (0, 1):
        turns = [alone.ask("fixed-costs", raw=raw, seed=seed) for _ in range(how.rounds(3))]
        found.append(min(turns, key=lambda one: one["the whole trial"]))
    stages = dict.fromkeys([*found[0], *found[1]])
    rows = [[stage, *(f"{one[stage]:.2f}" if stage in one else "-" for one in found)] for stage in stages]
    note = "Seconds, one thread. A worker reads and tokenises the corpus once, whatever the number of its trials."
    return Table(f"A trial of {size['steps']} steps, by stages", ["", "seed 0", "another seed"], rows, note)
