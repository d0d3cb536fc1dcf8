"""Collect the scores of every seed: per split, on the primary evaluation set, during training, and per class."""

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
from headtohead.findings.evaluation_sets import EvaluationSet, has_leaked_rows, resolve_split
from headtohead.findings.example_scores import has_finite_example_scores, stack_example_scores

MAX_CONFUSION_LABELS = 1000
"""larger confusion matrices are omitted: they are unreadable and use too much memory"""


def collect_seed_scores(
    finished_runs: FinishedRuns, corpus: CorpusFile, variants_on_same_text: Container[str]
) -> dict[str, ScoresBySeed]:
    """Return the final scores of all seeds as {variant: {split: [(seed, score), ...]}}.

    A split with leaked rows has a second entry for its unseen rows, if the variant is in `variants_on_same_text`,
    those that predict the same text as the baseline.
    """
    scores: dict[str, ScoresBySeed] = {}
    for name, runs_by_seed in finished_runs.items():
        variant_scores = scores.setdefault(name, {})
        for seed, run in runs_by_seed.items():
            metric = run.result.metric
            for split, split_scores in run.result.scores.items():
                value = split_scores.get_metric(metric)
                if value is None:
                    raise ValueError(f"{run.folder}: no {metric} on {split}")
                variant_scores.setdefault(split, []).append((seed, value))
                is_finite = has_finite_example_scores({seed: run}, corpus, split, metric)
                if name in variants_on_same_text and is_finite and has_leaked_rows(corpus, split):
                    unseen_set = EvaluationSet(split, "unseen")
                    unseen_scores = stack_example_scores({seed: run}, corpus, unseen_set, metric)
                    mean = float(unseen_scores.values.sum() / unseen_scores.weights.sum())
                    value = mean if metric == "accuracy" else math.exp(mean)
                    variant_scores.setdefault(str(unseen_set), []).append((seed, value))
    return scores


def compute_primary_scores(
    finished_runs: FinishedRuns, corpus: CorpusFile, evaluation_set: EvaluationSet, metric: str
) -> ScoresBySeed:
    """Return the scores of all seeds on the primary evaluation set; NaN if a score of the variant is not finite."""
    scores_by_variant = {}
    for name, runs_by_seed in finished_runs.items():
        if not has_finite_example_scores(runs_by_seed, corpus, evaluation_set.split, metric):
            scores_by_variant[name] = [(seed, math.nan) for seed in runs_by_seed]
        elif runs_by_seed:
            scores = stack_example_scores(runs_by_seed, corpus, evaluation_set, metric)
            means = scores.values.sum(1) / scores.weights.sum()
            values = means if metric == "accuracy" else np.exp(means)
            scores_by_variant[name] = [(seed, float(value)) for seed, value in zip(scores.seeds, values, strict=True)]
    return scores_by_variant


def collect_learning_curves(finished_runs: FinishedRuns, metric: str | None = None) -> Curves:
    """Return the scores of every seed during training as {variant: {split: {seed: [(step, value), ...]}}}.

    `metric` defaults to the task's metric.
    """
    curves: Curves = {}
    for name, runs_by_seed in finished_runs.items():
        variant_curves = curves.setdefault(name, {})
        for seed, run in runs_by_seed.items():
            for line in run.metrics:
                value = line.get_metric(metric or run.result.metric)
                point = (line.step, value if math.isfinite(value) else None)
                variant_curves.setdefault(line.split, {}).setdefault(str(seed), []).append(point)
    return curves


def collect_training_times(finished_runs: FinishedRuns) -> dict[str, dict[str, list[StepScore]]]:
    """Return, for plots of scores during training, the time at each evaluation of every seed."""
    return {
        name: {
            str(seed): list({line.step: (line.step, line.seconds) for line in run.metrics}.values())
            for seed, run in runs_by_seed.items()
        }
        for name, runs_by_seed in finished_runs.items()
    }


def get_steps_per_epoch(experiment: Experiment, finished_runs: FinishedRuns) -> int | None:
    """Return the baseline's number of steps per epoch if the file specifies training in epochs, otherwise None."""
    if not experiment.training.is_counted_in_epochs:
        return None
    return next((run.start.steps_per_epoch for run in finished_runs[BASELINE].values()), None)


def collect_final_losses_by_axis_value(experiment: Experiment, finished_runs: FinishedRuns) -> AxisFindings | None:
    """Return the final training loss of every variant's seeds, by its value of the setting `axis`.

    Returns None if the experiment names no such setting.
    """
    if experiment.axis is None:
        return None
    axis_values: dict[str, int | float] = {}
    loss_estimates: dict[str, SeedEstimate] = {}
    for name, runs_by_seed in finished_runs.items():
        for run in runs_by_seed.values():
            setting: JsonValue = run.trial.model_dump(mode="json")
            for key in experiment.axis.split("."):
                setting = setting.get(key) if isinstance(setting, dict) else None
            if isinstance(setting, int | float):
                axis_values[name] = setting
        last_losses = [_require_final_loss(run.result.training.last_loss) for run in runs_by_seed.values()]
        loss_estimates[name] = SeedEstimate(
            mean=statistics.fmean(last_losses) if last_losses else None,
            interval=compute_average_interval("loss", last_losses),
        )
    return AxisFindings(setting=experiment.axis, values=axis_values, last_loss=loss_estimates)


def _require_final_loss(loss: float | None) -> float:
    """Return a run's final training loss; raise ValueError if it is None."""
    if loss is None:
        raise ValueError("the last training loss of a finished run is missing")
    return loss


def compute_confusion_matrices(finished_runs: FinishedRuns, corpus: CorpusFile) -> ConfusionMatrices | None:
    """Return each variant's scores per class: counts of held-out rows (true by predicted class), summed over seeds."""
    labels = corpus.labels
    if not 0 < len(labels) <= MAX_CONFUSION_LABELS:
        return None
    matrices = {}
    for name, runs_by_seed in finished_runs.items():
        counts = np.zeros((len(labels), len(labels)), dtype=int)
        for run in runs_by_seed.values():
            for split in resolve_split(corpus, "test"):
                class_pairs = zip(run.scores[f"{split}.labels"], run.scores[f"{split}.guessed"], strict=True)
                for true_class, predicted_class in class_pairs:
                    if true_class < 0 or predicted_class < 0:
                        raise ValueError(f"invalid class index {min(true_class, predicted_class)}")
                    counts[int(true_class), int(predicted_class)] += 1
        matrices[name] = counts.tolist()
    return ConfusionMatrices(labels=labels, matrices=matrices)
