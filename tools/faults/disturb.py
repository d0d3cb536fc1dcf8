"""One disturbance of a running experiment: it is done when the first checkpoint is there, must be said in plain words,
is taken away again, and then `--resume` must end with the numbers of the undisturbed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from headtohead.errors import HeadToHeadError

from .ledger import Ledger, compare
from .seen import How, Seen
from .still import undisturbed
from .trials import cache_of, once, outcome, trial_of
from .world import World, last_words, wait_for

CHECKPOINT = "*/seed-*/checkpoint-0000[2-9]*"
TRIES = 3


@dataclass(frozen=True)
class Disturbance:
    """What is done to the folder of a run, how it is taken away again, and what a person must be told."""

    what: str
    apply: Callable[[Path], None]
    words: tuple[str, ...]
    undo: Callable[[], None] = lambda: None
    gone: bool = False
    """finished results of this folder go with it"""


def disturb(how: How, one: Disturbance, world: World, runs: Path) -> Seen:
    """A trial of this process in the short form, the whole command otherwise."""
    seen = _one_trial(how, one, world, runs) if how.short else _command(how, one, world, runs)
    one.undo()
    return seen


def _one_trial(how: How, one: Disturbance, world: World, runs: Path) -> Seen:
    still = undisturbed(how)
    trial, folder = trial_of(world), runs / "baseline" / "seed-0"
    with cache_of(world):
        said = outcome(trial, folder, once(2 * world.checkpoint, lambda: one.apply(folder)))
        wrong = _unsaid(one, said or "")
        one.undo()
        again = outcome(trial, folder)
    wrong += [f"did not go on: {again}"] if again else []
    wrong += compare(runs, {"baseline/seed-0": still.numbers["baseline/seed-0"]})
    return Seen(f"{one.what} (a trial)", f"said: {_short(said)}; went on to the same numbers", wrong=tuple(wrong))


def _command(how: How, one: Disturbance, world: World, runs: Path) -> Seen:
    still, ledger = undisturbed(how), Ledger(runs)
    running = world.start(out=runs)
    found = wait_for(running, CHECKPOINT, runs)
    if found is None:
        return Seen(one.what, "nothing", wrong=(f"never came to a checkpoint: {last_words(running.said)}",))
    ledger.look()
    one.apply(found.parent)
    running.wait()
    said = " ".join(running.said.split())
    wrong = _unsaid(one, said) if running.code else [f"{one.what}: nobody noticed"]
    one.undo()
    for _ in range(TRIES):
        again = world.finish(out=runs)
        if again.code == 0:
            break
    if not one.gone:
        ledger.close()
    wrong += [f"did not go on: {last_words(again.said)}"] if again.code else []
    wrong += compare(runs, still.numbers)
    told = next((line for line in running.said.splitlines() if one.words[0] in line), said)
    seen = f"ended with {running.code}, said: {_short(told)}; --resume ended with the same numbers"
    return Seen(one.what, seen, lost=tuple(ledger.lost), wrong=tuple(wrong))


def _unsaid(one: Disturbance, said: str) -> list[str]:
    found = [f"did not say {word!r}, but: {_short(said)}" for word in one.words if word not in said]
    return found + (["showed a traceback"] if "Traceback" in said else [])


def _short(said: str | None) -> str:
    text = " ".join((said or "nothing").split())
    return text if len(text) < 220 else f"{text[:140]} ... {text[-70:]}"


def refusal(work: Callable[[], object]) -> str | None:
    """What one of our errors said, if there was one."""
    with contextlib.suppress(OSError):
        try:
            work()
        except HeadToHeadError as error:
            return str(error)
    return None
