"""The version of the verdict rule: a digest of its results on fixed experiments.

A study is up to date if the rule still gives the same numbers. Code that gives the same numbers, whatever its names,
docstrings and sentences, is the same version. The fixed experiments execute every line that can change a number
(tests/tools/test_rule_version.py).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

import numpy as np

from headtohead.verdict.compare import compare_scores
from headtohead.verdict.interim import AlphaBudget, InterimAnalysis, plan_interim_analyses
from headtohead.verdict.intervals import compute_interval, compute_seed_interval
from headtohead.verdict.lost_runs import compute_worst_rank_p_value
from headtohead.verdict.metric import MetricName
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.variance_components import estimate_variance_components

NUM_EXPERIMENTS = 96
NUM_LOST_RUNS = 48
NUM_TABLES = 100
SIGNIFICANT_DIGITS = 6
"""significant digits that are compared; other versions of numpy and scipy differ in later ones"""
METRICS: tuple[MetricName, ...] = ("perplexity", "accuracy", "loss", "score")
DOCUMENT_COUNTS = (1, 2, 3, 4, 6, 12, 30)
EXAMPLES_PER_DOCUMENT = 3
ANALYSIS_HISTORIES: tuple[tuple[InterimAnalysis, ...], ...] = (
    (),
    (InterimAnalysis(3),),
    (InterimAnalysis(3, 12), InterimAnalysis(4, 12)),
    (InterimAnalysis(3, num_documents=2),),
)
"""interim analyses before a verdict"""
PLANNED_MAX_SEEDS = (3, 8, 12, 24)


@cache
def compute_verdict_version() -> str:
    """Return a digest of the verdicts on fixed experiments and of the planned analyses."""
    rows: list[Iterable[object]] = [plan_interim_analyses(max_seeds) for max_seeds in PLANNED_MAX_SEEDS]
    verdicts = (*judge_fixed_experiments(), *judge_lost_runs())
    return _compute_digest([*rows, *map(_list_values, verdicts), *_list_rank_tests()])


@cache
def compute_interval_version() -> str:
    """Return a digest of the half-widths of both intervals for fixed tables of seeds and documents."""
    return _compute_digest(_list_half_widths())


def _compute_digest(rows: Iterable[Iterable[object]]) -> str:
    """Return a digest of rows of values."""
    text = "\n".join(" ".join(map(_format_value, row)) for row in rows)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _format_value(value: object) -> str:
    """Return a value for the digest, floats rounded to significant digits."""
    return f"{float(value):.{SIGNIFICANT_DIGITS}g}" if isinstance(value, float | np.floating) else str(value)


def _list_values(verdict: Verdict) -> list[object]:
    """Return all fields of a verdict but its sentences; intervals count as two values."""
    fields = {**vars(verdict), "summary": "", "reason": ""}
    return [item for value in fields.values() for item in (value if isinstance(value, tuple) else (value,))]


def judge_fixed_experiments() -> Iterator[Verdict]:
    """Yield verdicts on experiments of all kinds: metrics, documents, lost runs, ties, seeds and earlier analyses."""
    for index in range(NUM_EXPERIMENTS):
        rng = np.random.default_rng([index, 23])
        metric = METRICS[index % len(METRICS)]
        baseline, variant = _draw_baseline_and_variant(rng, metric)
        budget = AlphaBudget(
            {"variant": ANALYSIS_HISTORIES[rng.integers(len(ANALYSIS_HISTORIES))]},
            num_planned_seeds=int(rng.choice([0, 12])),
            num_comparisons=int(rng.choice([1, 8])),
            is_final=index % 16 == 3,
        )
        yield from compare_scores(
            baseline,
            {"variant": variant},
            metric=metric,
            equivalence_margin=float(rng.choice([0.0, 0.01, 0.1])),
            withheld={"variant": ["a reason"]} if index % 32 == 5 else {},
            budget=budget,
        )


def judge_lost_runs() -> Iterator[Verdict]:
    """Yield verdicts on variants that differ clearly from the baseline and lost some of their runs."""
    for index in range(NUM_LOST_RUNS):
        rng = np.random.default_rng([index, 25])
        num_seeds = int(rng.integers(5, 13))
        baseline = rng.standard_normal((num_seeds, 1))
        variant = baseline - rng.choice([0.5, 5]) - 0.01 * rng.standard_normal((num_seeds, 1))
        num_lost = int(rng.integers(1, num_seeds))
        scores_by_side = [
            _lose_runs(range(num_seeds), side_values, np.ones(1), (), lost)
            for side_values, lost in ((baseline, index % 2), (variant, num_lost))
        ]
        yield from compare_scores(
            scores_by_side[0], {"variant": scores_by_side[1]}, metric="loss", equivalence_margin=0.1
        )


def _list_rank_tests() -> Iterator[list[float]]:
    """Yield p values of rank tests with few and with many runs."""
    rng = np.random.default_rng(26)
    for num_runs in (4, 7, 40):
        better, worse = rng.standard_normal(num_runs) + 0.5, rng.standard_normal(num_runs)
        better[0] = np.nan
        yield [compute_worst_rank_p_value(better, worse, is_paired=is_paired) for is_paired in (False, True)]


def _draw_baseline_and_variant(rng: np.random.Generator, metric: MetricName) -> tuple[Scores, Scores]:
    """Return scores of a baseline and a variant."""
    num_seeds = int(rng.integers(2, 11))
    num_documents = int(rng.choice(DOCUMENT_COUNTS))
    num_examples = 1 if num_documents == 1 and rng.random() < 0.7 else num_documents * EXAMPLES_PER_DOCUMENT
    weights = (
        np.ones(num_examples)
        if metric == "accuracy" or num_examples == 1
        else np.ceil(rng.exponential(9, num_examples))
    )
    document_names = tuple(str(index % num_documents) for index in range(num_examples)) if rng.random() < 0.7 else ()
    effect, seed_std, document_std = rng.choice([0, 0.02, 0.5]), rng.choice([0.003, 0.1]), rng.choice([0, 0.02, 0.3])
    shared_noise = rng.normal(0, 0.05, num_seeds)[:, None] + rng.normal(0, 0.2, num_examples)
    document_effects = document_std * rng.standard_normal(num_documents)[np.arange(num_examples) % num_documents]
    rates = np.stack(
        [
            shared_noise + side * (effect + document_effects) + rng.normal(0, seed_std, (num_seeds, 1))
            for side in range(2)
        ]
    )
    if metric == "accuracy":
        values = (rates + rng.normal(0, 0.3, num_examples) > -0.5).astype(float)
        values = values if num_examples > 1 else np.clip(np.round(0.7 + rates, 2), 0, 1)
    else:
        values = (3 + rates + rng.normal(0, 0.01, rates.shape)) * weights
    has_ties = num_examples == 1 and rng.random() < 0.5
    has_other_seeds = rng.random() < 0.15
    scores_by_side = []
    for side, side_values in enumerate(np.round(values, 2) if has_ties else values):
        seeds = [seed + num_seeds * (side and has_other_seeds) for seed in range(num_seeds)]
        num_lost = int(rng.choice([0, 0, 1, 2, num_seeds]))
        scores_by_side.append(
            _lose_runs(seeds, side_values, weights, document_names, num_lost if rng.random() < 0.4 else 0)
        )
    return scores_by_side[0], scores_by_side[1]


def _lose_runs(
    seeds: Sequence[int], values: np.ndarray, weights: np.ndarray, documents: tuple[str, ...], num_lost: int
) -> Scores:
    """Return scores without those of the last runs, which are lost."""
    num_finished = max(len(seeds) - num_lost, 0)
    return Scores(
        tuple(seeds[:num_finished]), values[:num_finished], weights, (), documents, lost=tuple(seeds[num_finished:])
    )


def _list_half_widths() -> Iterator[list[float]]:
    """Yield the half-widths of tables with all numbers of documents, lengths and shares of noise."""
    for index in range(NUM_TABLES):
        rng = np.random.default_rng([index, 24])
        num_seeds, num_documents = int(rng.integers(3, 13)), int(rng.integers(1, 31))
        weights = np.exp(rng.choice([0, 0.7]) * rng.standard_normal((1, num_documents)))
        differences_per_token = rng.standard_normal((1, num_seeds, 1)) + rng.choice([0, 1, 10]) * rng.exponential(
            1, (1, 1, num_documents)
        )
        differences_per_token = differences_per_token + rng.choice([0, 1]) * rng.standard_normal(
            (1, num_seeds, num_documents)
        )
        components = estimate_variance_components(differences_per_token * weights[:, None], weights)
        for confidence in (0.95, 0.99):
            intervals = compute_interval(components, confidence), compute_seed_interval(components, confidence)
            yield [float(interval.half_width[0]) for interval in intervals]
