"""The table of docs/faults.md, from what the last full run saw."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .seen import Seen

BEGIN, END = "<!-- written by make faults -->", "<!-- until here -->"


def total(found: dict[str, list[Seen]]) -> str:
    """The line that counts."""
    rows = [seen for rows in found.values() for seen in rows]
    kills, lost, wrong = (sum(r.kills for r in rows), sum(len(r.lost) for r in rows), sum(len(r.wrong) for r in rows))
    return f"{kills} kills, {lost} lost, {wrong} wrong"


def table(found: dict[str, list[Seen]], about: dict[str, Any]) -> str:
    """All that was seen, as Markdown."""
    rows = [_row(seen) for rows in found.values() for seen in rows]
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    machine = f"{about['processor']}, {about['cores']} cores, {about['system']}"
    short = " A short run." if about["short"] else ""
    python = f"Python {about['python']}, {versions}"
    seen_on = f"Seen on {about['day']} in {about['minutes']} minutes: {machine}; {python}.{short}"
    lines = [
        f"**{total(found)}.**",
        "",
        "| what was done | times | what was seen |",
        "|---|---|---|",
        *rows,
        "",
        seen_on,
    ]
    return "\n".join(lines)


def _row(seen: Seen) -> str:
    said = f"not done: {seen.skipped}" if seen.skipped else seen.seen
    faults = [*(f"LOST {one}" for one in seen.lost), *(f"WRONG {one}" for one in seen.wrong)]
    cells = (seen.what, "" if seen.skipped else str(seen.times), "; ".join([said, *faults]))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def write(page: Path, found: dict[str, list[Seen]], about: dict[str, Any]) -> None:
    """Put the table between its marks; the words around it stay."""
    text = page.read_text(encoding="utf-8")
    made = f"{BEGIN}\n{table(found, about)}\n{END}"
    pattern = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    page.write_text(pattern.sub(lambda match: made, text), encoding="utf-8")
