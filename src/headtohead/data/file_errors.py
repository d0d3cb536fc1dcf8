"""How a file is refused: every fault of it at once, each with its place, and not more than a screen of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headtohead.errors import DataError, ValidationIssue, suggest

MAX_ITEMS_SHOWN = 10


def build_file_error(
    path: str | Path, faults: Sequence[ValidationIssue], *, num_errors: int | None = None
) -> DataError:
    """The error for a file with these faults; `count` where there are more of them than were put into words."""
    num_errors = len(faults) if num_errors is None else num_errors
    lines = [f"{path}: {num_errors} error{'s' if num_errors != 1 else ''}"]
    lines += ["  " + str(fault).replace("\n", "\n  ") for fault in faults[:MAX_ITEMS_SHOWN]]
    if num_errors > MAX_ITEMS_SHOWN:
        lines.append(f"  and {num_errors - MAX_ITEMS_SHOWN} more")
    return DataError("\n".join(lines))


def build_missing_path_error(path: Path) -> DataError:
    """The error for a path that is not there, with the nearest name that is."""
    folder = path.parent
    if path.exists():
        return DataError(f"{path}: is neither a plain file nor a folder")
    if not folder.is_dir():
        return DataError(f"{path}: no such file, and no such folder: {folder}")
    names = list_folder_entries(folder)
    near = suggest(path.name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    return DataError(f"{path}: no such file or folder{hint} ({folder} holds: {format_name_list(names)})")


def list_folder_entries(folder: Path) -> list[str]:
    return sorted(one.name + ("/" if one.is_dir() else "") for one in folder.iterdir())


def format_name_list(names: Sequence[str]) -> str:
    shown = ", ".join(names[:MAX_ITEMS_SHOWN]) or "nothing"
    return f"{shown} and {len(names) - MAX_ITEMS_SHOWN} more" if len(names) > MAX_ITEMS_SHOWN else shown
