"""Reasons for withholding the verdict on a variant: its runs cannot be independent runs of its command.

They are derived from the recorded runs alone, so that `h2h verify` reproduces them. Anything that may be intended is a
warning instead: comparison_warnings.py.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping

from headtohead.audit.result import list_blocking_reasons
from headtohead.config.experiment import BASELINE
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.file_schemas import CommandRun, RunsByVariant

MAX_LISTED_FILES = 3


def list_withholding_reasons(comparison: ComparisonFolder, valid_runs: RunsByVariant) -> dict[str, list[str]]:
    """Return the reasons for withholding verdicts, keyed by variant. `valid_runs` holds the runs with a finite value.

    Reasons that concern the baseline withhold the verdict on every variant.
    """
    journal_mismatches = comparison.find_journal_mismatches()
    reasons = {
        name: _list_reasons_in_runs(comparison, name, runs_by_seed) + journal_mismatches.get(name, [])
        for name, runs_by_seed in valid_runs.items()
    }
    baseline_reasons = [f"{BASELINE}: {reason}" for reason in reasons.pop(BASELINE)]
    splits = {
        name: {run.split for run in runs_by_seed.values()} for name, runs_by_seed in valid_runs.items() if runs_by_seed
    }
    for name, variant_reasons in reasons.items():
        if BASELINE in splits and name in splits and splits[name] != splits[BASELINE]:
            baseline_split, variant_split = (", ".join(sorted(splits[key])) for key in (BASELINE, name))
            variant_reasons.append(
                f"reports {comparison.config.metric.name} on the {variant_split} split, and {BASELINE} on the "
                f"{baseline_split} split"
            )
    return {
        name: [
            *baseline_reasons,
            *(reason for reason in variant_reasons if f"{BASELINE}: {reason}" not in baseline_reasons),
        ]
        for name, variant_reasons in reasons.items()
        if baseline_reasons or variant_reasons
    }


def _list_reasons_in_runs(comparison: ComparisonFolder, name: str, runs_by_seed: Mapping[int, CommandRun]) -> list[str]:
    """Return the reasons to withhold a verdict that the runs of the baseline, or of a single variant, contain."""
    reasons = list_blocking_reasons([result for run in runs_by_seed.values() for result in run.audits])
    if ignores_seed(runs_by_seed):
        reasons.append(
            "every seed gives exactly the same values: seed all random generators of the script with {seed}, or choose "
            "a metric with more digits"
        )
    changed_files = {file for run in runs_by_seed.values() for file in run.changed_files}
    if changed_scripts := sorted(changed_files & set(comparison.record.list_named_scripts(name))):
        reasons.append(f"{', '.join(changed_scripts)} changed while the comparison ran")
    curves = [run.curve for run in runs_by_seed.values() if len(run.curve) > 1]
    first_steps = [curve[0][0] for curve in curves]
    if len(set(first_steps)) > 1 and max(first_steps) >= min(curve[-1][0] for curve in curves) / 2:
        reasons.append(
            f"its runs start between step {min(first_steps)} and step {max(first_steps)}: some may have resumed from a "
            "checkpoint of another run"
        )
    shared_files = list_shared_files(runs_by_seed)[:MAX_LISTED_FILES]
    if name == BASELINE and shared_files and _differs_by_more_than_seeds(comparison, runs_by_seed):
        reasons.append(
            f"its runs share files ({', '.join(shared_files)}), and repeating a seed changes the value by more than a "
            "new seed does: runs may resume from earlier ones"
        )
    return reasons


def _differs_by_more_than_seeds(comparison: ComparisonFolder, baseline: Mapping[int, CommandRun]) -> bool:
    """Return whether repeating a seed changes the value by more than different seeds do, a reason to withhold.

    Together with shared files, this suggests that runs resume from earlier ones.
    """
    repeated_run, first_run = comparison.read_repeated_run(), baseline.get(comparison.config.first_seed)
    if repeated_run is None or first_run is None or not repeated_run.has_finite_value or len(baseline) < 2:
        return False
    return abs(repeated_run.value - first_run.value) > statistics.stdev(run.value for run in baseline.values())


def ignores_seed(runs_by_seed: Mapping[int, CommandRun]) -> bool:
    """Return whether runs with different seeds have equal curves, a reason to withhold the verdict.

    The script does not use its seed: random initialization and shuffling rule out that this happens by chance.
    """
    return len(runs_by_seed) >= 2 and len({tuple(run.curve) for run in runs_by_seed.values()}) == 1


def list_shared_files(runs_by_seed: Mapping[int, CommandRun]) -> list[str]:
    """Return files through which runs may depend on each other, a reason to warn or to withhold the verdict.

    These are the files outside of the run folders that several runs wrote, or that one run wrote and a later one read,
    such as a checkpoint.
    """
    modified_times: dict[str, set[int]] = defaultdict(set)
    for run in runs_by_seed.values():
        for file, modified_time in run.written_files.items():
            modified_times[file].add(modified_time)
    read_files = {file for run in runs_by_seed.values() for file in run.read_files}
    return sorted(read_files | {file for file, times in modified_times.items() if len(times) > 1})
