"""Evaluate published results: compare published scores with ours and decide whether published claims hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from headtohead.config import experiment
from headtohead.config.base import convert_to_steps
from headtohead.config.experiment import BASELINE
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import ClaimResult, LengthResult, MetricsLine, PublishedComparison
from headtohead.experiment.seed_average import average_over_seeds, compute_average_interval
from headtohead.verdict.compare import ErrorBudget, compare_scores
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import answer_claim
from headtohead.verdict.scores import Scores


def is_original_corpus(experiment: experiment.Experiment, corpus_digest: str) -> bool:
    """Return whether the corpus is the one that the published scores were measured on."""
    return experiment.original is None or not experiment.original.corpus or experiment.original.corpus == corpus_digest


def compare_with_published(
    published: experiment.PublishedResult, finished_runs: FinishedRuns, *, is_original_data: bool
) -> PublishedComparison:
    """Return a published result with our mean over seeds, at the published step or at the end of training."""
    values = []
    for run in finished_runs.get(published.variant, {}).values():
        if published.step is None:
            scores = run.result.scores.get(published.split)
            values.append(scores.get_metric(published.metric) if scores else None)
        else:
            line = _find_metrics_line(run, published.split, published.step)
            values.append(None if line is None else getattr(line, published.metric))
    known_values = [value for value in values if value is not None]
    return PublishedComparison(
        **{**dict(published), "other_data": published.other_data or not is_original_data},
        ours=average_over_seeds(published.metric, known_values) if known_values else None,
        interval=compute_average_interval(published.metric, known_values),
        seeds=len(known_values),
    )


def _find_metrics_line(run: Run, split: str, step_or_epoch: int | str) -> MetricsLine | None:
    """Return the metrics of a split at a step, or None if the split was not evaluated at that step."""
    step = convert_to_steps(step_or_epoch, run.start.steps_per_epoch)
    return next((line for line in run.metrics if line.split == split and line.step == step), None)


def evaluate_claims(
    experiment: experiment.Experiment,
    finished_runs: FinishedRuns,
    verdicts: Sequence[Verdict],
    other_verdicts: Mapping[str, Sequence[Verdict]],
    withheld_reasons: Mapping[str, Sequence[str]],
    held_out_splits: Sequence[str],
    pairwise_verdicts: Mapping[tuple[str, str], Verdict] = MappingProxyType({}),
    budget: ErrorBudget = ErrorBudget(),  # noqa: B008  # immutable
) -> list[ClaimResult]:
    """Return each claim with the verdict that answers it.

    A claim about the end of training is answered by the verdict against the baseline, or by the comparison of its two
    variants. A claim about an earlier step or another context length gets a separate comparison, on the totals of
    each seed. Unless it is confirmatory, its answer is exploratory.

    Args:
        verdicts: Verdicts on the primary metric.
        other_verdicts: Verdicts on single splits, by split.
        withheld_reasons: Why the verdict on a variant is withheld, by variant.
        held_out_splits: Splits of claims that name no split.
        pairwise_verdicts: Verdicts by (reference, variant).
        budget: What the error rate is shared by.
    """
    results = []
    for claim in experiment.claims:
        is_final = claim.step is None and claim.context is None
        if claim.baseline != BASELINE:
            verdict = pairwise_verdicts.get((claim.baseline, claim.variant))
        elif is_final:
            split_verdicts = next(
                (candidates for name, candidates in other_verdicts.items() if name == claim.split), None
            )
            candidates = verdicts if claim.split is None else split_verdicts
            verdict = next((candidate for candidate in candidates or () if candidate.variant == claim.variant), None)
        else:
            splits = [claim.split] if claim.split else list(held_out_splits)
            verdict = _compare_totals(experiment, finished_runs, claim, splits, withheld_reasons, budget)
            verdict = verdict and replace(verdict, is_exploratory=True)
        results.append(_evaluate_claim(claim, verdict))
    return results


def _compare_totals(
    experiment: experiment.Experiment,
    finished_runs: FinishedRuns,
    claim: experiment.Claim,
    splits: Sequence[str],
    withheld_reasons: Mapping[str, Sequence[str]],
    budget: ErrorBudget,
) -> Verdict | None:
    """Compare totals per seed for a claim about an earlier step or another context length.

    At an earlier step, the variant is compared with the baseline at that step. At another context length, it is
    compared with itself at its training length, which shows whether it generalizes to that length.
    """
    measure = "accuracy" if experiment.primary.metric == "accuracy" else "loss"

    def read_totals_at_step(run: Run) -> list[tuple[float, float]]:
        assert claim.step is not None
        return _list_totals(
            [line for name in splits if (line := _find_metrics_line(run, name, claim.step))], measure, len(splits)
        )

    def read_totals_at_length(run: Run, length: int | None) -> list[tuple[float, float]]:
        rows = [row for row in run.lengths.contexts if row.context == length and row.split in splits]
        return _list_totals([row for row in rows if row.error is None], measure, len(splits))

    # Choose what is compared: baseline and variant at a step, or one variant at two lengths.
    variant = finished_runs.get(claim.variant, {})
    if claim.context is None:
        reference, candidate = (
            _stack_totals(finished_runs.get(BASELINE, {}), read_totals_at_step),
            _stack_totals(variant, read_totals_at_step),
        )
    else:
        reference = _stack_totals(variant, lambda run: read_totals_at_length(run, run.trial.model.context))
        candidate = _stack_totals(variant, lambda run: read_totals_at_length(run, claim.context))
    if reference is None or candidate is None or not np.array_equal(reference.weights, candidate.weights):
        return None
    withheld = {name: reasons for name, reasons in withheld_reasons.items() if name == claim.variant}
    metric, equivalence_margin = experiment.primary.metric, experiment.equivalence_margin
    (verdict,) = compare_scores(
        reference,
        {claim.variant: candidate},
        metric=metric,
        equivalence_margin=equivalence_margin,
        withheld=withheld,
        budget=budget,
    )
    return verdict


def _list_totals(
    rows: Sequence[MetricsLine | LengthResult], measure: str, expected_count: int
) -> list[tuple[float, float]]:
    """Return (total, count) of each split that a claim is about, or an empty list if a split is missing."""
    values = [(result.accuracy if measure == "accuracy" else result.loss, result.count) for result in rows]
    totals = [(value * count, float(count)) for value, count in values if value is not None and count is not None]
    return totals if len(totals) == expected_count else []


def _stack_totals(
    runs_by_seed: Mapping[int, Run], read_totals: Callable[[Run], list[tuple[float, float]]]
) -> Scores | None:
    """Return the totals of each seed, summed over splits, as scores with a single example; None without runs."""
    totals_by_seed = {seed: totals for seed, run in runs_by_seed.items() if (totals := read_totals(run))}
    if not totals_by_seed:
        return None
    values = np.array([[sum(value for value, _ in totals)] for totals in totals_by_seed.values()])
    weight = sum(count for _, count in next(iter(totals_by_seed.values())))
    return Scores(tuple(totals_by_seed), values, np.array([float(weight)]))


def _evaluate_claim(claim: experiment.Claim, verdict: Verdict | None) -> ClaimResult:
    """Return a claim with its answer: it holds if the verdict has the outcome that it expects.

    A claim without a verdict, or whose verdict is withheld, cannot be tested.
    """
    if verdict is None:
        is_length_claim = claim.context is not None
        reason = "the baseline cannot be tested there" if is_length_claim else "there is nothing to answer it by"
        return ClaimResult(**dict(claim), summary=reason)
    answer = answer_claim(verdict.outcome, claim.expected_verdict)
    return ClaimResult(
        **dict(claim),
        answer=answer,
        is_exploratory=verdict.is_exploratory and not claim.confirmatory,
        outcome=verdict.outcome,
        effect=verdict.effect,
        interval=verdict.interval,
        seeds=verdict.seeds,
        summary=verdict.summary,
    )
