"""Read and record the interim analyses in the journal, which share the familywise error rate of an experiment.

The journal records every analysis and every variant that was ever run, so seeds count alike whether they were added by
hand, on advice, by `seeds = "auto"`, in the web app or with --resume. A variant that was removed from the file still
counts. A variant that was edited counts once for each version of its settings, data and code, or of the baseline's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from headtohead.config.experiment import BASELINE
from headtohead.experiment.journal import Journal
from headtohead.experiment.schemas import AnalysisEvent, RunEvent, SettingsEvent
from headtohead.verdict.decision_rule import NOT_COMPARABLE
from headtohead.verdict.interim import MIN_SEEDS, AlphaBudget, InterimAnalysis
from headtohead.verdict.record import Verdict


def read_alpha_budget(
    folder: Path, variants: Collection[str], num_planned_seeds: int, num_other_comparisons: int = 0
) -> AlphaBudget:
    """Return the recorded analyses of each variant, and the number of comparisons that share the error rate.

    `num_other_comparisons` counts the comparisons beyond those of each variant with the baseline.
    """
    analyses: dict[str, tuple[InterimAnalysis, ...]] = {}
    trial_digests: Mapping[str, str] = {}
    comparisons: set[tuple[str, str | None, str | None]] = set()

    def add_comparisons(names: Iterable[str]) -> None:
        """Add the comparison of each variant with the baseline, identified by the digests of both."""
        comparisons.update(
            (name, trial_digests.get(name), trial_digests.get(BASELINE)) for name in names if name != BASELINE
        )

    for event in Journal(folder).read():
        if isinstance(event, SettingsEvent):
            trial_digests = event.trials
        elif isinstance(event, RunEvent):
            add_comparisons([event.variant])
        elif isinstance(event, AnalysisEvent):
            add_comparisons(event.seeds)
            for name, seeds in event.seeds.items():
                previous = analyses.get(name, ())
                if all(analysis.num_seeds < seeds for analysis in previous):
                    analyses[name] = (*previous, InterimAnalysis(seeds, event.planned_seeds))
    add_comparisons(variants)
    return AlphaBudget(analyses, num_planned_seeds, len(comparisons) + num_other_comparisons)


def record_analysis(folder: Path, verdicts: Sequence[Verdict], budget: AlphaBudget) -> None:
    """Append an analysis to the journal, unless every variant has already been analyzed with at least as many seeds.

    A variant may have several verdicts, against different references; the one with the most seeds counts. The folder
    must be locked.
    """
    analyzed_verdicts = sorted((verdict for verdict in verdicts if is_analysis(verdict)), key=count_analyzed_seeds)
    if any(not has_recorded_analysis(budget, verdict) for verdict in analyzed_verdicts):
        Journal(folder).append(
            AnalysisEvent(
                seeds={verdict.variant: count_analyzed_seeds(verdict) for verdict in analyzed_verdicts},
                planned_seeds=budget.num_planned_seeds,
                confidence={verdict.variant: verdict.adjusted_confidence for verdict in analyzed_verdicts},
            )
        )


def list_analyzed_seed_counts(budget: AlphaBudget, verdicts: Sequence[Verdict]) -> list[int]:
    """Return the numbers of seeds of all analyses, including the one that led to `verdicts`."""
    seed_counts = {analysis.num_seeds for previous in budget.previous_analyses.values() for analysis in previous}
    return sorted(seed_counts | {count_analyzed_seeds(verdict) for verdict in verdicts if is_analysis(verdict)})


def is_analysis(verdict: Verdict) -> bool:
    """Return whether a verdict counts as an analysis: it is not withheld and has enough seeds for an interval."""
    return verdict.outcome != NOT_COMPARABLE and count_analyzed_seeds(verdict) >= MIN_SEEDS


def has_recorded_analysis(budget: AlphaBudget, verdict: Verdict) -> bool:
    """Return whether the journal records an analysis of the verdict's variant with at least as many seeds."""
    previous = budget.previous_analyses.get(verdict.variant, ())
    return any(analysis.num_seeds >= count_analyzed_seeds(verdict) for analysis in previous)


def count_analyzed_seeds(verdict: Verdict) -> int:
    """Return the number of seeds that both the variant and its reference have run, including lost runs."""
    return min(verdict.runs, verdict.baseline_runs)
