"""Compare published scores with ours, for recipes that replicate an experiment."""

from __future__ import annotations

from headtohead.config.budget import convert_to_steps
from headtohead.config.experiment import Experiment, PublishedResult
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import MetricsLine, PublishedComparison
from headtohead.experiment.seed_average import average_over_seeds, compute_average_interval


def is_original_corpus(experiment: Experiment, corpus_digest: str) -> bool:
    """Return whether the published scores were measured on this corpus; true if the file does not name their corpus."""
    return experiment.original is None or not experiment.original.corpus or experiment.original.corpus == corpus_digest


def compare_with_published(
    published: PublishedResult, finished_runs: FinishedRuns, *, is_original_data: bool
) -> PublishedComparison:
    """Return a published result with our mean over seeds, at the published step or at the end of training."""
    our_scores = []
    for run in finished_runs.get(published.variant, {}).values():
        if published.step is None:
            scores = run.result.scores.get(published.split)
            our_scores.append(scores.get_metric(published.metric) if scores else None)
        else:
            metrics_line = find_metrics_line(run, published.split, published.step)
            our_scores.append(None if metrics_line is None else getattr(metrics_line, published.metric))
    known_scores = [score for score in our_scores if score is not None]
    return PublishedComparison(
        **{**dict(published), "other_data": published.other_data or not is_original_data},
        ours=average_over_seeds(published.metric, known_scores) if known_scores else None,
        interval=compute_average_interval(published.metric, known_scores),
        seeds=len(known_scores),
    )


def find_metrics_line(run: Run, split: str, step_or_epoch: int | str) -> MetricsLine | None:
    """Return a run's metrics on a split at a step or epoch, or None if the split was not evaluated then."""
    step = convert_to_steps(step_or_epoch, run.start.steps_per_epoch)
    return next((line for line in run.metrics if line.split == split and line.step == step), None)
