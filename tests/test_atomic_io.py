"""Atomic writes and the hash of a file."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from headtohead import atomic_io, json_files, safe_open
from headtohead.errors import DiskFullError


def test_files_are_replaced_by_rename_and_nothing_is_left(tmp_path):
    path = tmp_path / "file"
    atomic_io.write_bytes(path, b"old")
    with path.open("rb") as reader:
        inode = os.fstat(reader.fileno()).st_ino
        atomic_io.write_bytes(path, b"new")
        assert reader.read() == b"old", "a reader keeps the old content"
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != inode
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(TypeError, match="bytes-like"):
        atomic_io.write_bytes(tmp_path / "file", "text")
    assert (tmp_path / "file").read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_temporary_file_is_hidden_and_beside_the_target(tmp_path, monkeypatch):
    created = []
    original = safe_open.create_file
    monkeypatch.setattr(safe_open, "create_file", lambda path: created.append(path) or original(path))
    atomic_io.write_bytes(tmp_path / "file", b"")
    assert created == [tmp_path / f".file.{os.getpid()}.part"]


@pytest.mark.parametrize("fsync", [False, True])
def test_content_reaches_the_disk_before_the_rename_if_asked(tmp_path, monkeypatch, fsync):
    events = []
    original_fsync, original_replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        events.append(("fsync", os.fstat(descriptor).st_size))
        original_fsync(descriptor)

    def record_replace(path: Path, target: Path) -> Path:
        events.append(("rename", 0))
        return original_replace(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    atomic_io.write_bytes(tmp_path / "file", b"content", fsync=fsync)
    assert events == ([("fsync", 7)] if fsync else []) + [("rename", 0)]
    events.clear()
    json_files.write_json(tmp_path / "file", {}, fsync=fsync)
    assert len(events) == 1 + fsync
    events.clear()
    json_files.append_jsonl(tmp_path / "lines", {"a": 1}, fsync=fsync)
    assert events == ([("fsync", 9)] if fsync else [])


def test_writing_does_not_wait_for_the_disk_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("waited"))
    atomic_io.write_bytes(tmp_path / "a", b"")
    atomic_io.write_text(tmp_path / "b", "ä")
    json_files.write_json(tmp_path / "c", [1])
    json_files.append_jsonl(tmp_path / "d", {})
    assert (tmp_path / "b").read_bytes() == "ä".encode()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported(tmp_path, number):
    with (
        pytest.raises(DiskFullError, match=r"^no disk space left to write .*/x; free some space and continue"),
        atomic_io.translate_disk_full_error(tmp_path / "x"),
    ):
        raise OSError(number, "full")


def test_other_errors_are_not_translated(tmp_path):
    with pytest.raises(PermissionError, match="no"), atomic_io.translate_disk_full_error(tmp_path):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.parametrize(
    "write",
    [
        lambda path: atomic_io.write_bytes(path, b"x"),
        lambda path: json_files.append_jsonl(path, {}),
        lambda path: atomic_io.truncate_file(path, 0),
    ],
)
def test_every_writer_names_a_full_disk(tmp_path, monkeypatch, write):
    def refuse(path: Path) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(safe_open, "create_file", refuse)
    monkeypatch.setattr(safe_open, "append_to_file", refuse)
    with pytest.raises(DiskFullError, match=r"to write .*/target; free"):
        write(tmp_path / "target")


def test_options_that_change_what_is_written_or_accepted_are_reported(tmp_path):
    for function, *arguments in (
        (atomic_io.write_bytes, tmp_path / "a", b"", True),
        (json_files.write_json, tmp_path / "a", {}, True),
        (json_files.append_jsonl, tmp_path / "a", {}, True),
        (json_files.parse_json, b"{}", "source", True),
        (json_files.read_jsonl, tmp_path / "a", True),
        (json_files.repair_jsonl, tmp_path / "a", True),
    ):
        with pytest.raises(TypeError, match="positional argument"):
            function(*arguments)


def test_files_are_truncated_but_not_extended(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    atomic_io.truncate_file(path, 9)
    assert path.read_bytes() == b"12345"
    atomic_io.truncate_file(path, 2)
    assert path.read_bytes() == b"12"


def test_the_hash_of_a_file_is_that_of_its_target(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert atomic_io.compute_sha256(tmp_path / "file") == hashlib.sha256(b"content").hexdigest()
    assert atomic_io.compute_sha256(tmp_path / "link") == hashlib.sha256(b"content").hexdigest()


def test_large_files_are_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_open, "MAX_FILE_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * 20)
    assert atomic_io.compute_sha256(tmp_path / "file") == hashlib.sha256(b"x" * 20).hexdigest()
