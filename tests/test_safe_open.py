"""Files of run folders: which files are opened or rejected, and how files are created and appended to."""

import os
import socket
import stat
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from headtohead import safe_open
from headtohead.errors import RunFolderError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


# ---- opening


def test_regular_files_are_read(file):
    assert safe_open.read_file(file) == b"content"
    with safe_open.open_file(file) as loaded:
        assert not os.get_inheritable(loaded.fileno())
    assert safe_open.read_tail(file, 4) == b"tent"
    assert safe_open.read_tail(file, 100) == b"content"


def test_a_file_that_is_missing_is_reported(tmp_path, file):
    for path in (tmp_path / "missing", file / "below"):
        with pytest.raises(RunFolderError, match=rf"^{path}: no such file; is this a run folder\?$"):
            safe_open.open_file(path)


def test_links_are_followed_only_if_the_user_names_them(tmp_path, file):
    link = tmp_path / "link"
    link.symlink_to(file)
    with pytest.raises(RunFolderError, match=r"link: is a link, which is not followed$"):
        safe_open.open_file(link)
    with pytest.raises(RunFolderError, match=r"link: is a link, which is not followed$"):
        safe_open.read_file(link)
    with pytest.raises(RunFolderError, match=r"link: is a link, which is not followed$"):
        safe_open.read_tail(link, 3)
    assert safe_open.read_file(link, follow_link=True) == b"content"


def test_pipes_sockets_and_folders_are_rejected(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for name in ("pipe", "folder", "socket"):
            with pytest.raises(RunFolderError, match=rf"^{name}: is not a regular file$"):
                safe_open.open_file(Path(name))


def test_other_errors_are_passed_on_as_sentences(tmp_path):
    path = tmp_path / ("x" * 300)
    with pytest.raises(RunFolderError, match=r"cannot be read \(File name too long\)$"):
        safe_open.open_file(path)


def test_sizes_are_checked_before_reading(file):
    assert safe_open.read_file(file, 7) == b"content"
    with pytest.raises(RunFolderError, match=r"file: has 7 bytes, and at most 6 are read$"):
        safe_open.read_file(file, 6)
    os.truncate(file, safe_open.MAX_FILE_BYTES + 1)
    with pytest.raises(RunFolderError, match="has 67,108,865 bytes, and at most 67,108,864 are read"):
        safe_open.read_file(file)


def test_no_descriptor_stays_open_after_a_refusal(file):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RunFolderError, match="at most 1"):
        safe_open.open_file(file, 1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_sparse_files_above_the_limit_of_small_files_are_rejected(file):
    os.truncate(file, safe_open.MAX_FILE_BYTES)
    safe_open.open_file(file, safe_open.MAX_WEIGHTS_BYTES).close()
    os.truncate(file, safe_open.MAX_FILE_BYTES + 1)
    with pytest.raises(RunFolderError, match=r"is a sparse file: of its 67,108,865 bytes, [\d,]+ are stored$"):
        safe_open.open_file(file, safe_open.MAX_WEIGHTS_BYTES)


@pytest.mark.parametrize(
    ("size", "blocks", "is_sparse"),
    [(safe_open.MAX_FILE_BYTES + 512, 1_400, False), (safe_open.MAX_FILE_BYTES + 512, 1_300, True), (1 << 30, 0, True)],
)
def test_sparse_means_a_hundred_times_the_space_on_disk(size, blocks, is_sparse):
    class Status:
        st_mode, st_size, st_blocks = stat.S_IFREG, size, blocks

    problem = safe_open._find_reason_to_refuse(Status, 1 << 40)
    assert bool(problem) == is_sparse
    if is_sparse:
        assert problem == f"is a sparse file: of its {size:,} bytes, {512 * blocks:,} are stored"


def test_arrays_are_read_or_rejected(tmp_path, monkeypatch):
    path = tmp_path / "arrays"
    path.write_bytes(save({"a": np.arange(3)}))
    assert safe_open.read_safetensors(path)["a"].tolist() == [0, 1, 2]
    monkeypatch.setattr(safe_open, "MAX_ARRAY_BYTES", 8)
    with pytest.raises(RunFolderError, match="at most 8 are read"):
        safe_open.read_safetensors(path)
    monkeypatch.undo()
    path.write_bytes(b"\xff" * 20)
    with pytest.raises(RunFolderError, match=r"arrays is corrupted: "):
        safe_open.read_safetensors(path)


# ---- folders


def test_folders_are_checked(tmp_path, file):
    nested = tmp_path / "/".join("d" * 7)
    nested.mkdir(parents=True)
    (nested / "file").write_text("")
    safe_open.check_folder(tmp_path)
    (nested / "deep").mkdir()
    (nested / "deep" / "er").mkdir()
    with pytest.raises(RunFolderError, match=rf"/er: is more than 8 folders deep in {tmp_path}$"):
        safe_open.check_folder(tmp_path)


@pytest.mark.parametrize("place", ["", "sub"])
def test_links_and_pipes_in_folders_are_reported(tmp_path, file, place):
    folder = tmp_path / place
    folder.mkdir(exist_ok=True)
    (folder / "link").symlink_to(file)
    with pytest.raises(RunFolderError, match=r"link: is a link, which is not followed; replace it by the file itself$"):
        safe_open.check_folder(tmp_path)
    (folder / "link").unlink()
    os.mkfifo(folder / "pipe")
    with pytest.raises(RunFolderError, match=r"pipe: is not a regular file$"):
        safe_open.check_folder(tmp_path)


def test_the_folder_itself_may_be_a_link(tmp_path, file):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    safe_open.check_folder(tmp_path / "link")


def test_logs_of_trackers_are_not_read_at_the_top_only(tmp_path, file):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "latest").symlink_to(file)
    safe_open.check_folder(tmp_path)
    (tmp_path / "sub" / "logs").mkdir(parents=True)
    safe_open.check_folder(tmp_path)
    (tmp_path / "sub" / "logs" / "latest").symlink_to(file)
    with pytest.raises(RunFolderError, match="latest: is a link"):
        safe_open.check_folder(tmp_path)


