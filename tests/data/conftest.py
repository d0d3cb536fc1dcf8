"""Small corpora on disk, and the real ones where they are at hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """write("name", "text") makes a file in the test's folder and gives its path."""

    def made(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return made


@pytest.fixture
def shared() -> Callable[[str], Path]:
    """A folder of real data, or a skip that says what is missing."""

    def found(name: str) -> Path:
        folder = SHARED / name
        if not folder.exists():
            pytest.skip(f"the data set {name} is not at ../shared/data")
        return folder

    return found
