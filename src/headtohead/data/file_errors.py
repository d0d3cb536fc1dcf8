"""Build errors for invalid and missing corpus and tokenizer files.

An error lists every issue with its location, up to a limit so that it fits on one screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headtohead.errors import DataError, ValidationIssue, suggest

MAX_LISTED_ITEMS = 10


def build_file_error(
    path: str | Path, issues: Sequence[ValidationIssue], *, num_errors: int | None = None
) -> DataError:
    """Return an error that lists the issues in a file.

    Args:
        path: Path of the file.
        issues: The issues to list.
        num_errors: Total number of issues, if `issues` contains only some of them.
    """
    num_errors = len(issues) if num_errors is None else num_errors
    lines = [f"{path}: {num_errors} error{'s' if num_errors != 1 else ''}"]
    lines += ["  " + str(issue).replace("\n", "\n  ") for issue in issues[:MAX_LISTED_ITEMS]]
    if num_errors > MAX_LISTED_ITEMS:
        lines.append(f"  and {num_errors - MAX_LISTED_ITEMS} more")
    return DataError("\n".join(lines))


def build_missing_path_error(path: Path) -> DataError:
    """Return the error for a missing path, with a suggestion of the most similar name in its folder."""
    folder = path.parent
    if path.exists():
        return DataError(f"{path}: neither a regular file nor a folder")
    if not folder.is_dir():
        return DataError(f"{path}: no such file; the folder {folder} does not exist either")
    entry_names = list_folder_entries(folder)
    suggestion = suggest(path.name, entry_names)
    hint = f"; did you mean {suggestion!r}?" if suggestion else ""
    return DataError(f"{path}: no such file or folder{hint} ({folder} contains: {format_name_list(entry_names)})")


def list_folder_entries(folder: Path) -> list[str]:
    """Return the sorted names in a folder; subfolders end in a slash."""
    return sorted(path.name + ("/" if path.is_dir() else "") for path in folder.iterdir())


def format_name_list(names: Sequence[str]) -> str:
    """Return names of files for an error message, separated by commas and truncated to `MAX_LISTED_ITEMS`."""
    listed_names = ", ".join(names[:MAX_LISTED_ITEMS]) or "nothing"
    return f"{listed_names} and {len(names) - MAX_LISTED_ITEMS} more" if len(names) > MAX_LISTED_ITEMS else listed_names
