"""Open files of run folders, which are untrusted: somebody else may have written them.

Links are not followed, only regular files are opened, and sizes are limited before a parser sees the bytes. Everything
that reads a run folder goes through this module; an audit hook in the tests and a lint rule enforce it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from io import BufferedRandom, BufferedReader, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headtohead.errors import RunFolderError

if TYPE_CHECKING:
    import numpy as np

MAX_FILE_BYTES = 64 << 20
"""limit of JSON files, JSON lines, logs and reports"""
MAX_ARRAY_BYTES = 256 << 20
"""limit of scores and attention maps"""
MAX_WEIGHTS_BYTES = 64 << 30
"""limit of weights, and of every file whose hash is computed"""
MAX_FOLDER_ENTRIES = 1_000_000
"""limit of the files and subfolders of a run folder or an experiment's folder"""
MAX_FOLDER_DEPTH = 8
MAX_SPARSE_RATIO = 100
"""limit of a file's size divided by its space on disk; compressing file systems reach about 10 with weights"""
UNREAD_FOLDERS = ("logs",)
"""folders of trackers in an experiment's folder; nothing reads them, and wandb creates links there"""


def open_file(path: Path, max_bytes: int = MAX_FILE_BYTES, *, follow_link: bool = False) -> BufferedReader:
    """Open a regular file of at most `max_bytes` for reading; raise RunFolderError for anything else.

    With `follow_link`, the last component may be a link: for files that the user names.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_link else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise RunFolderError(f"{path}: {_explain_failed_open(error)}") from None
    status = os.fstat(descriptor)
    reason = _find_reason_to_refuse(status, max_bytes)
    if reason:
        os.close(descriptor)
        raise RunFolderError(f"{path}: {reason}")
    return os.fdopen(descriptor, "rb")


def _explain_failed_open(error: OSError) -> str:
    """Return why the operating system or a no-follow flag prevented an untrusted file from being opened."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return "no such file; is this a run folder?"
    if error.errno == errno.ELOOP:
        return "is a link, which is not followed"
    if error.errno == errno.ENXIO:
        return "is not a regular file"
    return f"cannot be read ({error.strerror})"


def _find_reason_to_refuse(status: os.stat_result, max_bytes: int) -> str:
    """Return why an opened, untrusted file of this status must not be read, or an empty string."""
    if not stat.S_ISREG(status.st_mode):
        return "is not a regular file"
    if status.st_size > max_bytes:
        return f"has {status.st_size:,} bytes, and at most {max_bytes:,} are read"
    if status.st_size > MAX_FILE_BYTES and status.st_size > MAX_SPARSE_RATIO * 512 * max(status.st_blocks, 1):
        return f"is a sparse file: of its {status.st_size:,} bytes, {512 * status.st_blocks:,} are stored"
    return ""


def read_file(path: Path, max_bytes: int = MAX_FILE_BYTES, *, follow_link: bool = False) -> bytes:
    """Return the content of a regular file; see `open_file`."""
    with open_file(path, max_bytes, follow_link=follow_link) as file:
        return file.read(os.fstat(file.fileno()).st_size)


def read_tail(path: Path, num_bytes: int) -> bytes:
    """Return the last bytes of a regular file of any size."""
    with open_file(path, MAX_WEIGHTS_BYTES) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - num_bytes))
        return file.read(num_bytes)


def read_safetensors(path: Path) -> dict[str, np.ndarray[Any, np.dtype[Any]]]:
    """Return the arrays of an untrusted safetensors file by name; raise RunFolderError for invalid files."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        return load(read_file(path, MAX_ARRAY_BYTES))
    except (SafetensorError, ValueError, TypeError, KeyError, OverflowError) as error:  # dtypes unknown to numpy
        raise RunFolderError(f"{path} is corrupted: {error}") from None


def check_folder(folder: Path) -> None:
    """Raise RunFolderError if an untrusted folder has links, pipes, devices, deep nesting or too many entries.

    The path of the folder itself may be a link, because the user names it.
    """
    for number, (entry, depth) in enumerate(_walk_folder(folder, 1), start=1):
        if entry.is_symlink():
            raise RunFolderError(f"{entry.path}: is a link, which is not followed; replace it by the file itself")
        if not (entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False)):
            raise RunFolderError(f"{entry.path}: is not a regular file")
        if depth > MAX_FOLDER_DEPTH:
            raise RunFolderError(f"{entry.path}: is more than {MAX_FOLDER_DEPTH} folders deep in {folder}")
        if number > MAX_FOLDER_ENTRIES:
            raise RunFolderError(f"{folder}: has more than {MAX_FOLDER_ENTRIES:,} files and folders")


def find_hard_link(folder: Path) -> str:
    """Name a file of an untrusted folder that can be changed later through another name; "" if there is none."""
    for entry, _ in _walk_folder(folder, 1):
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            return f"{entry.path}: has {status.st_nlink} names (hard links); replace it by a copy"
    return ""


def _walk_folder(folder: Path, depth: int) -> Iterator[tuple[os.DirEntry[str], int]]:
    """Yield the entries of an untrusted folder and of its subfolders with their depth, without following links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if depth == 1 and entry.name in UNREAD_FOLDERS:
                continue
            yield entry, depth
            if entry.is_dir(follow_symlinks=False):
                yield from _walk_folder(Path(entry.path), depth + 1)


def create_file(path: Path) -> BufferedWriter:
    """Create a file for writing in an untrusted folder. An existing entry is replaced; a link is not followed."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileExistsError:
        path.unlink()
        descriptor = os.open(path, flags, 0o666)
    return os.fdopen(descriptor, "wb")


def open_lock_file(path: Path) -> BufferedRandom:
    """Open or create a file for locking without changing its content; raise RunFolderError for a link."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise RunFolderError(f"{path}: {_explain_failed_open(error)}; remove it") from None
        raise
    return os.fdopen(descriptor, "r+b")


def append_to_file(path: Path) -> BufferedWriter:
    """Open a regular file for appending, or create it; raise RunFolderError for a link."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise RunFolderError(f"{path} is a link or a pipe; refusing to write to it") from None
        raise
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        problem = "has another name (hard link)" if stat.S_ISREG(status.st_mode) else "is not a regular file"
        raise RunFolderError(f"{path} {problem}; refusing to write to it")
    return os.fdopen(descriptor, "ab")


def create_folder(folder: Path) -> None:
    """Create a folder if it does not exist; raise RunFolderError if its last component is a link."""
    if folder.is_symlink():
        raise RunFolderError(f"{folder} is a link; refusing to write to it; remove it")
    folder.mkdir(parents=True, exist_ok=True)
