"""The error budget of an experiment or comparison, derived from its journal.

The journal records every analysis and every variant that was ever run, so seeds added by hand, on advice, by `seeds =
"auto"`, in the web app or with --resume are all treated alike, and a variant removed from the file still counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from headtohead.config.experiment import BASELINE
from headtohead.experiment.journal import Journal
from headtohead.experiment.schemas import AnalysisEvent, RunEvent
from headtohead.verdict.compare import ErrorBudget
from headtohead.verdict.interim import MIN_SEEDS, Analysis
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import NOT_COMPARABLE


def read_error_budget(
    folder: Path, variants: Collection[str], planned_seeds: int, num_other_comparisons: int = 0
) -> ErrorBudget:
    """Return all analyses of each variant so far, and the number of comparisons that share the error rate.

    `num_other_comparisons` counts the comparisons beyond those of each variant with the baseline.
    """
    analyses: dict[str, tuple[Analysis, ...]] = {}
    names = set(variants)
    for event in Journal(folder).read():
        if isinstance(event, RunEvent):
            names.add(event.variant)
        elif isinstance(event, AnalysisEvent):
            for name, seeds in event.seeds.items():
                previous = analyses.get(name, ())
                if all(analysis.seeds < seeds for analysis in previous):
                    analyses[name] = (*previous, Analysis(seeds, event.planned_seeds))
    names.discard(BASELINE)
    return ErrorBudget(analyses, planned_seeds, len(names) + num_other_comparisons)


def record_analysis(folder: Path, verdicts: Sequence[Verdict], budget: ErrorBudget) -> None:
    """Append an analysis to the journal, unless every variant has already been analysed with at least as many seeds.

    The folder must be locked.
    """
    analysed = [verdict for verdict in verdicts if is_analysed(verdict)]
    if any(not has_analysis(budget, verdict) for verdict in analysed):
        Journal(folder).append(
            AnalysisEvent(
                seeds={verdict.variant: count_analysed_seeds(verdict) for verdict in analysed},
                planned_seeds=budget.planned_seeds,
                confidence={verdict.variant: verdict.adjusted_confidence for verdict in analysed},
            )
        )


def list_analyses(budget: ErrorBudget, verdicts: Sequence[Verdict]) -> list[int]:
    """Return the seed counts of all analyses, including this one."""
    seeds = {analysis.seeds for previous in budget.previous_analyses.values() for analysis in previous}
    return sorted(seeds | {count_analysed_seeds(verdict) for verdict in verdicts if is_analysed(verdict)})


def is_analysed(verdict: Verdict) -> bool:
    """Return whether the verdict counts as an analysis: it is not withheld and has enough seeds for an interval."""
    return verdict.outcome != NOT_COMPARABLE and count_analysed_seeds(verdict) >= MIN_SEEDS


def has_analysis(budget: ErrorBudget, verdict: Verdict) -> bool:
    """Return whether the variant has already been analysed with at least as many seeds."""
    previous = budget.previous_analyses.get(verdict.variant, ())
    return any(analysis.seeds >= count_analysed_seeds(verdict) for analysis in previous)


def count_analysed_seeds(verdict: Verdict) -> int:
    """Return the number of seeds that both sides have run, including lost runs."""
    return min(verdict.runs, verdict.baseline_runs)
