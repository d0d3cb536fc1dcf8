"""Small corpora on disk, and the real corpora if they are available."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Return a function write("name", "content") that creates a file in the test's folder and returns its path."""

    def write_file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write_file


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """Return a folder of real data; skip the test if it is missing."""

    def find_folder(name: str) -> Path:
        folder = SHARED / name
        if not folder.exists():
            pytest.skip(f"the data set {name} is not at ../shared/data")
        return folder

    return find_folder
