"""Folders that vanish under a running experiment, and two who want the same one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from headtohead.lab import loading, running
from headtohead.lab.folders import locked

from .disturb import CHECKPOINT, Disturbance, disturb, refusal
from .ledger import Ledger, compare
from .seen import How, Seen
from .still import undisturbed
from .trials import cache_of
from .world import last_words, wait_for


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
    first = world.start()
    others = [world.start(), world.start()]  # all three begin at once: one is the first to lock the folder
    wait_for(first, CHECKPOINT, world.runs)
    others += [world.start(), world.start(out=link)]
    everybody, ledger = [first, *others], Ledger(world.runs)
    while not all(one.is_over for one in everybody):
        ledger.look()
        time.sleep(0.05)
    ledger.close()
    refused = [one for one in everybody if one.code]
    wrong = [f"said only: {last_words(one.said)}" for one in refused if "being run right now" not in one.said]
    # One that begins after the end finds everything done: it is not refused, and changes nothing.
    wrong += [] if 0 < len(refused) < len(everybody) else [f"{len(refused)} of {len(everybody)} were refused"]
    wrong += compare(world.runs, still.numbers)
    said = f"{len(refused)} of 5 were refused ({last_words(refused[0].said) if refused else 'none'}); every result was "
    what = "experiment started five times in one folder, once by a link"
    yield Seen(what, f"{said}written once", 5, lost=tuple(ledger.lost), wrong=tuple(wrong))


def _refused_here(how: How) -> Seen:
    still = undisturbed(how)
    experiment = loading.load(str(still.folder.parent / f"{still.kind}.toml"))
    before = {path: path.stat().st_mtime_ns for path in still.folder.rglob("*")}
    with locked(still.folder), cache_of(still.world(how.scratch / "twice")):
        said = refusal(lambda: running.run(experiment, still.folder, workers=1, device="cpu", resume=True))
    after = {path: path.stat().st_mtime_ns for path in still.folder.rglob("*")}
    wrong = [] if said and "being run right now" in said else [f"was not refused: {said}"]
    wrong += [] if before == after else ["something was written all the same"]
    return Seen("experiment started twice in one folder", f"refused: {said}", 1, wrong=tuple(wrong))
