"""How a file is refused: every fault of it at once, each with its place, and not more than a screen of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headtohead.errors import CorpusError, Fault, nearest

SHOWN = 10


def refusal(path: str | Path, faults: Sequence[Fault], *, count: int | None = None) -> CorpusError:
    """The error for a file with these faults; `count` where there are more of them than were put into words."""
    count = len(faults) if count is None else count
    lines = [f"{path}: {count} error{'s' if count != 1 else ''}"]
    lines += ["  " + str(fault).replace("\n", "\n  ") for fault in faults[:SHOWN]]
    if count > SHOWN:
        lines.append(f"  and {count - SHOWN} more")
    return CorpusError("\n".join(lines))


def missing(path: Path) -> CorpusError:
    """The error for a path that is not there, with the nearest name that is."""
    folder = path.parent
    if path.exists():
        return CorpusError(f"{path}: is neither a plain file nor a folder")
    if not folder.is_dir():
        return CorpusError(f"{path}: no such file, and no such folder: {folder}")
    names = names_in(folder)
    near = nearest(path.name, names)
    hint = f"; did you mean {near!r}?" if near else ""
    return CorpusError(f"{path}: no such file or folder{hint} ({folder} holds: {listed(names)})")


def names_in(folder: Path) -> list[str]:
    return sorted(one.name + ("/" if one.is_dir() else "") for one in folder.iterdir())


def listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN]) or "nothing"
    return f"{shown} and {len(names) - SHOWN} more" if len(names) > SHOWN else shown
