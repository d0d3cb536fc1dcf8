"""Collect failures: lost runs, which count as the worst result, and trials without a result.

A run is lost if it diverged, or if it predicts no better than token frequencies or the majority class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.trial_settings import diff_settings_from_baseline
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import CorpusFile, FailureRecord
from headtohead.findings.evaluation_sets import resolve_split

DIVERGENCE_ERROR = "DivergedError"
"""`kind` in failure.json if training diverged; the machine causes all other failures, and these trials run again"""


def find_lost_runs(runs: ExperimentRuns, finished_runs: FinishedRuns) -> list[FailureRecord]:
    """Return the failures that count against a variant: runs that diverged or learned nothing."""
    lost_runs = []
    for name in runs.experiment.names:
        for seed in (seed for seed in runs.seeds(name) if seed < runs.experiment.max_seeds):
            failure = None if seed in finished_runs[name] else runs.run(name, seed).failure
            if failure is not None and failure.kind == DIVERGENCE_ERROR:
                lost_runs.append(FailureRecord(variant=name, seed=seed, message=failure.message, is_lost=True))
    return lost_runs + _find_collapsed_runs(runs.experiment, runs.corpus, finished_runs)


def collect_failures(
    runs: ExperimentRuns, finished_runs: FinishedRuns, lost_runs: Sequence[FailureRecord]
) -> list[FailureRecord]:
    """Return the lost runs, followed by the trials without a result."""
    failures = list(lost_runs)
    lost_trials = {(record.variant, record.seed) for record in lost_runs}
    for name in runs.experiment.names:
        for seed in runs.seeds(name):
            if seed not in finished_runs[name] and (name, seed) not in lost_trials:
                failure = runs.run(name, seed).failure
                message = failure.message if failure else "not finished"
                failures.append(FailureRecord(variant=name, seed=seed, message=message))
    return failures


def _find_collapsed_runs(
    experiment: Experiment, corpus: CorpusFile, finished_runs: FinishedRuns
) -> list[FailureRecord]:
    """Return the finished runs that predict no better than token frequencies or the majority class.

    Return an empty list for a quick look, or if most baseline runs do no better either: in both cases, training was
    too short to tell.
    """
    reference_scores = _get_count_based_scores(experiment, corpus)
    has_baseline_learned = [_has_learned(run, experiment, reference_scores) for run in finished_runs[BASELINE].values()]
    if experiment.quick or not reference_scores or 2 * sum(has_baseline_learned) <= len(has_baseline_learned):
        return []
    reference_name = "the most common class" if experiment.primary.metric == "accuracy" else "token counts"
    return [
        FailureRecord(variant=name, seed=seed, message=f"predicts no better than {reference_name}", is_lost=True)
        for name, runs_by_seed in finished_runs.items()
        if not any(key.startswith("data.") for key in diff_settings_from_baseline(experiment, name))
        for seed, run in runs_by_seed.items()
        if not _has_learned(run, experiment, reference_scores)
    ]


def _get_count_based_scores(experiment: Experiment, corpus: CorpusFile) -> Mapping[str, float]:
    """Return the scores below which a run fails: unigram loss or majority-class accuracy on each primary split.

    A run that is no better on any of them counts as lost.
    """
    if experiment.primary.metric == "accuracy":
        score_by_split = corpus.count_baselines.get("most common class", {})
    else:
        score_by_split = corpus.count_losses.get("unigram", {})
    return {
        split: score_by_split[split]
        for split in resolve_split(corpus, experiment.primary.split)
        if split in score_by_split
    }


def _has_learned(run: Run, experiment: Experiment, reference_scores: Mapping[str, float]) -> bool:
    """Return whether a run beats the count-based score on any split; otherwise it counts as a failure."""
    for split, reference_score in reference_scores.items():
        scores = run.result.scores.get(split)
        if scores is None or not np.isfinite(scores.loss):
            return True
        if experiment.primary.metric == "accuracy":
            if scores.accuracy is None or scores.accuracy > reference_score:
                return True
        elif scores.loss < reference_score:
            return True
    return not reference_scores
