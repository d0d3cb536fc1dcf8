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

from headtohead.atomic_io import (
    CHECKSUM_KEY,
    compute_sha256,
    lock_cache_folder,
    read_json,
    translate_disk_full_error,
    write_json,
)
from headtohead.errors import RunFolderError

STAGING_FOLDER = ".arriving"
MAX_PACK_ATTEMPTS = 5


@dataclass(frozen=True)
class Artifact:
    """A file or a folder on its way. `box` gives its archive, wherever that is kept."""

    digest: str
    name: str
    archive_ref: Any


def compute_digest(path: Path) -> str:
    """Of names and content; not of where it lies or when it was written."""
    files = sorted(p for p in path.rglob("*") if p.is_file() and _is_included(p)) if path.is_dir() else [path]
    made = hashlib.sha256()
    for file in files:
        made.update(f"{file.relative_to(path.parent)}\0{compute_sha256(file)}\n".encode())
    return made.hexdigest()[:24]


def pack_path(path: Path) -> bytes:
    """A file or a folder as an archive with its name in it."""
    return _build_archive(lambda tar: tar.add(path, arcname=path.name, filter=_filter_entry))


def pack_run_folder(folder: Path) -> bytes:
    """A run folder as it is, while its trial may be at work in it: what vanishes meanwhile is tried again. A checkpoint
    appears by rename, so one that is there is whole."""
    for _ in range(MAX_PACK_ATTEMPTS):
        before = list_checkpoints(folder)
        try:
            archive = _build_archive(lambda tar: _add_run_folder(tar, folder))
        except FileNotFoundError:
            continue
        # One that is removed meanwhile, because the next is there, may be in the archive in part, and alone.
        if list_checkpoints(folder) == before:
            return archive
    raise RunFolderError(f"{folder}: changes too fast to be packed")


def unpack_cached(artifact: Artifact, cache_root: Path, fetch: Callable[[Any], bytes]) -> Path:
    """Where a parcel lies on this machine; it is fetched when nothing with its content is there."""
    folder = cache_root / artifact.digest
    place = folder / artifact.name
    if not _has_expected_digest(place, artifact.digest):
        with lock_cache_folder(folder):
            if not _has_expected_digest(place, artifact.digest):
                shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
                arriving = folder / STAGING_FOLDER
                shutil.rmtree(arriving, ignore_errors=True)
                _extract_archive(fetch(artifact.archive_ref), arriving)
                (arriving / artifact.name).rename(place)
                arriving.rmdir()
    return place


_verified_paths: set[Path] = set()
"""what this process has held against its digest: once is enough"""


def _has_expected_digest(path: Path, digest: str) -> bool:
    """Is it there, and what it was when it was sent?"""
    if path.exists() and (path in _verified_paths or compute_digest(path) == digest):
        _verified_paths.add(path)
        return True
    return False


def unpack_run_folder(archive: bytes, folder: Path) -> None:
    """Put a run folder that came back in place of what is here. Files first, then checkpoints, the result last: however
    this is cut off, what is here can be gone on with."""
    arriving = folder / STAGING_FOLDER
    shutil.rmtree(arriving, ignore_errors=True)
    _extract_archive(archive, arriving)
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


def list_checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def restore_original_paths(folder: Path, original_paths: dict[str, str]) -> None:
    """Say in a run's files where things lie at home, and not where they lay on this machine; checksums follow."""
    changed = {}
    for path in sorted(folder.glob("*.json")):
        text = said = path.read_text(encoding="utf-8")
        for here, home in original_paths.items():
            said = said.replace(here, home)
        if said != text:
            _rewrite_json(path, said)
            changed[path.name] = compute_sha256(path)
    result = folder / "result.json"
    if changed and result.is_file():
        row = read_json(result)
        row["sha256"] |= {name: value for name, value in changed.items() if name in row["sha256"]}
        _rewrite_json(result, json.dumps(row))


def _rewrite_json(path: Path, text: str) -> None:
    """The same file with other words in it, sealed if it was."""
    value = json.loads(text)
    write_json(path, {k: v for k, v in value.items() if k != CHECKSUM_KEY}, with_checksum=CHECKSUM_KEY in value)


def _build_archive(add_entries: Callable[[tarfile.TarFile], object]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        add_entries(tar)
    return buffer.getvalue()


def _extract_archive(archive: bytes, folder: Path) -> None:
    with translate_disk_full_error(folder), tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        folder.mkdir(parents=True)
        tar.extractall(folder, filter="data")  # nothing outside the folder, no devices, no links that leave it


def _add_run_folder(tar: tarfile.TarFile, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            tar.add(path, arcname=path.name)


def _filter_entry(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if _is_included(Path(entry.name)) else None


def _is_included(path: Path) -> bool:
    return path.name != ".lock" and path.suffix != ".pyc" and "__pycache__" not in path.parts
