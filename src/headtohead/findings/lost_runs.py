"""Lost runs: runs that diverged, or that predict no better than token frequencies or the majority class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.loading import diff_from_baseline
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import CorpusFile, FailureRecord
from headtohead.findings.evaluation_sets import resolve_split

DIVERGED = "DivergedError"
"""`kind` of failure.json if training diverged; other failures are those of the machine and are run again"""


def find_lost_runs(runs: ExperimentRuns, finished_runs: FinishedRuns) -> list[FailureRecord]:
    """Return the runs that diverged or learned nothing. They count as failures of the variant."""
    lost = []
    for name in runs.experiment.names:
        for seed in (seed for seed in runs.seeds(name) if seed < runs.experiment.max_seeds):
            failure = None if seed in finished_runs[name] else runs.run(name, seed).failure
            if failure is not None and failure.kind == DIVERGED:
                lost.append(FailureRecord(variant=name, seed=seed, message=failure.message, is_lost=True))
    return lost + _find_collapsed_runs(runs.experiment, runs.corpus, finished_runs)


def _find_collapsed_runs(
    experiment: Experiment, corpus: CorpusFile, finished_runs: FinishedRuns
) -> list[FailureRecord]:
    """Return the finished runs that predict no better than token frequencies or the majority class.

    Return an empty list for a quick look, or if most baseline runs do no better either: in both cases, training was
    too short to tell.
    """
    references = _get_count_references(experiment, corpus)
    baseline = [_has_learned(run, experiment, references) for run in finished_runs[BASELINE].values()]
    if experiment.quick or not references or 2 * sum(baseline) <= len(baseline):
        return []
    noun = "the most common class" if experiment.primary.metric == "accuracy" else "token counts"
    return [
        FailureRecord(variant=name, seed=seed, message=f"predicts no better than {noun}", is_lost=True)
        for name, by_seed in finished_runs.items()
        if not any(key.startswith("data.") for key in diff_from_baseline(experiment, name))
        for seed, run in by_seed.items()
        if not _has_learned(run, experiment, references)
    ]


def _get_count_references(experiment: Experiment, corpus: CorpusFile) -> Mapping[str, float]:
    """Return the loss of a unigram model, or the accuracy of the majority class, on each primary split."""
    if experiment.primary.metric == "accuracy":
        by_split = corpus.count_baselines.get("most common class", {})
    else:
        by_split = corpus.count_losses.get("unigram", {})
    return {split: by_split[split] for split in resolve_split(corpus, experiment.primary.split) if split in by_split}


def _has_learned(run: Run, experiment: Experiment, references: Mapping[str, float]) -> bool:
    """Return whether a run beats the count-based reference on any split. Non-finite scores are left to the audits."""
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
