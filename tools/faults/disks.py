"""Disks that fill up, and folders that become read-only. Both need a disk of their own, which only root can mount."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from .disturb import Disturbance, disturb
from .seen import How, Seen
from .still import undisturbed
from .world import last_words

NO_MOUNT = "a disk of its own can only be mounted by root"
ROOM = "24m"
BLOCK = 2**16


def mount(*arguments: str) -> bool:
    """Did it work? Not everybody may, and not everywhere."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


def unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", str(place)], check=False, capture_output=True)


def fill(place: Path) -> None:
    """Until nothing more goes in."""
    with contextlib.suppress(OSError), (place / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(bytes(BLOCK))
    with contextlib.suppress(OSError), (place / "filler").open("ab", buffering=0) as file:
        while True:
            file.write(b"0")


@contextlib.contextmanager
def small_disk(place: Path) -> Iterator[bool]:
    place.mkdir(parents=True, exist_ok=True)
    mounted = mount("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", str(place))
    try:
        yield mounted
    finally:
        if mounted:
            unmount(place)


def full(how: How) -> Iterator[Seen]:
    """A disk without room, from the middle of a training on."""
    still = undisturbed(how)
    place = how.scratch / "small-disk"
    with small_disk(place) as mounted:
        if not mounted:
            yield Seen("disk full", "", skipped=NO_MOUNT)
            return
        one = Disturbance(
            "disk filled while it trains",
            lambda folder: fill(place),
            ("no room left on the disk",),
            lambda: (place / "filler").unlink(missing_ok=True),
        )
        yield disturb(how, one, still.world(how.scratch / "full"), place / "runs")
        if not how.short:
            yield _full_from_the_start(how, place)


def _full_from_the_start(how: How, place: Path) -> Seen:
    """Nothing may be begun that cannot be written."""
    fill(place)
    world = undisturbed(how).world(how.scratch / "full-before")
    done = world.finish(out=place / "other")
    (place / "filler").unlink()
    wrong = [] if done.code else ["nobody noticed"]
    wrong += ["showed a traceback"] if "Traceback" in done.said else []
    wrong += ["left something behind"] if (place / "other").exists() else []
    return Seen("disk full from the start", f"ended with {done.code}: {last_words(done.said)}", wrong=tuple(wrong))


def read_only(how: How) -> Iterator[Seen]:
    """The folder of a run that cannot be written any more, and one that never could be."""
    lock, unlock = _ways()
    if not _works(how.scratch / "try", lock, unlock):
        yield Seen("folder made read-only", "", skipped=NO_MOUNT)
        return
    still = undisturbed(how)
    world = still.world(how.scratch / "read-only")
    locked: list[Path] = []

    def apply(folder: Path) -> None:
        locked.append(folder)
        lock(folder)

    def undo() -> None:
        while locked:
            unlock(locked.pop())

    one = Disturbance("run folder made read-only while it trains", apply, (os.strerror(_error()),), undo)
    yield disturb(how, one, world, world.runs)
    if not how.short:
        yield _from_the_start(how, lock, unlock)


def _ways() -> tuple[Callable[[Path], object], Callable[[Path], object]]:
    """Permissions bind everybody but root; for root, the folder is mounted on itself to be read only."""
    if os.geteuid() != 0:
        return (lambda folder: folder.chmod(0o555)), (lambda folder: folder.chmod(0o755))

    def lock(folder: Path) -> None:
        mount("--bind", str(folder), str(folder))
        mount("-o", "remount,ro,bind", str(folder))

    return lock, unmount


def _error() -> int:
    return errno.EACCES if os.geteuid() != 0 else errno.EROFS


def _works(folder: Path, lock: Callable[[Path], object], unlock: Callable[[Path], object]) -> bool:
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    try:
        (folder / "file").write_text("")
        return False
    except OSError:
        return True
    finally:
        unlock(folder)


def _from_the_start(how: How, lock: Callable[[Path], object], unlock: Callable[[Path], object]) -> Seen:
    place = how.scratch / "never-writable"
    place.mkdir()
    lock(place)
    world = undisturbed(how).world(how.scratch / "read-only-before")
    done = world.finish(out=place / "runs")
    unlock(place)
    wrong = [] if done.code else ["nobody noticed"]
    wrong += ["showed a traceback"] if "Traceback" in done.said else []
    wrong += [] if os.strerror(_error()) in done.said else [f"said only: {last_words(done.said)}"]
    said = f"ended with {done.code}: {last_words(done.said)}"
    return Seen("folder read-only from the start", said, wrong=tuple(wrong))
