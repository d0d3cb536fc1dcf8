"""Interim analyses, which share the error rate of an experiment, and lost runs, which count as failures.

The journal records every analysis and every variant that was ever run, so seeds added by hand, on advice, by `seeds =
"auto"`, in the web app or with --resume are treated equally, and a variant that was removed from the file still counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.loading import diff_from_baseline
from headtohead.experiment.journal import Journal
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import AnalysisEvent, CorpusFile, FailureRecord, RunEvent
from headtohead.findings.evaluation_sets import resolve_split
from headtohead.verdict.compare import ErrorBudget
from headtohead.verdict.interim import MIN_SEEDS, Analysis
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import NOT_COMPARABLE

DIVERGED = "DivergedError"
"""`kind` of failure.json if training diverged; other failures are those of the machine and are run again"""


def read_error_budget(runs: ExperimentRuns) -> ErrorBudget:
    """Return all analyses of each variant so far, and the number of comparisons that share the error rate."""
    experiment = runs.experiment
    analyses: dict[str, tuple[Analysis, ...]] = {}
    variants = set(experiment.variants)
    for event in Journal(runs.folder).read():
        if isinstance(event, RunEvent):
            variants.add(event.variant)
        elif isinstance(event, AnalysisEvent):
            for name, seeds in event.seeds.items():
                previous = analyses.get(name, ())
                if all(analysis.seeds < seeds for analysis in previous):
                    analyses[name] = (*previous, Analysis(seeds, event.planned_seeds))
    variants.discard(BASELINE)
    num_comparisons = len(variants) + _count_confirmatory_comparisons(experiment)
    return ErrorBudget(analyses, experiment.max_seeds, num_comparisons)


def _count_confirmatory_comparisons(experiment: Experiment) -> int:
    """Return the number of comparisons besides those of all variants with the baseline."""
    among_variants = sum(
        len(comparison.variants)
        for comparison in experiment.comparisons
        if comparison.confirmatory and comparison.baseline != BASELINE
    )
    return among_variants + sum(claim.confirmatory and claim.needs_own_comparison for claim in experiment.claims)


def record_analysis(runs: ExperimentRuns, verdicts: Sequence[Verdict], budget: ErrorBudget) -> None:
    """Append an analysis to the journal, unless each variant was already analysed with as many seeds."""
    seeds = {verdict.variant: count_analysed_seeds(verdict) for verdict in verdicts if is_analysed(verdict)}
    if any(not has_analysis(budget, name, number) for name, number in seeds.items()):
        confidence = {verdict.variant: verdict.adjusted_confidence for verdict in verdicts if is_analysed(verdict)}
        Journal(runs.folder).append(
            AnalysisEvent(seeds=seeds, planned_seeds=budget.planned_seeds, confidence=confidence)
        )


def is_analysed(verdict: Verdict) -> bool:
    """Return whether the verdict is an analysis: it is not withheld and has enough seeds for an interval."""
    return verdict.outcome != NOT_COMPARABLE and count_analysed_seeds(verdict) >= MIN_SEEDS


def count_analysed_seeds(verdict: Verdict) -> int:
    """Return the number of seeds that both sides have run, lost runs included."""
    return min(verdict.runs, verdict.baseline_runs)


def has_analysis(budget: ErrorBudget, variant: str, num_seeds: int) -> bool:
    """Return whether a variant was analysed with at least this many seeds."""
    return any(analysis.seeds >= num_seeds for analysis in budget.previous_analyses.get(variant, ()))


def find_lost_runs(runs: ExperimentRuns, finished: FinishedRuns) -> list[FailureRecord]:
    """Return the runs that diverged or learned nothing. They count as failures of their variant."""
    lost = []
    for name in runs.experiment.names:
        for seed in (seed for seed in runs.seeds(name) if seed < runs.experiment.max_seeds):
            failure = None if seed in finished[name] else runs.run(name, seed).failure
            if failure is not None and failure.kind == DIVERGED:
                lost.append(FailureRecord(variant=name, seed=seed, message=failure.message, is_lost=True))
    return lost + _find_collapsed_runs(runs.experiment, runs.corpus, finished)


def _find_collapsed_runs(experiment: Experiment, corpus: CorpusFile, finished: FinishedRuns) -> list[FailureRecord]:
    """Return the finished runs that predict no better than token counts, or than the most common class.

    Returns nothing for a quick look, or if most baseline runs predict no better: such runs are trained too briefly.
    """
    references = _get_count_references(experiment, corpus)
    baseline = [_has_learned(run, experiment, references) for run in finished[BASELINE].values()]
    if experiment.quick or not references or 2 * sum(baseline) <= len(baseline):
        return []
    noun = "the most common class" if experiment.primary.metric == "accuracy" else "token counts"
    return [
        FailureRecord(variant=name, seed=seed, message=f"predicts no better than {noun}", is_lost=True)
        for name, by_seed in finished.items()
        if not any(key.startswith("data.") for key in diff_from_baseline(experiment, name))
        for seed, run in by_seed.items()
        if not _has_learned(run, experiment, references)
    ]


def _get_count_references(experiment: Experiment, corpus: CorpusFile) -> Mapping[str, float]:
    """Return the loss of token counts, or the accuracy of the most common class, on each primary split."""
    if experiment.primary.metric == "accuracy":
        by_split = corpus.count_baselines.get("most common class", {})
    else:
        by_split = corpus.count_losses.get("unigram", {})
    return {split: by_split[split] for split in resolve_split(corpus, experiment.primary.split) if split in by_split}


def _has_learned(run: Run, experiment: Experiment, references: Mapping[str, float]) -> bool:
    """Return whether a run predicts better than counts on any split. Non-finite scores are left to the audits."""
    for split, reference in references.items():
        scores = run.result.scores.get(split)
        if scores is None or not np.isfinite(scores.loss):
            return True
        if experiment.primary.metric == "accuracy":
            if scores.accuracy is None or scores.accuracy > reference:
                return True
        elif scores.loss < reference:
            return True
    return not references
