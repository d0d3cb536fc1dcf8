"""Contrasts: weighted sums of several comparisons, such as the slope over budgets or an interaction of two changes.

A contrast is computed per seed and document before its error is estimated, so what the comparisons share, such as the
seed, the text or the baseline, cancels where it should. Its interval follows the rule of a single comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from headtohead.config.experiment import BASELINE
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.experiment.schemas import FailureRecord
from headtohead.findings.comparability import choose_score_unit
from headtohead.findings.evaluation_sets import resolve_split, select_evaluation_sets
from headtohead.findings.example_scores import ScoreUnit, stack_example_scores
from headtohead.verdict.intervals import compute_interval
from headtohead.verdict.scores import pair_scores
from headtohead.verdict.variance_components import estimate_variance_components

MIN_CONTRAST_SEEDS = 2


@dataclass(frozen=True, eq=False)
class PairedDifferences:
    """A variant minus the baseline, per common seed and document."""

    unit: ScoreUnit
    seeds: tuple[int, ...]
    documents: tuple[str, ...]
    totals: Float[np.ndarray, "seeds documents"]
    weights: Float[np.ndarray, " documents"]

    @property
    def mean(self) -> float:
        """The mean difference on the scale of the analysis: log perplexity per token, or accuracy."""
        return float(self.totals.sum(axis=1).mean() / self.weights.sum())


@dataclass(frozen=True)
class Contrast:
    """The value of a contrast and the half width of its interval, on the scale of the analysis."""

    value: float
    half_width: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes 0."""
        return abs(self.value) > self.half_width

    @property
    def interval(self) -> tuple[float, float]:
        return self.value - self.half_width, self.value + self.half_width


def load_paired_differences(
    runs: ExperimentRuns, failures: list[FailureRecord], variant: str
) -> PairedDifferences | None:
    """Return the differences that a contrast sums, of a variant on the primary evaluation set; None without any."""
    lost_runs = {(record.variant, record.seed) for record in failures if record.is_lost}
    baseline_runs, variant_runs = (
        {seed: run for seed, run in runs.finished(name).items() if (name, seed) not in lost_runs}
        for name in (BASELINE, variant)
    )
    if not baseline_runs.keys() & variant_runs.keys():
        return None
    corpus, metric = runs.corpus, runs.experiment.primary.metric
    primary_set = select_evaluation_sets(runs.experiment, corpus)[0]
    by_example = primary_set.rows == "unseen" or metric == "accuracy"
    splits = resolve_split(corpus, primary_set.split)
    unit = choose_score_unit(baseline_runs, variant_runs, splits, by_example=by_example)
    if isinstance(unit, str):
        return None
    pairs = pair_scores(
        variant,
        stack_example_scores(baseline_runs, corpus, primary_set, metric, unit),
        stack_example_scores(variant_runs, corpus, primary_set, metric, unit),
    )
    baseline_totals, variant_totals = pairs.totals
    return PairedDifferences(
        unit=unit,
        seeds=tuple(pairs.common_seeds),
        documents=tuple(np.unique(pairs.baseline.documents).tolist()),
        totals=pairs.sum_by_document(variant_totals - baseline_totals),
        weights=pairs.sum_by_document(pairs.weights),
    )


def estimate_contrast(
    differences: Mapping[str, PairedDifferences], weights: Mapping[str, float], confidence: float = 0.95
) -> Contrast | None:
    """Return the sum of the paired differences, each multiplied by its weight, over their common seeds.

    Returns None if they were scored on different tokens, or if they have fewer than two seeds in common.
    """
    summands = [differences[name] for name in weights]
    first = summands[0]
    common_seeds = [seed for seed in first.seeds if all(seed in summand.seeds for summand in summands)]
    is_same_text = all(
        summand.unit == first.unit
        and summand.documents == first.documents
        and np.array_equal(summand.weights, first.weights)
        for summand in summands
    )
    if not is_same_text or len(common_seeds) < MIN_CONTRAST_SEEDS:
        return None
    total = np.zeros((len(common_seeds), len(first.weights)))
    for name, weight in weights.items():
        seed_indices = [differences[name].seeds.index(seed) for seed in common_seeds]
        total += weight * differences[name].totals[seed_indices]
    components = estimate_variance_components(total[None], first.weights[None])
    half_width = compute_interval(components, confidence).half_width
    return Contrast(float(components.difference[0]), float(half_width[0]))
