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

from headtohead.json_files import read_json, read_jsonl

from . import child_processes
from .experiments import RawExperiment
from .measurements import BenchmarkSettings, Measurement, Measurements, Table, Target
from .timing import BestTiming, run_alternating
from .workload import write_workload

USUAL_LAYOUT = "usual layout"
"""one process with all threads"""
OUR_LAYOUT = "our layout"
"""one process per core with one thread each"""
LAYOUTS = (USUAL_LAYOUT, OUR_LAYOUT)
MAX_INITIAL_LOSS_DIFFERENCE = 1e-4
"""in nats, between our losses and those of a peer with equal mathematics before the first step"""


@dataclass(frozen=True)
class Peer:
    """A peer, and the minimum ratio of our rate to its rate in each layout."""

    name: str
    title: str
    min_ratios: Mapping[str, float]
    difference: str
    """how its mathematics or its work differs from ours"""
    has_equal_losses: bool = True
    """whether its losses equal ours up to rounding"""


def compare_trial_rates(
    raw: RawExperiment, peers: list[Peer], settings: BenchmarkSettings, num_rounds: int, folder: Path
) -> Measurements:
    """Run all contestants; yield rates, where time is spent, and whether all computed the same losses."""
    write_workload(raw, folder)
    contestants: dict[str, Callable[[], Any]] = {"ours": lambda: _run_ours(folder, raw["seeds"], settings)}
    names_without_target = set()
    for peer in peers:
        for layout in LAYOUTS:
            name = f"{peer.name}, {layout}"
            contestants[name] = _build_peer_run(peer.name, layout, folder, raw["seeds"], settings)
            names_without_target |= set() if layout in peer.min_ratios else {name}
    best = run_alternating(contestants, num_rounds, warm_up=False, single_round_names=names_without_target)
    yield from _compare_rates(best, peers, raw["seeds"])
    yield _build_time_table(best, peers, raw["seeds"])
    yield Table("Differences from ours", ["peer", "difference"], [[peer.title, peer.difference] for peer in peers])
    yield from _compare_losses(best, peers)


def _run_ours(folder: Path, num_seeds: int, settings: BenchmarkSettings) -> dict[str, Any]:
    """Run `h2h run`; return durations and losses from its run folders."""
    runs_folder = folder / "runs"
    shutil.rmtree(runs_folder, ignore_errors=True)
    arguments = ("run", str(folder / "bench.toml"), "--out", str(runs_folder), "--workers", str(settings.num_cores))
    child_processes.run_command(child_processes.build_python_command("headtohead.cli", *arguments))
    report: dict[str, Any] = {"training_seconds": 0.0, "evaluation_seconds": 0.0, "losses": {}}
    for seed in range(num_seeds):
        run_folder = runs_folder / "baseline" / f"seed-{seed}"
        report["training_seconds"] += read_json(run_folder / "result.json")["training"]["seconds"]
        losses_by_step: dict[str, dict[str, float]] = {}
        for line in read_jsonl(run_folder / "metrics.jsonl"):
            if line["split"] != "batches":
                losses_by_step.setdefault(str(line["step"]), {})[line["split"]] = line["loss"]
        report["losses"][str(seed)] = losses_by_step
    return report


def _build_peer_run(
    name: str, layout: str, folder: Path, num_seeds: int, settings: BenchmarkSettings
) -> Callable[[], dict[str, Any]]:
    """Return a function that trains a peer in one layout."""
    num_processes, num_threads = (
        (1, settings.num_cores) if layout == USUAL_LAYOUT else (min(settings.num_cores, num_seeds), 1)
    )
    module, options = "tools.bench.peer_training", ("--threads", str(num_threads))
    seeds_by_process = [map(str, range(first, num_seeds, num_processes)) for first in range(num_processes)]
    commands = [
        child_processes.build_python_command(module, name, str(folder), *process_seeds, *options)
        for process_seeds in seeds_by_process
    ]

    def run_peer() -> dict[str, Any]:
        outputs = child_processes.run_commands_in_parallel(commands, num_threads=num_threads)
        reports = [child_processes.parse_json_result(output) for output in outputs]
        seconds = {key: sum(report[key] for report in reports) for key in ("training_seconds", "evaluation_seconds")}
        losses = {seed: seed_losses for report in reports for seed, seed_losses in report["losses"].items()}
        return {**seconds, "losses": losses}

    return run_peer


