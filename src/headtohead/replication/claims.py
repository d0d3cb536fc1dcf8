"""Evaluate published claims: decide from our verdicts whether each claim holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from headtohead.config.experiment import BASELINE, Claim, Experiment
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import ClaimResult, LengthResult, MetricsLine
from headtohead.replication.published_scores import find_metrics_line
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import answer_claim
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores


def evaluate_claims(
    experiment: Experiment,
    finished_runs: FinishedRuns,
    verdicts: Sequence[Verdict],
    other_verdicts: Mapping[str, Sequence[Verdict]],
    withheld_reasons: Mapping[str, Sequence[str]],
    held_out_splits: Sequence[str],
    pairwise_verdicts: Mapping[tuple[str, str], Verdict] = MappingProxyType({}),
    budget: AlphaBudget = AlphaBudget(),  # noqa: B008  # immutable
) -> list[ClaimResult]:
    """Return each claim with the verdict that answers it.

    A claim about the end of training is answered by the verdict against the baseline, or by the comparison of its two
    variants. A claim about an earlier step or a different context length gets a separate comparison, on the totals of
    each seed. Unless it is confirmatory, its answer is exploratory.

    Args:
        verdicts: Verdicts on the primary metric.
        other_verdicts: Verdicts on the secondary evaluation sets, by split.
        withheld_reasons: Why the verdict on a variant is withheld, by variant.
        held_out_splits: The splits on which claims that name no split are evaluated.
        pairwise_verdicts: Verdicts of comparisons among variants, by (baseline, variant).
        budget: The analyses and comparisons that share the error rate.
    """
    results = []
    for claim in experiment.claims:
        is_final = claim.step is None and claim.context is None
        if claim.baseline != BASELINE:
            verdict = pairwise_verdicts.get((claim.baseline, claim.variant))
        elif is_final:
            candidates = verdicts if claim.split is None else other_verdicts.get(claim.split, ())
            verdict = next((candidate for candidate in candidates if candidate.variant == claim.variant), None)
        else:
            splits = [claim.split] if claim.split else list(held_out_splits)
            verdict = _compare_totals_per_seed(experiment, finished_runs, claim, splits, withheld_reasons, budget)
            verdict = verdict and replace(verdict, is_exploratory=True)
        results.append(_answer_claim(claim, verdict))
    return results


def _compare_totals_per_seed(
    experiment: Experiment,
    finished_runs: FinishedRuns,
    claim: Claim,
    splits: Sequence[str],
    withheld_reasons: Mapping[str, Sequence[str]],
    budget: AlphaBudget,
) -> Verdict | None:
    """Return the verdict for a claim about an earlier step or a different context length, from the totals of each seed.

    At an earlier step, the variant is compared with the baseline at that step. At a different context length, it is
    compared with itself at its training length, which shows whether it generalizes to that length.
    """
    total_metric = "accuracy" if experiment.primary.metric == "accuracy" else "loss"

    def read_totals_at_step(run: Run) -> list[tuple[float, float]]:
        assert claim.step is not None
        lines = [line for name in splits if (line := find_metrics_line(run, name, claim.step))]
        return _list_split_totals(lines, total_metric, len(splits))

    def read_totals_at_length(run: Run, length: int | None) -> list[tuple[float, float]]:
        results = [
            result
            for result in run.lengths.contexts
            if result.context == length and result.split in splits and result.error is None
        ]
        return _list_split_totals(results, total_metric, len(splits))

    # Choose what is compared: baseline and variant at a step, or one variant at two lengths.
    variant_runs = finished_runs.get(claim.variant, {})
    if claim.context is None:
        reference = _stack_totals(finished_runs.get(BASELINE, {}), read_totals_at_step)
        candidate = _stack_totals(variant_runs, read_totals_at_step)
    else:
        reference = _stack_totals(variant_runs, lambda run: read_totals_at_length(run, run.trial.model.context))
        candidate = _stack_totals(variant_runs, lambda run: read_totals_at_length(run, claim.context))
    if reference is None or candidate is None or not np.array_equal(reference.weights, candidate.weights):
        return None
    (verdict,) = compare_scores(
        reference,
        {claim.variant: candidate},
        metric=experiment.primary.metric,
        equivalence_margin=experiment.equivalence_margin,
        withheld={name: reasons for name, reasons in withheld_reasons.items() if name == claim.variant},
        budget=budget,
    )
    return verdict


def _list_split_totals(
    results: Sequence[MetricsLine | LengthResult], metric: str, expected_count: int
) -> list[tuple[float, float]]:
    """Return (total, count) of each split that a claim refers to, or an empty list if a split is missing."""
    means = [(result.accuracy if metric == "accuracy" else result.loss, result.count) for result in results]
    totals = [(mean * count, float(count)) for mean, count in means if mean is not None and count is not None]
    return totals if len(totals) == expected_count else []


def _stack_totals(
    runs_by_seed: Mapping[int, Run], read_totals: Callable[[Run], list[tuple[float, float]]]
) -> Scores | None:
    """Return the totals that a claim is judged by, summed over splits per seed, as scores with a single example."""
    totals_by_seed = {seed: totals for seed, run in runs_by_seed.items() if (totals := read_totals(run))}
    if not totals_by_seed:
        return None
    values = np.array([[sum(total for total, _ in totals)] for totals in totals_by_seed.values()])
    weight = sum(count for _, count in next(iter(totals_by_seed.values())))
    return Scores(tuple(totals_by_seed), values, np.array([float(weight)]))


def _answer_claim(claim: Claim, verdict: Verdict | None) -> ClaimResult:
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
