"""Save a figure as a page (.html) or a picture (.svg, .pdf, .png), by file extension. Does not import altair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headtohead.atomic_io import translate_disk_full_error, write_bytes
from headtohead.errors import RequestError, format_suggestion

PICTURE_SUFFIXES = (".html", ".svg", ".pdf", ".png")


def check_picture_path(path: Path) -> None:
    """Raise RequestError if the extension of a picture file is not supported or the path is a folder."""
    suffix = path.suffix.lower()
    if suffix not in PICTURE_SUFFIXES:
        hint = format_suggestion(suffix, PICTURE_SUFFIXES)
        raise RequestError(
            f"{path}: unsupported file extension {suffix!r}{hint}; allowed: {', '.join(PICTURE_SUFFIXES)}"
        )
    if path.is_dir():
        raise RequestError(f"{path}: is a folder; expected a file name")


def save_picture(path: Path, render: Callable[[str], str | bytes]) -> None:
    """Write what `render` returns for the format "html", "svg", "pdf" or "png"; create missing folders."""
    check_picture_path(path)
    content = render(path.suffix.lower().removeprefix("."))
    with translate_disk_full_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, content.encode() if isinstance(content, str) else content)