def _compare_rates(best: dict[str, BestTiming], peers: list[Peer], num_seeds: int) -> Measurements:
    """Yield trials per hour, ours and each peer's, for every layout."""
    ours = best["ours"]
    for layout in LAYOUTS:
        for peer in peers:
            theirs, min_ratio = best[f"{peer.name}, {layout}"], peer.min_ratios.get(layout)
            yield Measurement(
                f"{peer.title}, {layout}",
                3600 * num_seeds / ours.wall_seconds,
                "trials/h",
                3600 * num_seeds / theirs.wall_seconds,
                peer.title,
                theirs.wall_seconds / ours.wall_seconds,
                target=None if min_ratio is None else Target(min_ratio),
                cpu_time_ratio=theirs.cpu_seconds / max(ours.cpu_seconds, 1e-9),
            )


def _build_time_table(best: dict[str, BestTiming], peers: list[Peer], num_seeds: int) -> Table:
    """Return the seconds per trial of the whole command, its steps and its evaluations."""
    titles = {f"{peer.name}, {layout}": f"{peer.title}, {layout}" for peer in peers for layout in LAYOUTS}
    rows = []
    for name, timing in best.items():
        training, evaluation = (timing.value[key] / num_seeds for key in ("training_seconds", "evaluation_seconds"))
        evaluation_text = f"{evaluation:.2f}" if evaluation else "-"
        wall, cpu = timing.wall_seconds / num_seeds, timing.cpu_seconds / num_seeds
        rows.append([titles.get(name, name), f"{wall:.2f}", f"{training:.2f}", evaluation_text, f"{cpu:.2f}"])
    columns = ["contestant", "wall time, command", "steps", "evaluation", "CPU time, command"]
    note = (
        "Seconds per trial. Wall time is shared by trials that run in parallel; steps and evaluation are summed over "
        "processes. Ours evaluates once more at the end, audits, saves checkpoints and run folders and writes the "
        "report; its evaluation is not listed separately."
    )
    return Table("Where the time of a trial is spent", columns, rows, note)


def _compare_losses(best: dict[str, BestTiming], peers: list[Peer]) -> Measurements:
    """Compare each peer's losses on the evaluation splits with ours, before the first and after the last step."""
    rows = []
    for peer in peers:
        losses = best[f"{peer.name}, {OUR_LAYOUT}"].value["losses"]
        differences = compute_max_differences(best["ours"].value["losses"], losses)
        initial_difference, final_difference = differences[min(differences)], differences[max(differences)]
        rows.append(
            [
                peer.title,
                f"{initial_difference:.1e}",
                f"{final_difference:.1e}",
                "yes" if peer.has_equal_losses else "no",
            ]
        )
        if peer.has_equal_losses:
            name = f"{peer.title}: largest difference of losses at the start"
            target = Target(MAX_INITIAL_LOSS_DIFFERENCE, is_maximum=True)
            yield Measurement(name, initial_difference, "nats", result=initial_difference, kind="nats", target=target)
    note = "Largest difference to our loss over seeds and texts, with equal initial weights and one thread."
    columns = ["peer", "before the first step", "after the last step", "same mathematics"]
    yield Table("Agreement of losses", columns, rows, note)


def compute_max_differences(our_losses: dict[str, Any], peer_losses: dict[str, Any]) -> dict[int, float]:
    """Return, by step, the largest loss difference over the seeds and splits that both evaluated."""
    differences: dict[int, float] = {}
    for seed, losses_by_step in our_losses.items():
        for step, losses in losses_by_step.items():
            their_losses = peer_losses[seed].get(step, {})
            for name in losses.keys() & their_losses.keys():
                difference = abs(losses[name] - their_losses[name])
                differences[int(step)] = max(differences.get(int(step), 0.0), difference)
    return differences
