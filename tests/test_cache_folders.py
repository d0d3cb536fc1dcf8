"""The place of the cache, and the locks on cache folders and run folders."""

import contextlib
import errno
import fcntl
import os
from pathlib import Path

import pytest

from headtohead import cache_folders
from headtohead.errors import DiskFullError
from headtohead.experiment import run_folder


@pytest.mark.parametrize("lock", [cache_folders.lock_cache_folder, run_folder.lock_run_folder])
def test_locks_name_a_full_disk(tmp_path, monkeypatch, lock):
    def refuse(self: Path, **options: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DiskFullError, match=r"to write .*/folder; free"), lock(tmp_path / "folder"):
        pass


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folders.get_cache_folder("tokens") == tmp_path / "headtohead" / "tokens"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert cache_folders.get_cache_folder("tokens") == Path("/home/somebody/.cache/headtohead/tokens")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folders.get_cache_folder("tokens") == Path("/home/somebody/.cache/headtohead/tokens")


def is_locked(path: Path) -> bool:
    """Return whether the lock is held, by trying to acquire it through another descriptor."""
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
    with cache_folders.lock_cache_folder(folder):
        assert is_locked(folder / ".lock")
    assert not is_locked(folder / ".lock")
    with contextlib.suppress(KeyError), run_folder.lock_run_folder(tmp_path / "other" / "run"):
        assert is_locked(tmp_path / "other" / "run")
        raise KeyError
    assert not is_locked(tmp_path / "other" / "run")
    with cache_folders.lock_cache_folder(folder), run_folder.lock_run_folder(folder):
        pass  # both accept folders that exist


def test_who_waits_for_a_lock_is_reported(tmp_path, monkeypatch, capsys):
    calls = []

    def flock(file: object, operation: int) -> None:
        calls.append(operation)
        if operation & fcntl.LOCK_NB:
            raise BlockingIOError

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = tmp_path / "odd\x1b"
    with cache_folders.lock_cache_folder(folder):
        pass
    assert calls == [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_EX]
    output = capsys.readouterr().err
    assert output.startswith("waiting for another process, which holds the lock ")
    assert output.endswith("/.lock\n")
    assert "\x1b" not in output


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    message = r"its file system has no file locks \(No locks available\); set XDG_CACHE_HOME to a local folder"
    with pytest.raises(OSError, match=message) as error, cache_folders.lock_cache_folder(tmp_path):
        pass
    assert (error.value.errno, error.value.filename) == (errno.ENOLCK, str(tmp_path))
    with run_folder.lock_run_folder(tmp_path):
        pass  # runs go on without a lock
