"""What others published, answered: their figures beside ours, and whether their claims hold here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from headtohead.config import experiment
from headtohead.config.base import convert_to_steps
from headtohead.config.experiment import BASELINE
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import ClaimAnswer, ClaimResult, LengthResult, MetricsLine, PublishedComparison
from headtohead.experiment.seed_average import average_over_seeds, compute_average_interval
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores


def is_original_corpus(experiment: experiment.Experiment, corpus_digest: str) -> bool:
    """Are these the texts that the published figures were measured on?"""
    return experiment.original is None or not experiment.original.corpus or experiment.original.corpus == corpus_digest


def compare_with_published(
    published: experiment.PublishedResult, finished_runs: FinishedRuns, *, is_original_data: bool
) -> PublishedComparison:
    """Return a published result beside our mean over seeds, at its step or at the end of training."""
    values = []
    for run in finished_runs.get(published.variant, {}).values():
        if published.step is None:
            scores = run.result.scores.get(published.split)
            values.append(scores.get_metric(published.metric) if scores else None)
        else:
            line = _find_metrics_line(run, published.split, published.step)
            values.append(None if line is None else getattr(line, published.metric))
    known = [value for value in values if value is not None]
    return PublishedComparison(
        **{**dict(published), "other_data": published.other_data or not is_original_data},
        ours=average_over_seeds(published.metric, known) if known else None,
        interval=compute_average_interval(published.metric, known),
        seeds=len(known),
    )


def _find_metrics_line(run: Run, split: str, step_or_epoch: int | str) -> MetricsLine | None:
    """Return the metrics of a split at a step; None if it was not evaluated there."""
    step = convert_to_steps(step_or_epoch, run.start.steps_per_epoch)
    return next((line for line in run.metrics if line.split == split and line.step == step), None)


def evaluate_claims(
    experiment: experiment.Experiment,
    finished_runs: FinishedRuns,
    verdicts: Sequence[Verdict],
    other_verdicts: Mapping[str, Sequence[Verdict]],
    failure_reasons: Mapping[str, str],
    held_out_splits: Sequence[str],
    pairwise_verdicts: Mapping[tuple[str, str], Verdict] | None = None,
) -> list[ClaimResult]:
    """Each claim with the verdict that answers it. One at the end is answered by the file's comparison of the two
    (`among`) where it has one, else by the experiment's own verdict; one along the way or at another length by a
    comparison of its own, on the totals of each seed."""
    found = []
    for claim in experiment.claims:
        at_the_end = claim.step is None and claim.context is None
        pair = (claim.against, claim.variant)
        if claim.against != BASELINE or (at_the_end and claim.split is None and pair in (pairwise_verdicts or {})):
            verdict = (pairwise_verdicts or {}).get(pair)
        elif at_the_end:
            named = next((rows for name, rows in other_verdicts.items() if name == claim.split), None)
            rows = verdicts if claim.split is None else named
            verdict = next((v for v in rows or () if v.variant == claim.variant), None)
        else:
            names = [claim.split] if claim.split else list(held_out_splits)
            verdict = _compare_totals(experiment, finished_runs, claim, names, failure_reasons)
        found.append(_evaluate_claim(claim, verdict))
    return found


def _compare_totals(
    experiment: experiment.Experiment,
    finished_runs: FinishedRuns,
    claim: experiment.Claim,
    splits: Sequence[str],
    failure_reasons: Mapping[str, str],
) -> Verdict | None:
    """Along the way, the variant against the baseline at that step. On inputs of another length, the variant against
    itself at the length that it was trained with: does it keep what it can do?"""
    kind = "accuracy" if experiment.primary.metric == "accuracy" else "loss"

    def at_step(run: Run) -> list[tuple[float, float]]:
        assert claim.step is not None
        return _list_totals(
            [line for name in splits if (line := _find_metrics_line(run, name, claim.step))], kind, len(splits)
        )

    def at_length(run: Run, length: int | None) -> list[tuple[float, float]]:
        rows = [row for row in run.lengths.contexts if row.context == length and row.split in splits]
        return _list_totals([row for row in rows if row.error is None], kind, len(splits))

    variant = finished_runs.get(claim.variant, {})
    if claim.context is None:
        before, after = _stack_totals(finished_runs.get(BASELINE, {}), at_step), _stack_totals(variant, at_step)
    else:
        before = _stack_totals(variant, lambda run: at_length(run, run.trial.model.context))
        after = _stack_totals(variant, lambda run: at_length(run, claim.context))
    if before is None or after is None or not np.array_equal(before.weights, after.weights):
        return None
    barred = {name: reason for name, reason in failure_reasons.items() if name == claim.variant}
    metric, matters = experiment.primary.metric, experiment.matters
    (verdict,) = compare_scores(
        before, {claim.variant: after}, metric=metric, equivalence_margin=matters, failed_audits=barred
    )
    return verdict


def _list_totals(
    rows: Sequence[MetricsLine | LengthResult], kind: str, expected_count: int
) -> list[tuple[float, float]]:
    """Return total and count of each split; empty unless all splits are present."""
    values = [(row.accuracy if kind == "accuracy" else row.loss, row.count) for row in rows]
    totals = [(value * count, float(count)) for value, count in values if value is not None and count is not None]
    return totals if len(totals) == expected_count else []


def _stack_totals(
    runs_by_seed: Mapping[int, Run], read_totals: Callable[[Run], list[tuple[float, float]]]
) -> Scores | None:
    """The sum over texts for each seed, as a single example."""
    by_seed = {seed: pairs for seed, run in runs_by_seed.items() if (pairs := read_totals(run))}
    if not by_seed:
        return None
    values = np.array([[sum(value for value, _ in pairs)] for pairs in by_seed.values()])
    weight = sum(count for _, count in next(iter(by_seed.values())))
    return Scores(tuple(by_seed), values, np.array([float(weight)]))


def _evaluate_claim(claim: experiment.Claim, verdict: Verdict | None) -> ClaimResult:
    if verdict is None:
        is_length_claim = claim.context is not None
        reason = "the baseline cannot be tested there" if is_length_claim else "there is nothing to answer it by"
        return ClaimResult(**dict(claim), summary=reason)
    is_open = verdict.outcome == "cannot tell"
    answer: ClaimAnswer = "holds" if verdict.outcome == claim.expects else "cannot tell" if is_open else "does not hold"
    return ClaimResult(
        **dict(claim),
        answer=answer,
        outcome=verdict.outcome,
        effect=verdict.effect,
        interval=verdict.interval,
        seeds=verdict.seeds,
        summary=verdict.summary,
    )
