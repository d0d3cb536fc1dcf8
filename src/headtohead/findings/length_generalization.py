"""Summarize length generalization over seeds: scores and costs at context lengths other than the training length."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headtohead.experiment.run_folder import Run
from headtohead.experiment.schemas import LengthGeneralization, LengthResult, LengthSummary
from headtohead.experiment.seed_average import average_over_seeds, compute_average_interval


@dataclass
class _LengthScores:
    """Scores and timings at one context length, with one entry per seed."""

    scores: list[float] = field(default_factory=list)
    seconds_per_1000_tokens: list[float] = field(default_factory=list)
    error: str | None = None


def summarize_length_generalization(runs_by_seed: Mapping[int, Run]) -> LengthGeneralization:
    """Return the scores and costs by context length, pooled over held-out splits and averaged over seeds."""
    scores_by_length: dict[int, _LengthScores] = {}
    metric = next((run.result.metric for run in runs_by_seed.values()), "perplexity")
    for run in runs_by_seed.values():
        for context in dict.fromkeys(result.context for result in run.lengths.contexts):
            split_results = [result for result in run.lengths.contexts if result.context == context]
            length_scores = scores_by_length.setdefault(context, _LengthScores())
            if errors := [result.error for result in split_results if result.error is not None]:
                length_scores.error = errors[0]
                continue
            length_scores.scores.append(_pool_scores_over_splits(split_results, run.result.metric))
            length_scores.seconds_per_1000_tokens.append(
                statistics.fmean(_require_result(result.seconds_per_1000_tokens) for result in split_results)
            )
    contexts = [
        LengthSummary(
            context=context,
            value=average_over_seeds(metric, length_scores.scores) if length_scores.scores else None,
            interval=compute_average_interval(metric, length_scores.scores),
            seconds_per_1000_tokens=min(length_scores.seconds_per_1000_tokens, default=None),
            error=length_scores.error,
        )
        for context, length_scores in scores_by_length.items()
    ]
    costs = next((run.lengths.costs for run in runs_by_seed.values() if run.lengths.costs), [])
    return LengthGeneralization(contexts=contexts, costs=costs)


def _pool_scores_over_splits(split_results: Sequence[LengthResult], metric: str) -> float:
    """Return a run's score at one context length, averaged over splits with their prediction counts as weights."""
    split_scores = [result.accuracy if metric == "accuracy" else result.loss for result in split_results]
    counts = [_require_result(result.count) for result in split_results]
    total = sum(_require_result(score) * count for score, count in zip(split_scores, counts, strict=True))
    mean = total / sum(counts)
    return mean if metric == "accuracy" else math.exp(mean)


def _require_result(number: float | None) -> float:
    """Return a score, count or duration of lengths.json; raise ValueError if it is None."""
    if number is None:
        raise ValueError("a score is missing")
    return number
