"""Per-seed scores: for each split, on the primary evaluation set, during training, and for each class."""

from __future__ import annotations

import math
import statistics
from collections.abc import Container

import numpy as np
from pydantic import JsonValue

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.experiment.run_folder import FinishedRuns
from headtohead.experiment.schemas import (
    AxisFindings,
    ConfusionMatrices,
    CorpusFile,
    Curves,
    ScoresBySeed,
    SeedEstimate,
)
from headtohead.experiment.schemas.base import StepScore
from headtohead.experiment.seed_average import compute_average_interval
from headtohead.findings.evaluation_sets import (
    EvaluationSet,
    has_finite_scores,
    has_leaked_rows,
    resolve_split,
    stack_scores,
)

MAX_CONFUSION_LABELS = 1000
"""larger confusion matrices are omitted: they are unreadable and use too much memory"""


def collect_scores(
    finished_runs: FinishedRuns, corpus: CorpusFile, same_text: Container[str]
) -> dict[str, ScoresBySeed]:
    """Return {variant: {split: [(seed, score), ...]}}.

    A split with leaked rows has a second entry for its unseen rows, if the variant predicts the same text as the
    baseline.
    """
    scores: dict[str, ScoresBySeed] = {}
    for name, by_seed in finished_runs.items():
        by_split = scores.setdefault(name, {})
        for seed, run in by_seed.items():
            metric = run.result.metric
            for split, split_scores in run.result.scores.items():
                value = split_scores.get_metric(metric)
                if value is None:
                    raise ValueError(f"{run.folder}: no {metric} on {split}")
                by_split.setdefault(split, []).append((seed, value))
                is_finite = has_finite_scores({seed: run}, corpus, split, metric)
                if name in same_text and is_finite and has_leaked_rows(corpus, split):
                    unseen_set = EvaluationSet(split, "unseen")
                    unseen_scores = stack_scores({seed: run}, corpus, unseen_set, metric)
                    mean = float(unseen_scores.values.sum() / unseen_scores.weights.sum())
                    value = mean if metric == "accuracy" else math.exp(mean)
                    by_split.setdefault(str(unseen_set), []).append((seed, value))
    return scores


def compute_primary_scores(
    finished_runs: FinishedRuns, corpus: CorpusFile, evaluation_set: EvaluationSet, metric: str
) -> ScoresBySeed:
    """Return every run's score on the primary evaluation set."""
    scores_by_variant = {}
    for name, by_seed in finished_runs.items():
        if not has_finite_scores(by_seed, corpus, evaluation_set.split, metric):
            scores_by_variant[name] = [(seed, math.nan) for seed in by_seed]
        elif by_seed:
            scores = stack_scores(by_seed, corpus, evaluation_set, metric)
            means = scores.values.sum(1) / scores.weights.sum()
            values = means if metric == "accuracy" else np.exp(means)
            scores_by_variant[name] = [(seed, float(value)) for seed, value in zip(scores.seeds, values, strict=True)]
    return scores_by_variant


def collect_curves(finished_runs: FinishedRuns, metric: str | None = None) -> Curves:
    """Return {variant: {split: {seed: [(step, value), ...]}}} for `metric`, which defaults to the task's metric."""
    curves: Curves = {}
    for name, by_seed in finished_runs.items():
        by_split = curves.setdefault(name, {})
        for seed, run in by_seed.items():
            for line in run.metrics:
                value = line.get_metric(metric or run.result.metric)
                point = (line.step, value if math.isfinite(value) else None)
                by_split.setdefault(line.split, {}).setdefault(str(seed), []).append(point)
    return curves


def collect_seconds_curves(finished_runs: FinishedRuns) -> dict[str, dict[str, list[StepScore]]]:
    """Return the training time at each evaluation as {variant: {seed: [(step, seconds), ...]}}."""
    return {
        name: {
            str(seed): list({line.step: (line.step, line.seconds) for line in run.metrics}.values())
            for seed, run in by_seed.items()
        }
        for name, by_seed in finished_runs.items()
    }


def get_steps_per_epoch(experiment: Experiment, finished_runs: FinishedRuns) -> int | None:
    """Return the baseline's number of steps per epoch if the file specifies training in epochs, otherwise None."""
    if not isinstance(experiment.training.steps, str):
        return None
    return next((run.start.steps_per_epoch for run in finished_runs[BASELINE].values()), None)


def collect_axis_values(experiment: Experiment, finished_runs: FinishedRuns) -> AxisFindings | None:
    """Return each variant's value for the setting that results are plotted against, and its final training loss."""
    if experiment.axis is None:
        return None
    values: dict[str, int | float] = {}
    loss_estimates: dict[str, SeedEstimate] = {}
    for name, by_seed in finished_runs.items():
        for run in by_seed.values():
            value: JsonValue = run.trial.model_dump(mode="json")
            for key in experiment.axis.split("."):
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                values[name] = value
        last_losses = [_require_loss(run.result.training.last_loss) for run in by_seed.values()]
        loss_estimates[name] = SeedEstimate(
            mean=statistics.fmean(last_losses) if last_losses else None,
            interval=compute_average_interval("loss", last_losses),
        )
    return AxisFindings(setting=experiment.axis, values=values, last_loss=loss_estimates)


def _require_loss(loss: float | None) -> float:
    """Return the loss; raise ValueError if it is None."""
    if loss is None:
        raise ValueError("the last training loss of a finished run is missing")
    return loss


def compute_confusion_matrices(finished_runs: FinishedRuns, corpus: CorpusFile) -> ConfusionMatrices | None:
    """Return the confusion matrices over the held-out rows (true by predicted class), summed over seeds."""
    labels = corpus.labels
    if not 0 < len(labels) <= MAX_CONFUSION_LABELS:
        return None
    matrices = {}
    for name, by_seed in finished_runs.items():
        counts = np.zeros((len(labels), len(labels)), dtype=int)
        for run in by_seed.values():
            for split in resolve_split(corpus, "test"):
                pairs = zip(run.scores[f"{split}.labels"], run.scores[f"{split}.guessed"], strict=True)
                for true, predicted in pairs:
                    if true < 0 or predicted < 0:
                        raise ValueError(f"invalid class index {min(true, predicted)}")
                    counts[int(true), int(predicted)] += 1
        matrices[name] = counts.tolist()
    return ConfusionMatrices(labels=labels, matrices=matrices)
