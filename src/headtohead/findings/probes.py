"""Results other than scores: audits, samples, probe sentences, length generalization and failures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headtohead.audit.result import CheckResult
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import (
    FailureRecord,
    LengthGeneralization,
    LengthResult,
    LengthSummary,
    SeedSample,
    TextScore,
)
from headtohead.experiment.seed_average import average_over_seeds, compute_average_interval

MAX_SAMPLE_SEEDS = 3


def read_audits(runs_by_seed: Mapping[int, Run], required: Sequence[str]) -> list[CheckResult]:
    """Return a variant's audits: for each check, the worst result across seeds.

    A required check that is missing or has no outcome for some seed counts as failed, and the result says what to do.
    """
    worst: dict[str, CheckResult] = {}
    for seed, run in runs_by_seed.items():
        audits = {audit.name: audit for audit in run.audits or ()}
        for name in required:
            if name not in audits or audits[name].passed is None:
                audits[name] = _build_missing_audit(name, audits.get(name), seed)
        for name, audit in audits.items():
            if name not in worst or _rank_outcome(audit) < _rank_outcome(worst[name]):
                worst[name] = audit
    return list(worst.values())


def _rank_outcome(audit: CheckResult) -> int:
    return 2 if audit.passed is None else int(audit.passed)


def _build_missing_audit(name: str, audit: CheckResult | None, seed: int) -> CheckResult:
    """Return a failed result for a required check that has no outcome."""
    observation = f"seed {seed}: {audit.observation}" if audit else f"audits.json of seed {seed} does not contain it"
    interpretation = audit.interpretation if audit else "Remove the run and train it again with --resume."
    reason = f"has no result of the required audit {name} for seed {seed}"
    return CheckResult(name, False, "", observation, interpretation, is_blocking=True, failure_reason=reason)


def collect_failures(
    runs: ExperimentRuns, finished_runs: FinishedRuns, lost: Sequence[FailureRecord]
) -> list[FailureRecord]:
    """Return the lost runs, followed by the trials without a result."""
    failures = list(lost)
    lost_runs = {(record.variant, record.seed) for record in lost}
    for name in runs.experiment.names:
        for seed in runs.seeds(name):
            if seed not in finished_runs[name] and (name, seed) not in lost_runs:
                failure = runs.run(name, seed).failure
                message = failure.message if failure else "not finished"
                failures.append(FailureRecord(variant=name, seed=seed, message=message))
    return failures


def collect_samples(runs_by_seed: Mapping[int, Run]) -> list[SeedSample]:
    """Return the continuations that the first few seeds generate for the probe prompts."""
    return [
        SeedSample(prompt=sample.prompt, text=sample.text, seed=seed)
        for seed, run in list(runs_by_seed.items())[:MAX_SAMPLE_SEEDS]
        for sample in run.probes.samples
    ]


def collect_sentence_results(runs_by_seed: Mapping[int, Run]) -> dict[str, dict[str, float | tuple[str, float]]]:
    """Return {sentence: {seed: result}}, where a result is a perplexity, or a class with its confidence."""
    results: dict[str, dict[str, float | tuple[str, float]]] = {}
    for seed, run in runs_by_seed.items():
        for name, result in run.probes.sentences.items():
            results.setdefault(name, {})[str(seed)] = (
                result.perplexity if isinstance(result, TextScore) else (result.label, result.confidence)
            )
    return results


@dataclass
class _LengthScores:
    """Scores and timings at one input length, with one entry per seed."""

    scores: list[float] = field(default_factory=list)
    seconds_per_1000_tokens: list[float] = field(default_factory=list)
    error: str | None = None


def summarize_length_generalization(runs_by_seed: Mapping[int, Run]) -> LengthGeneralization:
    """Return the scores and costs at different input lengths, pooled over held-out splits and averaged over seeds."""
    scores_by_length: dict[int, _LengthScores] = {}
    metric = next((run.result.metric for run in runs_by_seed.values()), "perplexity")
    for run in runs_by_seed.values():
        for context in dict.fromkeys(result.context for result in run.lengths.contexts):
            split_results = [result for result in run.lengths.contexts if result.context == context]
            entry = scores_by_length.setdefault(context, _LengthScores())
            if errors := [result.error for result in split_results if result.error is not None]:
                entry.error = errors[0]
                continue
            entry.scores.append(_pool_splits(split_results, run.result.metric))
            entry.seconds_per_1000_tokens.append(
                statistics.fmean(_require(result.seconds_per_1000_tokens) for result in split_results)
            )
    contexts = [
        LengthSummary(
            context=context,
            value=average_over_seeds(metric, entry.scores) if entry.scores else None,
            interval=compute_average_interval(metric, entry.scores),
            seconds_per_1000_tokens=min(entry.seconds_per_1000_tokens, default=None),
            error=entry.error,
        )
        for context, entry in scores_by_length.items()
    ]
    costs = next((run.lengths.costs for run in runs_by_seed.values() if run.lengths.costs), [])
    return LengthGeneralization(contexts=contexts, costs=costs)


def _pool_splits(split_results: Sequence[LengthResult], metric: str) -> float:
    """Return the metric at one input length, averaged over all splits with their prediction counts as weights."""
    values = [result.accuracy if metric == "accuracy" else result.loss for result in split_results]
    counts = [_require(result.count) for result in split_results]
    mean = sum(_require(value) * count for value, count in zip(values, counts, strict=True)) / sum(counts)
    return mean if metric == "accuracy" else math.exp(mean)


def _require(value: float | None) -> float:
    """Return the value; raise ValueError if it is None."""
    if value is None:
        raise ValueError("a score is missing")
    return value
