"""Folders that vanish under a running experiment, and two who want the same one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from headtohead.experiment import loading
from headtohead.experiment.run_folder import lock_folder
from headtohead.runner import run_experiment

from .disturb import CHECKPOINT, Disturbance, disturb, refusal
from .ledger import Ledger, compare
from .seen import How, Seen
from .still import undisturbed
from .trials import cache_of
from .world import last_words


def removed(how: How) -> Iterator[Seen]:
    """The folder of one run; and, in the full form, the experiment's."""
    still = undisturbed(how)
    world = still.world(how.scratch / "removed")

    def away(folder: Path) -> None:
        folder.rename(how.scratch / f"gone-{folder.name}-{folder.stat().st_ino}")

    one = Disturbance("run folder removed while it trains", away, ("was removed while",))
    yield disturb(how, one, world, world.runs)
    if not how.short:
        other = still.world(how.scratch / "all-removed")
        everything = Disturbance(
            "experiment's folder removed while it trains", lambda folder: away(other.runs), ("removed",), gone=True
        )
        yield disturb(how, everything, other, other.runs)


def twice(how: How) -> Iterator[Seen]:
    """The same experiment a second time in a folder that is being worked in."""
    if how.short:
        yield _refused_here(how)
        return
    still = undisturbed(how)
    world = still.world(how.scratch / "twice")
    link = world.folder / "link"
    link.symlink_to(world.runs)
    everybody, ledger = [world.start() for _ in range(3)], Ledger(world.runs)
    while not (all(one.is_over for one in everybody) or any(world.runs.glob(CHECKPOINT))):
        ledger.look()
        time.sleep(0.01)
    trained = [one for one in everybody if one.workers()]
    workers = [worker for one in trained for worker in one.workers()]
    with held(workers):  # or it would be done before the next ones have started
        late = [world.start(), world.start(out=link)]
        for one in late:
            one.wait()
    everybody += late
    while not all(one.is_over for one in everybody):
        ledger.look()
        time.sleep(0.05)
    ledger.close()
    refused = [one for one in everybody if one.code]
    wrong = [f"said only: {last_words(one.said)}" for one in refused if "another process is running" not in one.said]
    wrong += [] if len(refused) == 4 else [f"{len(refused)} of 5 were refused, not 4"]
    wrong += [] if len(trained) == 1 else [f"{len(trained)} of 5 had workers, not 1"]
    wrong += compare(world.runs, still.numbers)
    words = last_words(refused[0].said) if refused else "none"
    said = f"{len(refused)} of 5 were refused ({words}); every result was written once"
    what = "experiment started five times in one folder, once by a link"
    yield Seen(what, said, 5, lost=tuple(ledger.lost), wrong=tuple(wrong))


@contextlib.contextmanager
def held(processes: list[psutil.Process]) -> Iterator[None]:
    """They stand still for a while."""
    for one in processes:
        one.suspend()
    try:
        yield
    finally:
        for one in processes:
            one.resume()


def _refused_here(how: How) -> Seen:
    still = undisturbed(how)
    experiment = loading.load_experiment(str(still.folder.parent / f"{still.kind}.toml"))
    before = {path: path.stat().st_mtime_ns for path in still.folder.rglob("*")}
    with lock_folder(still.folder), cache_of(still.world(how.scratch / "twice")):
        said = refusal(
            lambda: run_experiment.run_experiment(experiment, still.folder, num_workers=1, device="cpu", resume=True)
        )
    after = {path: path.stat().st_mtime_ns for path in still.folder.rglob("*")}
    wrong = [] if said and "another process is running this experiment" in said else [f"was not refused: {said}"]
    wrong += [] if before == after else ["something was written all the same"]
    return Seen("experiment started twice in one folder", f"refused: {said}", 1, wrong=tuple(wrong))
