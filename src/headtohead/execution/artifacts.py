"""What travels between machines that share no disk: files and folders as tar archives, known by their content."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.atomic_io import SEAL, at_work, disk_full_in_words, read_json, sha256, write_json
from headtohead.errors import RunFolderError

ARRIVING = ".arriving"
TRIES = 5


@dataclass(frozen=True)
class Parcel:
    """A file or a folder on its way. `box` gives its archive, wherever that is kept."""

    digest: str
    name: str
    box: Any


def digest_of(path: Path) -> str:
    """Of names and content; not of where it lies or when it was written."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and _travels(p)) if path.is_dir() else [path]
    made = hashlib.sha256()
    for file in files:
        made.update(f"{file.relative_to(path.parent)}\0{sha256(file)}\n".encode())
    return made.hexdigest()[:24]


def pack(path: Path) -> bytes:
    """A file or a folder as an archive with its name in it."""
    return _archive(lambda tar: tar.add(path, arcname=path.name, filter=_without_caches))


def pack_run(folder: Path) -> bytes:
    """A run folder as it is, while its trial may be at work in it: what vanishes meanwhile is tried again. A checkpoint
    appears by rename, so one that is there is whole."""
    for _ in range(TRIES):
        before = checkpoints(folder)
        try:
            archive = _archive(lambda tar: _add_run(tar, folder))
        except FileNotFoundError:
            continue
        # One that is removed meanwhile, because the next is there, may be in the archive in part, and alone.
        if checkpoints(folder) == before:
            return archive
    raise RunFolderError(f"{folder}: changes too fast to be packed")


def unpack_once(parcel: Parcel, root: Path, fetch: Callable[[Any], bytes]) -> Path:
    """Where a parcel lies on this machine; it is fetched when nothing with its content is there."""
    folder = root / parcel.digest
    place = folder / parcel.name
    if not _is_sound(place, parcel.digest):
        with at_work(folder):
            if not _is_sound(place, parcel.digest):
                shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
                arriving = folder / ARRIVING
                shutil.rmtree(arriving, ignore_errors=True)
                _extract(fetch(parcel.box), arriving)
                (arriving / parcel.name).rename(place)
                arriving.rmdir()
    return place


_sound: set[Path] = set()
"""what this process has held against its digest: once is enough"""


def _is_sound(place: Path, digest: str) -> bool:
    """Is it there, and what it was when it was sent?"""
    if place.exists() and (place in _sound or digest_of(place) == digest):
        _sound.add(place)
        return True
    return False


def unpack_run(archive: bytes, folder: Path) -> None:
    """Put a run folder that came back in place of what is here. Files first, then checkpoints, the result last: however
    this is cut off, what is here can be gone on with."""
    arriving = folder / ARRIVING
    shutil.rmtree(arriving, ignore_errors=True)
    _extract(archive, arriving)
    came = sorted(arriving.iterdir(), key=lambda path: (path.name == "result.json", path.is_dir(), path.name))
    for path in came:
        there = folder / path.name
        if path.is_dir() and there.is_dir():
            if path.name.startswith("checkpoint-"):
                continue  # a checkpoint never changes
            shutil.rmtree(there)
        path.replace(there)
    names = {path.name for path in came}
    for old in folder.glob("checkpoint-*"):
        if old.name not in names:
            shutil.rmtree(old, ignore_errors=True)
    for old in folder.glob("best-*.safetensors"):
        if old.name not in names:
            old.unlink(missing_ok=True)
    shutil.rmtree(arriving, ignore_errors=True)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def homeward(folder: Path, places: dict[str, str]) -> None:
    """Say in a run's files where things lie at home, and not where they lay on this machine; checksums follow."""
    changed = {}
    for path in sorted(folder.glob("*.json")):
        text = said = path.read_text(encoding="utf-8")
        for here, home in places.items():
            said = said.replace(here, home)
        if said != text:
            _write_anew(path, said)
            changed[path.name] = sha256(path)
    result = folder / "result.json"
    if changed and result.is_file():
        row = read_json(result)
        row["sha256"] |= {name: value for name, value in changed.items() if name in row["sha256"]}
        _write_anew(result, json.dumps(row))


def _write_anew(path: Path, text: str) -> None:
    """The same file with other words in it, sealed if it was."""
    value = json.loads(text)
    write_json(path, {k: v for k, v in value.items() if k != SEAL}, sealed=SEAL in value)


def _archive(fill: Callable[[tarfile.TarFile], object]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        fill(tar)
    return buffer.getvalue()


def _extract(archive: bytes, folder: Path) -> None:
    with disk_full_in_words(folder), tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        folder.mkdir(parents=True)
        tar.extractall(folder, filter="data")  # nothing outside the folder, no devices, no links that leave it


def _add_run(tar: tarfile.TarFile, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            tar.add(path, arcname=path.name)


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if _travels(Path(entry.name)) else None


def _travels(path: Path) -> bool:
    return path.name != ".lock" and path.suffix != ".pyc" and "__pycache__" not in path.parts
