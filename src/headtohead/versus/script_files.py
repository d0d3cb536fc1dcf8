"""Find files of training scripts: the code that commands run, and the files that runs read and write."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

CODE_SUFFIX = ".py"
MAX_CODE_FILES = 500
MAX_SCANNED_ENTRIES = 10_000
"""maximum number of files and folders to scan in a working directory"""
MAX_HASHED_BYTES = 2**22
"""number of leading bytes that the digest of a file covers, in addition to its size"""
MAX_TOUCHED_FILES = 20
MAX_PATH_CHARACTERS = 1000
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "worktrees"})


def hash_script_files(command_words: Sequence[str], directory: Path) -> dict[str, str]:
    """Return {path: digest} of the files named in a command, and of the Python files next to its scripts."""
    named_files = {name: path for name in list_named_paths(command_words) if (path := directory / name).is_file()}
    script_folders = {path.parent for path in named_files.values() if path.suffix == CODE_SUFFIX}
    neighbors = {path for folder in script_folders for path in _list_code_files(folder)} - set(named_files.values())
    paths = named_files | {os.path.relpath(path, directory): path for path in sorted(neighbors)}
    return {name: digest for name, path in paths.items() if (digest := _hash_file(path))}


def list_named_paths(command_words: Sequence[str]) -> list[str]:
    """Return possible script files in a command: words, the value in `--option=PATH`, and the module after `-m`."""
    names = [name for word in command_words for name in (word, word.partition("=")[2])]
    modules = [module for option, module in pairwise(command_words) if option == "-m"]
    names += [module.replace(".", "/") + CODE_SUFFIX for module in modules]
    return [os.path.normpath(name) for name in names if 0 < len(name) < MAX_PATH_CHARACTERS and "\0" not in name]


def list_changed_files(recorded_digests: Mapping[str, str], directory: Path) -> list[str]:
    """Return the script files that are not the same as when the comparison began and recorded their digests."""
    return [name for name, digest in recorded_digests.items() if _hash_file(directory / name) != digest]


class TouchedFiles(NamedTuple):
    """Files in a working directory that a run wrote, and files from earlier runs that it read."""

    written: dict[str, int]
    """time of modification in nanoseconds"""
    read: list[str]


def find_touched_files(
    directory: Path, *, comparison_start_ns: int, run_start_ns: int, excluded_folder: Path
) -> TouchedFiles:
    """Return the files in a script's working directory that were written or read since its run began.

    Hidden folders, Python caches, virtual environments and `excluded_folder` are skipped. Reads are not detected on
    file systems that do not record access times (noatime).
    """
    written, read = {}, []
    redirected_output = _identify_redirected_output()
    for entry in _walk_files(directory, excluded_folder):
        status = entry.stat(follow_symlinks=False)
        name = os.path.relpath(entry.path, directory)
        if (status.st_dev, status.st_ino) in redirected_output:
            continue
        if status.st_mtime_ns >= run_start_ns:
            written[name] = status.st_mtime_ns
        elif status.st_mtime_ns >= comparison_start_ns and status.st_atime_ns >= run_start_ns:
            read.append(name)
    return TouchedFiles(dict(sorted(written.items())[:MAX_TOUCHED_FILES]), sorted(read)[:MAX_TOUCHED_FILES])


def _identify_redirected_output() -> set[tuple[int, int]]:
    """Return (device, inode) of the files to which stdout and stderr of `h2h versus` itself are redirected."""
    device_inodes = set()
    for descriptor in (1, 2):
        try:
            status = os.fstat(descriptor)
        except OSError:
            continue
        device_inodes.add((status.st_dev, status.st_ino))
    return device_inodes


def _list_code_files(folder: Path) -> list[Path]:
    """Return the Python files in and below a folder, at most MAX_CODE_FILES."""
    paths = (Path(entry.path) for entry in _walk_files(folder, None) if entry.name.endswith(CODE_SUFFIX))
    return sorted(paths)[:MAX_CODE_FILES]


def _walk_files(folder: Path, excluded_folder: Path | None) -> Iterator[os.DirEntry[str]]:
    """Yield the files in and below the folder or working directory of a script, breadth first.

    Stop after MAX_SCANNED_ENTRIES files and folders.
    """
    pending_folders, num_scanned = [str(folder)], 0
    while pending_folders:
        try:
            entries = list(os.scandir(pending_folders.pop(0)))
        except OSError:
            continue
        num_scanned += len(entries)
        if num_scanned > MAX_SCANNED_ENTRIES:
            return
        if any(entry.name == "pyvenv.cfg" for entry in entries):
            continue
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                yield entry
            elif (
                entry.is_dir(follow_symlinks=False)
                and not entry.name.startswith(".")
                and entry.name not in SKIPPED_FOLDERS
                and Path(entry.path) != excluded_folder
            ):
                pending_folders.append(entry.path)


def _hash_file(path: Path) -> str:
    """Return a digest of a script file's size and first bytes, or an empty string if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.sha256(b"%d " % path.stat().st_size + file.read(MAX_HASHED_BYTES)).hexdigest()
    except OSError:
        return ""