def test_entries_are_counted(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_text("")
    monkeypatch.setattr(safe_open, "MAX_FOLDER_ENTRIES", 3)
    safe_open.check_folder(tmp_path)
    (tmp_path / "d").write_text("")
    with pytest.raises(RunFolderError, match=rf"^{tmp_path}: has more than 3 files and folders$"):
        safe_open.check_folder(tmp_path)


def test_hard_links_are_reported(tmp_path, file):
    (tmp_path / "sub").mkdir()
    assert safe_open.find_hard_link(tmp_path) == ""
    (tmp_path / "sub" / "other").hardlink_to(file)
    assert "has 2 names (hard links); replace it by a copy" in safe_open.find_hard_link(tmp_path)
    assert safe_open.find_hard_link(tmp_path / "sub").startswith(f"{tmp_path / 'sub' / 'other'}: has 2")


# ---- writing


def test_created_files_replace_links(tmp_path, file):
    link = tmp_path / "link"
    link.symlink_to(file)
    with safe_open.create_file(link) as created:
        created.write(b"new")
        assert not os.get_inheritable(created.fileno())
    assert not link.is_symlink()
    assert link.read_bytes() == b"new"
    assert file.read_bytes() == b"content"
    with safe_open.create_file(tmp_path / "fresh") as created:
        created.write(b"fresh")
    assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o666 & ~get_umask()
    assert stat.S_IMODE(link.stat().st_mode) == 0o666 & ~get_umask()


def get_umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_lock_files_are_neither_cut_nor_followed(tmp_path, file):
    with safe_open.open_lock_file(file) as loaded:
        assert loaded.read() == b"content"
        assert not os.get_inheritable(loaded.fileno())
    with safe_open.open_lock_file(tmp_path / "lock") as loaded:
        loaded.write(b"x")
    assert stat.S_IMODE((tmp_path / "lock").stat().st_mode) == 0o666 & ~get_umask()
    (tmp_path / "link").symlink_to(file)
    with pytest.raises(RunFolderError, match=r"link: is a link, which is not followed; remove it$"):
        safe_open.open_lock_file(tmp_path / "link")
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        safe_open.open_lock_file(tmp_path)


def test_lines_are_appended_to_regular_files_only(tmp_path, file):
    with safe_open.append_to_file(file) as loaded:
        loaded.write(b"!")
        assert not os.get_inheritable(loaded.fileno())
    assert file.read_bytes() == b"content!"
    with safe_open.append_to_file(tmp_path / "new") as loaded:
        loaded.write(b"x")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o666 & ~get_umask()
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        message = rf"^{tmp_path / name} is a link or a pipe; refusing to write to it$"
        with pytest.raises(RunFolderError, match=message):
            safe_open.append_to_file(tmp_path / name)
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(RunFolderError, match=r"/pipe is not a regular file; refusing to write to it$"):
            safe_open.append_to_file(tmp_path / "pipe")
    finally:
        os.close(reader)
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        safe_open.append_to_file(tmp_path)


def test_files_with_another_name_are_not_appended_to(tmp_path, file):
    (tmp_path / "other").hardlink_to(file)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(RunFolderError, match=rf"^{file} has another name \(hard link\); refusing to write to it$"):
        safe_open.append_to_file(file)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_folders_are_created_but_not_through_links(tmp_path):
    safe_open.create_folder(tmp_path / "a" / "b")
    safe_open.create_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(RunFolderError, match=r"link is a link; refusing to write to it; remove it$"):
        safe_open.create_folder(tmp_path / "link")
