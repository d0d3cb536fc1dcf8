"""Trials per hour: whole commands from start to end, ours against a peer's in two layouts.

Ours is `h2h run` with everything that it does: workers, checkpoints, audits, run folders, report. A peer's is a script
that reads ready tokens, trains seed after seed, scores the same texts and keeps nothing. As people run it: one process
with all threads. In our layout: one process a core with one thread each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.atomic_io import read_json, read_jsonl

from . import children, lessons
from .findings import Bar, Finding, Found, How, Table
from .turns import Best, take_turns

PEOPLE, OURS = "as people run it", "in our layout"
SAME_AT_START = 1e-4


@dataclass(frozen=True)
class Rival:
    """A peer, and how many times its rate is promised in each layout."""

    name: str
    title: str
    wanted: Mapping[str, float]
    differs: str
    """what in its mathematics or its work is not ours"""
    equal: bool = True
    """its losses are ours, as far as numbers of seven digits go"""


def contest(raw: dict[str, Any], rivals: list[Rival], how: How, rounds: int, folder: Path) -> Found:
    """Everybody in turn; then rates, where the time went, and whether all have computed the same."""
    lessons.write(raw, folder)
    (folder / "bench.toml").write_text(lessons.toml(raw))
    sides: dict[str, Callable[[], Any]] = {"ours": lambda: _ours(folder, raw["seeds"], how)}
    for rival in rivals:
        for layout in (PEOPLE, OURS):
            sides[f"{rival.name}, {layout}"] = _side(rival.name, layout, folder, raw["seeds"], how)
    shown = {f"{rival.name}, {layout}" for rival in rivals for layout in (PEOPLE, OURS) if layout not in rival.wanted}
    best = take_turns(sides, rounds, warm=False, once=shown)
    yield from _rates(best, rivals, raw["seeds"])
    yield _where_time_goes(best, rivals, raw["seeds"])
    yield _differences(rivals)
    yield from _agreement(best, rivals)


def _ours(folder: Path, seeds: int, how: How) -> dict[str, Any]:
    """`h2h run`, and what its run folders say."""
    out = folder / "runs"
    shutil.rmtree(out, ignore_errors=True)
    arguments = ("run", str(folder / "bench.toml"), "--out", str(out), "--workers", str(how.cores))
    children.run(children.python("headtohead.cli", *arguments))
    told: dict[str, Any] = {"seconds_training": 0.0, "seconds_scoring": 0.0, "losses": {}}
    for seed in range(seeds):
        run = out / "baseline" / f"seed-{seed}"
        told["seconds_training"] += read_json(run / "result.json")["trained"]["seconds"]
        by_step: dict[str, dict[str, float]] = {}
        for line in read_jsonl(run / "metrics.jsonl"):
            if line["split"] != "batches":
                by_step.setdefault(str(line["step"]), {})[line["split"]] = line["loss"]
        told["losses"][str(seed)] = by_step
    return told


def _side(name: str, layout: str, folder: Path, seeds: int, how: How) -> Callable[[], dict[str, Any]]:
    """A peer's trainings in one layout."""
    processes = 1 if layout == PEOPLE else min(how.cores, seeds)
    threads = how.cores if layout == PEOPLE else 1
    commands = [
        children.python(
            "tools.bench.peers",
            name,
            str(folder),
            *(str(seed) for seed in range(first, seeds, processes)),
            "--threads",
            str(threads),
        )
        for first in range(processes)
    ]

    def side() -> dict[str, Any]:
        told = [children.answer(said) for said in children.together(commands, threads=threads)]
        joined = {key: sum(one[key] for one in told) for key in ("seconds_training", "seconds_scoring")}
        return {**joined, "losses": {seed: found for one in told for seed, found in one["losses"].items()}}

    return side


def _rates(best: dict[str, Best], rivals: list[Rival], seeds: int) -> Found:
    ours = best["ours"]
    for layout in (PEOPLE, OURS):
        for rival in rivals:
            theirs = best[f"{rival.name}, {layout}"]
            wanted = rival.wanted.get(layout)
            yield Finding(
                f"{rival.title}, {layout}",
                3600 * seeds / ours.wall,
                "trials/h",
                3600 * seeds / theirs.wall,
                rival.title,
                theirs.wall / ours.wall,
                bar=None if wanted is None else Bar(wanted),
                on_processor=theirs.processor / max(ours.processor, 1e-9),
            )


def _where_time_goes(best: dict[str, Best], rivals: list[Rival], seeds: int) -> Table:
    """Seconds a trial: of the whole command, and of its steps; the rest is scoring, starting, reading and saving."""
    rows = []
    for name, found in best.items():
        title = next((f"{r.title}{name.removeprefix(r.name)}" for r in rivals if name.startswith(f"{r.name},")), "ours")
        training, scoring = found.answer["seconds_training"] / seeds, found.answer["seconds_scoring"] / seeds
        scored = f"{scoring:.2f}" if scoring else "-"
        rows.append([title, f"{found.wall / seeds:.2f}", f"{training:.2f}", scored, f"{found.processor / seeds:.2f}"])
    columns = ["who", "wall, whole command", "steps", "scoring", "processor, whole command"]
    note = (
        "Seconds a trial. Wall time is shared by trials that run side by side; steps and scoring are summed over "
        "processes. Ours scores once more at the end than the others, audits seed 0, saves checkpoints and run folders "
        "and writes the report; its scoring is not told apart."
    )
    return Table("Where the time of a trial goes", columns, rows, note)


def _differences(rivals: list[Rival]) -> Table:
    return Table("What differs from ours", ["who", "what"], [[rival.title, rival.differs] for rival in rivals])


def _agreement(best: dict[str, Best], rivals: list[Rival]) -> Found:
    """How far the losses of the scored texts are from ours, at the most, at the first and the last step."""
    rows = []
    for rival in rivals:
        differences = apart(best["ours"].answer["losses"], best[f"{rival.name}, {OURS}"].answer["losses"])
        first, last = differences[min(differences)], differences[max(differences)]
        rows.append([rival.title, f"{first:.1e}", f"{last:.1e}", "yes" if rival.equal else "no"])
        if rival.equal:
            what = f"{rival.title}: the largest difference of losses from one start"
            bar = Bar(SAME_AT_START, at_most=True)
            yield Finding(what, first, "nats", figure=first, kind="nats", bar=bar)
    note = "The largest difference to our loss over seeds and texts; from one start, on one thread."
    columns = ["who", "before the first step", "after the last", "the same mathematics"]
    yield Table("Do losses agree?", columns, rows, note)


def apart(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[int, float]:
    """By step, the largest difference of losses over the seeds and texts that both have scored."""
    found: dict[int, float] = {}
    for seed, by_step in ours.items():
        for step, texts in by_step.items():
            other = theirs[seed].get(step, {})
            for name in texts.keys() & other.keys():
                found[int(step)] = max(found.get(int(step), 0.0), abs(texts[name] - other[name]))
    return found
