"""Atomic writes, checksums, strict JSON, JSON lines and locks."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
from pathlib import Path

import pytest

from headtohead import atomic_io, safe_open
from headtohead.errors import DiskFullError, RunFolderError

# ---- writing


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
    atomic_io.write_json(tmp_path / "file", {}, fsync=fsync)
    assert len(events) == 1 + fsync
    events.clear()
    atomic_io.append_jsonl(tmp_path / "lines", {"a": 1}, fsync=fsync)
    assert events == ([("fsync", 9)] if fsync else [])


def test_writing_does_not_wait_for_the_disk_by_default(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: pytest.fail("waited"))
    atomic_io.write_bytes(tmp_path / "a", b"")
    atomic_io.write_text(tmp_path / "b", "ä")
    atomic_io.write_json(tmp_path / "c", [1])
    atomic_io.append_jsonl(tmp_path / "d", {})
    assert (tmp_path / "b").read_bytes() == "ä".encode()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(tmp_path, number):
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
        lambda path: atomic_io.append_jsonl(path, {}),
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


@pytest.mark.parametrize("lock", [atomic_io.lock_cache_folder, atomic_io.lock_run_folder])
def test_locks_name_a_full_disk(tmp_path, monkeypatch, lock):
    def refuse(self: Path, **options: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskFullError, match=r"to write .*/folder; free"), lock(tmp_path / "folder"):
        pass


# ---- checksums


def test_json_is_indented_and_ends_with_a_line_break(tmp_path):
    atomic_io.write_json(tmp_path / "a.json", {"b": [1]})
    assert (tmp_path / "a.json").read_text() == '{\n "b": [\n  1\n ]\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic_io.write_json(tmp_path / "a.json", {"b": float("nan")})


def test_the_checksum_is_the_last_entry_and_covers_all_others(tmp_path):
    atomic_io.write_json(tmp_path / "a.json", {"z": 1, "a": 2}, with_checksum=True)
    content = json.loads((tmp_path / "a.json").read_text())
    expected = hashlib.sha256(b'{"a": 2, "z": 1}').hexdigest()
    assert list(content) == ["z", "a", "checksum"]
    assert content["checksum"] == expected == atomic_io.compute_checksum(content)
    assert atomic_io.compute_checksum(content, "x") == hashlib.sha256(b'x{"a": 2, "z": 1}').hexdigest()
    atomic_io.verify_checksum(tmp_path / "a.json", "remedy")
    content["a"] = 3
    atomic_io.write_json(tmp_path / "a.json", content)
    with pytest.raises(RunFolderError, match=r"a\.json is corrupted: checksum mismatch; remedy$"):
        atomic_io.verify_checksum(tmp_path / "a.json", "remedy")


def test_a_checksum_under_a_damaged_key_is_noticed():
    value = {"a": 1}
    checksum = atomic_io.compute_checksum(value)
    assert atomic_io.has_valid_checksum({**value, "checksum": checksum})
    assert not atomic_io.has_valid_checksum({**value, "checksum": ""})
    assert not atomic_io.has_valid_checksum({**value, "checksun": checksum})
    assert atomic_io.has_valid_checksum(value)
    assert atomic_io.has_valid_checksum({})
    assert atomic_io.has_valid_checksum({**value, "digest": "0" * 64})
    assert atomic_io.has_valid_checksum({"digest": checksum, **value})
    assert atomic_io.has_valid_checksum({**value, "number": 64})


def test_the_hash_of_a_file_is_that_of_its_target(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert atomic_io.compute_sha256(tmp_path / "file") == hashlib.sha256(b"content").hexdigest()
    assert atomic_io.compute_sha256(tmp_path / "link") == hashlib.sha256(b"content").hexdigest()


def test_large_files_are_hashed(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_open, "MAX_FILE_BYTES", 10)
    (tmp_path / "file").write_bytes(b"x" * 20)
    assert atomic_io.compute_sha256(tmp_path / "file") == hashlib.sha256(b"x" * 20).hexdigest()


# ---- reading


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"{", r"Expecting property name"),
        (b'"\xff"', r"codec can't decode"),
        (b'"\\ud800"', r"surrogates not allowed"),
        (b'{"\\ud800": 1}', r"surrogates not allowed"),
        (b"NaN", r"NaN is not a number"),
        (b"[-Infinity]", r"-Infinity is not a number"),
        (b"1e999", r"1e999 is not a number"),
        (b"9223372036854775809", r"9223372036854775809 is too large a number"),
        (b"[-9223372036854775809]", r"is too large a number"),
        (b"1" * 5000, r"integer string conversion"),
        (b"[" * 64 + b"1" + b"]" * 64, r"values are nested too deep"),
        (b"[" * 100_000, r"values are nested too deep"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', r"the key 'c' occurs twice"),
    ],
)
def test_json_that_others_wrote_is_checked(raw, problem):
    with pytest.raises(RunFolderError, match=rf"^source is corrupted: .*{problem}"):
        atomic_io.parse_json(raw, "source")


def test_valid_json_is_read():
    nested = b"[" * 63 + b"1" + b"]" * 63
    assert json.dumps(atomic_io.parse_json(nested, "source")).encode() == nested
    many_keys = {str(number): number for number in range(1000)}
    assert atomic_io.parse_json(json.dumps(many_keys).encode(), "source") == many_keys
    value = {"a": [1.5, -(2**63), 2**63, None, True, "ä"], "b": {}}
    assert atomic_io.parse_json(json.dumps(value).encode(), "source") == value
    assert atomic_io.parse_json(b"[Infinity, 1e999]", "source", require_finite=False) == [float("inf")] * 2
    with pytest.raises(RunFolderError, match="occurs twice"):
        atomic_io.parse_json(b'{"a": NaN, "a": 1}', "source", require_finite=False)


def test_long_numbers_are_shortened_in_messages():
    with pytest.raises(RunFolderError, match="is too large") as error:
        atomic_io.parse_json(b"9" * 4000, "source")
    assert len(str(error.value)) < 300


def test_an_object_is_expected(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[1]")
    assert atomic_io.read_json(path) == [1]
    with pytest.raises(RunFolderError, match=r"a\.json is corrupted: expected a JSON object, got \[1\]$"):
        atomic_io.read_json_object(path)
    path.write_text(json.dumps(["x" * 1000]))
    with pytest.raises(RunFolderError, match="expected a JSON object") as error:
        atomic_io.read_json_object(path)
    assert len(str(error.value)) < 300 + len(str(path))


# ---- lines


def test_complete_lines_are_read_and_the_others_removed(tmp_path):
    path = tmp_path / "lines"
    assert atomic_io.read_jsonl(path) == []
    assert atomic_io.repair_jsonl(path) == []
    assert not path.exists()
    for number in range(3):
        atomic_io.append_jsonl(path, {"n": number})
    whole = path.read_bytes()
    assert whole == b'{"n": 0}\n{"n": 1}\n{"n": 2}\n'
    path.write_bytes(whole + b'{"n": 3}')
    rows = [{"n": 0}, {"n": 1}, {"n": 2}]
    assert atomic_io.read_jsonl(path) == rows
    assert path.read_bytes() == whole + b'{"n": 3}', "reading changes nothing"
    assert atomic_io.repair_jsonl(path) == rows
    assert path.read_bytes() == whole
    assert atomic_io.repair_jsonl(path) == rows
    path.write_bytes(b'{"n": 0}\n\n{"n": NaN}\n')
    assert len(atomic_io.read_jsonl(path)) == 2, "empty lines are skipped, and logs may contain NaN"


def test_the_line_that_is_damaged_is_named(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b"{}\n[1]\n")
    with pytest.raises(RunFolderError, match=r"lines, line 2 is corrupted: expected a JSON object$"):
        atomic_io.read_jsonl(path)
    path.write_bytes(b"{}\n\n{\n")
    with pytest.raises(RunFolderError, match=r"lines, line 3 is corrupted: Expecting"):
        atomic_io.read_jsonl(path)


def test_the_size_of_lines_is_limited_unless_they_are_our_own(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_open, "MAX_FILE_BYTES", 10)
    path = tmp_path / "lines"
    path.write_bytes(b'{"number": 1}\n')
    with pytest.raises(RunFolderError, match="at most 10 are read"):
        atomic_io.read_jsonl(path)
    with pytest.raises(RunFolderError, match="at most 10 are read"):
        atomic_io.repair_jsonl(path)
    assert atomic_io.read_jsonl(path, is_own_cache=True) == [{"number": 1}]
    assert atomic_io.repair_jsonl(path, is_own_cache=True) == [{"number": 1}]


def test_the_values_of_all_lines_are_limited_unless_they_are_our_own(tmp_path, monkeypatch):
    monkeypatch.setattr(safe_open, "MAX_JSON_VALUES", 3)
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n' * 4)
    with pytest.raises(RunFolderError, match="lines has more than 3 values"):
        atomic_io.read_jsonl(path)
    assert len(atomic_io.read_jsonl(path, is_own_cache=True)) == 4


def test_files_are_truncated_but_not_extended(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    atomic_io.truncate_file(path, 9)
    assert path.read_bytes() == b"12345"
    atomic_io.truncate_file(path, 2)
    assert path.read_bytes() == b"12"


# ---- folders and locks


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert atomic_io.get_cache_folder("tokens") == tmp_path / "headtohead" / "tokens"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert atomic_io.get_cache_folder("tokens") == Path("/home/somebody/.cache/headtohead/tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert atomic_io.get_cache_folder("tokens") == Path("/home/somebody/.cache/headtohead/tokens")


def is_locked(path: Path) -> bool:
    """Try to take the lock through another descriptor."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_locks_are_held_inside_and_released_after(tmp_path):
    folder = tmp_path / "new" / "folder"
    with atomic_io.lock_cache_folder(folder):
        assert is_locked(folder / ".lock")
    assert not is_locked(folder / ".lock")
    with contextlib.suppress(KeyError), atomic_io.lock_run_folder(tmp_path / "other" / "run"):
        assert is_locked(tmp_path / "other" / "run")
        raise KeyError
    assert not is_locked(tmp_path / "other" / "run")
    with atomic_io.lock_cache_folder(folder), atomic_io.lock_run_folder(folder):
        pass  # both accept folders that exist


def test_who_waits_for_a_lock_says_so(tmp_path, monkeypatch, capsys):
    calls = []

    def flock(file: object, operation: int) -> None:
        calls.append(operation)
        if operation & fcntl.LOCK_NB:
            raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "odd\x1b"
    with atomic_io.lock_cache_folder(folder):
        pass
    assert calls == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    output = capsys.readouterr().err
    assert output.startswith("waiting for another process, which holds the lock ")
    assert output.endswith("/.lock\n")
    assert "\x1b" not in output


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    message = r"its file system has no file locks \(No locks available\); set XDG_CACHE_HOME to a local folder"
    with pytest.raises(OSError, match=message) as error, atomic_io.lock_cache_folder(tmp_path):
        pass
    assert (error.value.errno, error.value.filename) == (errno.ENOLCK, str(tmp_path))
    with atomic_io.lock_run_folder(tmp_path):
        pass  # runs go on without a lock
