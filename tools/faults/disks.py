"""Fill the disk, and make folders read-only. Both need a separate file system, which only root can mount."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from .injection import FolderFault, inject_fault
from .outcome import FaultOutcome, FaultSettings
from .reference_run import get_reference_run
from .workspace import StartedRun, get_last_line

MOUNT_NEEDS_ROOT = "only root can mount a file system"
DISK_SIZE = "24m"
BLOCK_SIZE = 2**16
FolderFunction = Callable[[Path], object]


def mount_file_system(*arguments: str) -> bool:
    """Mount a file system; return whether it succeeded."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


def unmount_file_system(folder: Path) -> None:
    """Unmount a file system as soon as it is not in use."""
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def fill_folder(folder: Path) -> None:
    """Write a file until the disk is full to the last byte."""
    for content in (bytes(BLOCK_SIZE), b"0"):
        with contextlib.suppress(OSError), (folder / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(content)


@contextlib.contextmanager
def mount_small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system while the context is open; yield whether it succeeded."""
    folder.mkdir(parents=True, exist_ok=True)
    is_mounted = mount_file_system("-t", "tmpfs", "-o", f"size={DISK_SIZE}", "tmpfs", str(folder))
    try:
        yield is_mounted
    finally:
        if is_mounted:
            unmount_file_system(folder)


def fill_disk(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Fill the disk during a training, and start on a full disk."""
    reference = get_reference_run(settings)
    disk = settings.scratch / "small-disk"
    with mount_small_disk(disk) as is_mounted:
        if not is_mounted:
            yield FaultOutcome("disk full", "", skipped=MOUNT_NEEDS_ROOT)
            return
        fault = FolderFault(
            "disk filled during training",
            lambda folder: fill_folder(disk),
            ("no disk space left",),
            lambda: (disk / "filler").unlink(missing_ok=True),
        )
        yield inject_fault(settings, fault, reference.create_workspace(settings.scratch / "full"), disk / "runs")
        if not settings.is_short:
            yield _start_on_full_disk(settings, disk)


def _start_on_full_disk(settings: FaultSettings, disk: Path) -> FaultOutcome:
    """Check that nothing is started that cannot be written."""
    fill_folder(disk)
    workspace = get_reference_run(settings).create_workspace(settings.scratch / "full-before")
    run = workspace.run_to_end(out=disk / "other")
    (disk / "filler").unlink()
    errors = _check_command_failed(run) + (["left files behind"] if (disk / "other").exists() else [])
    return _build_start_outcome("disk full from the start", run, errors)


def _check_command_failed(run: StartedRun) -> list[str]:
    """Return errors unless the command failed with a message."""
    errors = [] if run.exit_code else ["not noticed"]
    return errors + (["printed a traceback"] if "Traceback" in run.output else [])


def _build_start_outcome(name: str, run: StartedRun, errors: list[str]) -> FaultOutcome:
    """Return the outcome of a command that cannot start."""
    return FaultOutcome(name, f"exit code {run.exit_code}: {get_last_line(run.output)}", errors=tuple(errors))


def make_read_only(settings: FaultSettings) -> Iterator[FaultOutcome]:
    """Make the folder of a run read-only during training and from the start."""
    lock, unlock = _get_lock_functions()
    if not _can_make_read_only(settings.scratch / "try", lock, unlock):
        yield FaultOutcome("folder made read-only", "", skipped=MOUNT_NEEDS_ROOT)
        return
    workspace = get_reference_run(settings).create_workspace(settings.scratch / "read-only")
    locked: list[Path] = []

    def apply(folder: Path) -> None:
        locked.append(folder)
        lock(folder)

    def remove() -> None:
        while locked:
            unlock(locked.pop())

    fault = FolderFault("run folder made read-only during training", apply, (_get_expected_message(),), remove)
    yield inject_fault(settings, fault, workspace, workspace.runs)
    if not settings.is_short:
        yield _start_in_read_only_folder(settings, lock, unlock)


def _get_lock_functions() -> tuple[FolderFunction, FolderFunction]:
    """Return functions that lock and unlock a folder. Permissions do not bind root, so root mounts it read-only."""
    if os.geteuid() != 0:
        return (lambda folder: folder.chmod(0o555)), (lambda folder: folder.chmod(0o755))

    def lock(folder: Path) -> None:
        mount_file_system("--bind", str(folder), str(folder))
        mount_file_system("-o", "remount,ro,bind", str(folder))

    return lock, unmount_file_system


def _get_expected_message() -> str:
    """Return the message of the operating system for a folder that cannot be written."""
    return os.strerror(errno.EACCES if os.geteuid() != 0 else errno.EROFS)


def _can_make_read_only(folder: Path, lock: FolderFunction, unlock: FolderFunction) -> bool:
    """Return whether a locked folder rejects new files."""
    folder.mkdir(parents=True, exist_ok=True)
    lock(folder)
    try:
        (folder / "file").write_text("")
        return False
    except OSError:
        return True
    finally:
        unlock(folder)


def _start_in_read_only_folder(settings: FaultSettings, lock: FolderFunction, unlock: FolderFunction) -> FaultOutcome:
    """Start an experiment in a folder that was never writable."""
    folder = settings.scratch / "never-writable"
    folder.mkdir()
    lock(folder)
    workspace = get_reference_run(settings).create_workspace(settings.scratch / "read-only-before")
    run = workspace.run_to_end(out=folder / "runs")
    unlock(folder)
    errors = _check_command_failed(run)
    errors += [] if _get_expected_message() in run.output else [f"message: {get_last_line(run.output)}"]
    return _build_start_outcome("folder read-only from the start", run, errors)
