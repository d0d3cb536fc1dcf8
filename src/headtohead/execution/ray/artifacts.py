"""Transfer files and run folders between machines without a shared disk, as content-addressed tar archives."""

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

from headtohead import safe_open
from headtohead.atomic_io import compute_sha256, translate_disk_full_error
from headtohead.cache_folders import lock_cache_folder
from headtohead.errors import RunFolderError
from headtohead.json_files import CHECKSUM_KEY, read_json, write_json

STAGING_FOLDER = ".arriving"
MAX_PACK_ATTEMPTS = 5


@dataclass(frozen=True)
class Artifact:
    """A file or folder to transfer.

    `archive_ref` is a reference to its archive, which the `fetch` argument of `unpack_cached` resolves to bytes.
    """

    digest: str
    name: str
    archive_ref: Any


def compute_artifact_digest(path: Path) -> str:
    """Return the digest of an artifact: its file names and contents, not its location or modification times."""
    files = (
        sorted(child for child in path.rglob("*") if child.is_file() and _is_included(child))
        if path.is_dir()
        else [path]
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.relative_to(path.parent)}\0{compute_sha256(file)}\n".encode())
    return digest.hexdigest()[:24]


def pack_file_or_folder(path: Path) -> bytes:
    """Pack a file or folder into a tar archive, under its own name."""
    return _build_archive(lambda tar: tar.add(path, arcname=path.name, filter=_drop_excluded_entry))


def pack_run_folder(folder: Path) -> bytes:
    """Pack a run folder whose trial may still be running, to transfer it to another machine.

    Packing is retried if files disappear in the meantime. Checkpoints are created by renaming, so an existing one is
    complete.
    """
    for _ in range(MAX_PACK_ATTEMPTS):
        checkpoints_before = list_checkpoints(folder)
        try:
            archive = _build_archive(lambda tar: _add_run_folder(tar, folder))
        except FileNotFoundError:
            continue
        # A checkpoint that was replaced during packing may be incomplete in the archive.
        if list_checkpoints(folder) == checkpoints_before:
            return archive
    raise RunFolderError(f"{folder} changed repeatedly while it was packed")


def unpack_cached(artifact: Artifact, cache_root: Path, fetch: Callable[[Any], bytes]) -> Path:
    """Return the local path of an artifact, fetching it unless the cache already holds its content."""
    folder = cache_root / artifact.digest
    local_path = folder / artifact.name
    if not _has_expected_digest(local_path, artifact.digest):
        with lock_cache_folder(folder):
            if not _has_expected_digest(local_path, artifact.digest):
                shutil.rmtree(local_path) if local_path.is_dir() else local_path.unlink(missing_ok=True)
                staging_folder = folder / STAGING_FOLDER
                shutil.rmtree(staging_folder, ignore_errors=True)
                _extract_archive(fetch(artifact.archive_ref), staging_folder)
                (staging_folder / artifact.name).rename(local_path)
                staging_folder.rmdir()
    return local_path


_verified_paths: set[Path] = set()
"""paths whose digest this process has verified"""


def _has_expected_digest(path: Path, digest: str) -> bool:
    """Return whether an unpacked artifact exists and has this digest, which is computed once per process."""
    if path.exists() and (path in _verified_paths or compute_artifact_digest(path) == digest):
        _verified_paths.add(path)
        return True
    return False


def unpack_run_folder(archive: bytes, folder: Path) -> None:
    """Replace a run folder's content with that of an archive.

    Files are moved first, then checkpoints, and result.json last, so the run can be resumed if this is interrupted.
    """
    staging_folder = folder / STAGING_FOLDER
    shutil.rmtree(staging_folder, ignore_errors=True)
    _extract_archive(archive, staging_folder)
    received_paths = sorted(
        staging_folder.iterdir(), key=lambda path: (path.name == "result.json", path.is_dir(), path.name)
    )
    for path in received_paths:
        target = folder / path.name
        if path.is_dir() and target.is_dir():
            if path.name.startswith("checkpoint-"):
                continue  # a checkpoint never changes
            shutil.rmtree(target)
        path.replace(target)
    received_names = {path.name for path in received_paths}
    for stale_path in folder.glob("checkpoint-*"):
        if stale_path.name not in received_names:
            shutil.rmtree(stale_path, ignore_errors=True)
    for stale_path in folder.glob("best-*.safetensors"):
        if stale_path.name not in received_names:
            stale_path.unlink(missing_ok=True)
    shutil.rmtree(staging_folder, ignore_errors=True)


def list_checkpoints(folder: Path) -> list[str]:
    """Return the checkpoint names in a run folder."""
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def restore_original_paths(folder: Path, original_paths: dict[str, str]) -> None:
    """Replace the paths of another machine in the JSON files of a run folder by those on the user's machine."""
    new_checksums = {}
    for path in sorted(folder.glob("*.json")):
        original_text = restored_text = safe_open.read_file(path).decode()
        for local_path, original_path in original_paths.items():
            restored_text = restored_text.replace(local_path, original_path)
        if restored_text != original_text:
            _rewrite_json(path, restored_text)
            new_checksums[path.name] = compute_sha256(path)
    result_path = folder / "result.json"
    if new_checksums and result_path.is_file():
        content = read_json(result_path)
        content["sha256"] |= {name: checksum for name, checksum in new_checksums.items() if name in content["sha256"]}
        _rewrite_json(result_path, json.dumps(content))


def _rewrite_json(path: Path, text: str) -> None:
    """Write new content to a JSON file of an unpacked run folder, updating its checksum if it contains one."""
    content = json.loads(text)
    write_json(
        path,
        {key: value for key, value in content.items() if key != CHECKSUM_KEY},
        with_checksum=CHECKSUM_KEY in content,
    )


def _build_archive(add_entries: Callable[[tarfile.TarFile], object]) -> bytes:
    """Return an uncompressed tar archive to transfer, with the entries that `add_entries` adds."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        add_entries(tar)
    return buffer.getvalue()


def _extract_archive(archive: bytes, folder: Path) -> None:
    """Extract an archive into a new folder."""
    with translate_disk_full_error(folder), tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        folder.mkdir(parents=True)
        tar.extractall(folder, filter="data")  # rejects devices, and paths and links that leave the folder


def _add_run_folder(tar: tarfile.TarFile, folder: Path) -> None:
    """Add the files and folders of a run folder, except hidden ones."""
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            tar.add(path, arcname=path.name)


def _drop_excluded_entry(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return entry if _is_included(Path(entry.name)) else None


def _is_included(path: Path) -> bool:
    """Return whether a file is sent; lock files and bytecode are not."""
    return path.name != ".lock" and path.suffix != ".pyc" and "__pycache__" not in path.parts
