"""Trials per hour: complete commands, ours against a peer's in two layouts.

Ours is `h2h run` with everything it does: workers, checkpoints, audits, run folders, report. A peer's is a script that
reads ready tokens, trains one seed after another, evaluates the same texts and saves nothing. In the usual layout it is
one process with all threads; in our layout, one process per core with one thread each.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headtohead.atomic_io import read_json, read_jsonl

from . import child_processes
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target
from .timing import BestTiming, run_alternating
from .workload import RawExperiment, write_workload

USUAL_LAYOUT, OUR_LAYOUT = "usual layout", "our layout"
LAYOUTS = (USUAL_LAYOUT, OUR_LAYOUT)
MAX_INITIAL_LOSS_DIFFERENCE = 1e-4


@dataclass(frozen=True)
class Peer:
    """A peer, and the minimum ratio of our rate to its rate in each layout."""

    name: str
    title: str
    min_ratios: Mapping[str, float]
    difference: str
    """what differs from our mathematics or our work"""
    has_equal_losses: bool = True
    """whether its losses equal ours up to rounding"""


def compare_trial_rates(
    raw: RawExperiment, peers: list[Peer], settings: BenchmarkSettings, rounds: int, folder: Path
) -> Measurements:
    """Run all contestants; yield rates, where time is spent, and whether all computed the same losses."""
    write_workload(raw, folder)
    contestants: dict[str, Callable[[], Any]] = {"ours": lambda: _run_ours(folder, raw["seeds"], settings)}
    without_target = set()
    for peer in peers:
        for layout in LAYOUTS:
            name = f"{peer.name}, {layout}"
            contestants[name] = _build_peer_run(peer.name, layout, folder, raw["seeds"], settings)
            without_target |= set() if layout in peer.min_ratios else {name}
    best = run_alternating(contestants, rounds, warm_up=False, single_round=without_target)
    yield from _compare_rates(best, peers, raw["seeds"])
    yield _build_time_table(best, peers, raw["seeds"])
    yield Table("Differences from ours", ["peer", "difference"], [[peer.title, peer.difference] for peer in peers])
    yield from _compare_losses(best, peers)


def _run_ours(folder: Path, seeds: int, settings: BenchmarkSettings) -> dict[str, Any]:
    """Run `h2h run`; return durations and losses from its run folders."""
    out = folder / "runs"
    shutil.rmtree(out, ignore_errors=True)
    arguments = ("run", str(folder / "bench.toml"), "--out", str(out), "--workers", str(settings.cores))
    child_processes.run(child_processes.build_python_command("headtohead.cli", *arguments))
    report: dict[str, Any] = {"training_seconds": 0.0, "evaluation_seconds": 0.0, "losses": {}}
    for seed in range(seeds):
        run = out / "baseline" / f"seed-{seed}"
        report["training_seconds"] += read_json(run / "result.json")["training"]["seconds"]
        losses_by_step: dict[str, dict[str, float]] = {}
        for line in read_jsonl(run / "metrics.jsonl"):
            if line["split"] != "batches":
                losses_by_step.setdefault(str(line["step"]), {})[line["split"]] = line["loss"]
        report["losses"][str(seed)] = losses_by_step
    return report


def _build_peer_run(
    name: str, layout: str, folder: Path, seeds: int, settings: BenchmarkSettings
) -> Callable[[], dict[str, Any]]:
    """Return a function that trains a peer in one layout."""
    processes, threads = (1, settings.cores) if layout == USUAL_LAYOUT else (min(settings.cores, seeds), 1)
    module, options = "tools.bench.peer_training", ("--threads", str(threads))
    seeds_by_process = [map(str, range(first, seeds, processes)) for first in range(processes)]
    commands = [
        child_processes.build_python_command(module, name, str(folder), *process_seeds, *options)
        for process_seeds in seeds_by_process
    ]

    def run() -> dict[str, Any]:
        outputs = child_processes.run_in_parallel(commands, num_threads=threads)
        reports = [child_processes.parse_result(output) for output in outputs]
        seconds = {key: sum(report[key] for report in reports) for key in ("training_seconds", "evaluation_seconds")}
        losses = {seed: by_step for report in reports for seed, by_step in report["losses"].items()}
        return {**seconds, "losses": losses}

    return run


def _compare_rates(best: dict[str, BestTiming], peers: list[Peer], seeds: int) -> Measurements:
    ours = best["ours"]
    for layout in LAYOUTS:
        for peer in peers:
            theirs, min_ratio = best[f"{peer.name}, {layout}"], peer.min_ratios.get(layout)
            yield Measurement(
                f"{peer.title}, {layout}",
                3600 * seeds / ours.wall_seconds,
                "trials/h",
                3600 * seeds / theirs.wall_seconds,
                peer.title,
                theirs.wall_seconds / ours.wall_seconds,
                target=None if min_ratio is None else Target(min_ratio),
                cpu_time_ratio=theirs.cpu_seconds / max(ours.cpu_seconds, 1e-9),
            )


def _build_time_table(best: dict[str, BestTiming], peers: list[Peer], seeds: int) -> Table:
    """Return the seconds per trial of the whole command, its steps and its evaluations."""
    titles = {f"{peer.name}, {layout}": f"{peer.title}, {layout}" for peer in peers for layout in LAYOUTS}
    rows = []
    for name, timing in best.items():
        training, evaluation = (timing.value[key] / seeds for key in ("training_seconds", "evaluation_seconds"))
        evaluation_text = f"{evaluation:.2f}" if evaluation else "-"
        wall, cpu = timing.wall_seconds / seeds, timing.cpu_seconds / seeds
        rows.append([titles.get(name, name), f"{wall:.2f}", f"{training:.2f}", evaluation_text, f"{cpu:.2f}"])
    columns = ["contestant", "wall time, command", "steps", "evaluation", "CPU time, command"]
    note = (
        "Seconds per trial. Wall time is shared by trials that run in parallel; steps and evaluation are summed over "
        "processes. Ours evaluates once more at the end, audits, saves checkpoints and run folders and writes the "
        "report; its evaluation is not listed separately."
    )
    return Table("Where the time of a trial is spent", columns, rows, note)


def _compare_losses(best: dict[str, BestTiming], peers: list[Peer]) -> Measurements:
    """Compare the losses of the evaluated texts with ours, before the first and after the last step."""
    rows = []
    for peer in peers:
        losses = best[f"{peer.name}, {OUR_LAYOUT}"].value["losses"]
        differences = compute_max_differences(best["ours"].value["losses"], losses)
        first, last = differences[min(differences)], differences[max(differences)]
        rows.append([peer.title, f"{first:.1e}", f"{last:.1e}", "yes" if peer.has_equal_losses else "no"])
        if peer.has_equal_losses:
            name = f"{peer.title}: largest difference of losses at the start"
            target = Target(MAX_INITIAL_LOSS_DIFFERENCE, is_maximum=True)
            yield Measurement(name, first, "nats", result=first, kind="nats", target=target)
    note = "Largest difference to our loss over seeds and texts, with equal initial weights and one thread."
    columns = ["peer", "before the first step", "after the last step", "same mathematics"]
    yield Table("Agreement of losses", columns, rows, note)


def compute_max_differences(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[int, float]:
    """Return, by step, the largest difference of losses over the seeds and texts that both evaluated."""
    differences: dict[int, float] = {}
    for seed, losses_by_step in ours.items():
        for step, losses in losses_by_step.items():
            other_losses = theirs[seed].get(step, {})
            for name in losses.keys() & other_losses.keys():
                difference = abs(losses[name] - other_losses[name])
                differences[int(step)] = max(differences.get(int(step), 0.0), difference)
    return differences
