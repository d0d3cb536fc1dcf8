"""Render the table of docs/faults.md from the outcomes of the last full run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .outcome import FaultOutcome

TABLE_START = "<!-- written by make faults -->"
TABLE_END = "<!-- until here -->"


def format_total(outcomes: dict[str, list[FaultOutcome]]) -> str:
    """Return the number of kills, losses and errors."""
    rows = [outcome for fault_outcomes in outcomes.values() for outcome in fault_outcomes]
    kills, lost = sum(row.kills for row in rows), sum(len(row.lost) for row in rows)
    return f"{kills} kills, {lost} lost, {sum(len(row.errors) for row in rows)} wrong"


def render_table(outcomes: dict[str, list[FaultOutcome]], environment: dict[str, Any]) -> str:
    """Return all outcomes as Markdown."""
    rows = [_render_row(outcome) for fault_outcomes in outcomes.values() for outcome in fault_outcomes]
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    machine = f"{environment['processor']}, {environment['cores']} cores, {environment['system']}"
    software = f"Python {environment['python']}, {versions}"
    note = " This was a short run." if environment["short"] else ""
    duration = f"{environment['minutes']} minutes"
    return "\n".join(
        [
            f"**{format_total(outcomes)}.**",
            "",
            "| fault | times | observation |",
            "|---|---|---|",
            *rows,
            "",
            f"Run on {environment['day']} in {duration}: {machine}; {software}.{note}",
        ]
    )


def _render_row(outcome: FaultOutcome) -> str:
    observation = f"skipped: {outcome.skipped}" if outcome.skipped else outcome.observation
    problems = [*(f"LOST {problem}" for problem in outcome.lost), *(f"WRONG {problem}" for problem in outcome.errors)]
    cells = (outcome.fault, "" if outcome.skipped else str(outcome.times), "; ".join([observation, *problems]))
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def update_page(page: Path, outcomes: dict[str, list[FaultOutcome]], environment: dict[str, Any]) -> None:
    """Replace the table between its marks and keep the text around it."""
    table = f"{TABLE_START}\n{render_table(outcomes, environment)}\n{TABLE_END}"
    pattern = re.compile(f"{re.escape(TABLE_START)}.*{re.escape(TABLE_END)}", re.DOTALL)
    page.write_text(pattern.sub(lambda match: table, page.read_text(encoding="utf-8")), encoding="utf-8")
