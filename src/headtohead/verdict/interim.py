"""Alpha spending: the error rate that an interim analysis may spend, given all previous analyses.

Seeds may be added by hand, on advice, by `seeds = "auto"` or with `--resume`. All cases are treated alike: the
significance level of an analysis depends only on the seed counts of the analyses so far. With F(n) = 1 - 2/n and the
familywise error rate alpha,

    the first analysis, at n seeds fixed before training, spends     alpha F(n)
    a later analysis, after one at k seeds, spends                   0.85 alpha (F(n) - F(k))

so all analyses together spend less than alpha. An analysis of the same runs on more test documents than the first one
counts as an analysis of proportionally more seeds. The union bound does not apply to them, because following the advice
makes n depend on the data; the factor 0.85 compensates for that. It was determined by simulation
(tests/verdict/test_interim.py): following the advice to the end gives at most 5 % false verdicts.

Analyses that are planned together, as with `seeds = "auto"`, share what a single analysis at the last seed count would
spend. After k of K seeds, (k/K)^2 of it has been spent (alpha spending, Lan and DeMets, Biometrika 70, 1983; power
family, Kim and DeMets, Biometrika 74, 1987). They are fixed before training, so here the union bound is a proof. Little
is spent early, since 3 seeds detect only very large effects at any level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from headtohead.errors import ScoresError

MIN_SEEDS = 3
"""number of seeds below which there is no interval and no verdict"""
GROWTH_FACTOR = 1.6
"""ratio of the seed counts of consecutive planned analyses"""
LATER_ANALYSIS_FACTOR = 0.85
NO_ANALYSES: Mapping[str, tuple[()]] = MappingProxyType({})


@dataclass(frozen=True)
class InterimAnalysis:
    """One analysis of a variant, after which seeds or documents may be added and the variant analyzed again.

    `num_planned_seeds` is the seed count of the last analysis that was planned together with this one; it defaults to
    this analysis's own seed count. `num_documents` is the number of test documents, or 0 if all analyses have the same.
    """

    num_seeds: int
    num_planned_seeds: int = 0
    num_documents: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_planned_seeds", max(self.num_seeds, self.num_planned_seeds))


def parse_interim_analysis(text: str) -> InterimAnalysis:
    """Return the earlier analysis that "5" or "5:30" describes on the command line: 5 seeds, 30 documents."""
    counts = text.split(":")
    if len(counts) > 2 or not all(count.isdecimal() and int(count) for count in counts):
        raise ScoresError(f"earlier analysis {text!r}; allowed: SEEDS or SEEDS:DOCUMENTS, such as 5 or 5:30")
    return InterimAnalysis(int(counts[0]), num_documents=int(counts[1]) if len(counts) == 2 else 0)


def plan_interim_analyses(max_seeds: int) -> tuple[int, ...]:
    """Return the seed counts of the analyses up to `max_seeds`, each about 1.6 times the previous one."""
    if max_seeds < MIN_SEEDS:
        raise ScoresError(f"max_seeds must be at least {MIN_SEEDS} to estimate the noise, got {max_seeds}")
    seed_counts = [max_seeds]
    while (previous := round(seed_counts[0] / GROWTH_FACTOR)) >= MIN_SEEDS:
        seed_counts.insert(0, previous)
    return tuple(seed_counts)


def compute_interim_confidence(
    num_seeds: int,
    previous_analyses: Sequence[InterimAnalysis] = (),
    *,
    num_planned_seeds: int = 0,
    num_documents: int = 0,
    num_comparisons: int = 1,
    confidence: float = 0.95,
) -> float:
    """Return the confidence level of an interval with `num_seeds` seeds after `previous_analyses`.

    The intervals for all `num_comparisons` comparisons and all analyses then hold simultaneously with probability
    `confidence`: the familywise error rate is `1 - confidence`. If a previous analysis had at least as many seeds and
    documents, this one merely repeats it, and the confidence level of that analysis is returned. `num_planned_seeds`
    and `num_documents` have the same meaning as in `InterimAnalysis`.
    """
    analyses = [*previous_analyses, InterimAnalysis(num_seeds, num_planned_seeds, num_documents)]
    seed_counts = _count_equivalent_seeds(analyses)
    repeated_indices = (index for index, (seeds, _) in enumerate(seed_counts) if seeds >= seed_counts[-1][0])
    alpha_share = _compute_alpha_share(seed_counts[: next(repeated_indices) + 1])
    return 1 - (1 - confidence) * alpha_share / num_comparisons


def _count_equivalent_seeds(analyses: Sequence[InterimAnalysis]) -> list[tuple[float, float]]:
    """Return the seeds and the planned seeds of each analysis, multiplied by the growth of its number of documents."""
    first_count = next((analysis.num_documents for analysis in analyses if analysis.num_documents), 1)
    growth = [max(analysis.num_documents / first_count, 1.0) for analysis in analyses]
    return [
        (factor * analysis.num_seeds, factor * analysis.num_planned_seeds)
        for factor, analysis in zip(growth, analyses, strict=True)
    ]


def _compute_alpha_share(seed_counts: Sequence[tuple[float, float]]) -> float:
    """Return the share of alpha that the last interim analysis spends, given the seeds of each analysis."""
    *previous, (num_seeds, num_planned) = seed_counts
    num_seeds_before_plan = next((seeds for seeds, planned in reversed(previous) if planned != num_planned), 0.0)
    plan_share = _compute_spending_function(num_planned)
    if num_seeds_before_plan:
        plan_share = LATER_ANALYSIS_FACTOR * (plan_share - _compute_spending_function(num_seeds_before_plan))
    num_previous_seeds = previous[-1][0] if previous else 0.0
    spent_share = plan_share * (num_seeds**2 - num_previous_seeds**2) / (num_planned**2 - num_seeds_before_plan**2)
    return max(spent_share, 0.0)


def _compute_spending_function(num_seeds: float) -> float:
    """Return F(n), the share of alpha that analyses of up to n seeds may spend."""
    return max(1 - 2 / num_seeds, 0.0)


@dataclass(frozen=True)
class AlphaBudget:
    """The analyses so far and the comparisons, which together share the familywise error rate alpha.

    `previous_analyses` holds each variant's earlier analyses. `num_planned_seeds` is the number of seeds at the last
    planned analysis, or 0 if none is planned. `num_comparisons` counts every comparison ever made, including those with
    variants that have since been removed; 0 means to count the variants judged now. `is_final` spends alpha entirely,
    which is valid if the data are fixed in advance and no analysis precedes or follows.
    """

    previous_analyses: Mapping[str, Sequence[InterimAnalysis]] = field(default_factory=lambda: NO_ANALYSES)
    num_planned_seeds: int = 0
    num_comparisons: int = 0
    is_final: bool = False

    def compute_confidence(self, variant_name: str, num_seeds: int, confidence: float, num_documents: int = 0) -> float:
        """Return the confidence level of a variant's interval at the next interim analysis."""
        if self.is_final:
            return 1 - (1 - confidence) / self.num_comparisons
        return compute_interim_confidence(
            num_seeds,
            self.previous_analyses.get(variant_name, ()),
            num_planned_seeds=self.num_planned_seeds if num_seeds <= self.num_planned_seeds else 0,
            num_documents=num_documents,
            num_comparisons=self.num_comparisons,
            confidence=confidence,
        )

    def add_analysis(self, variant_name: str, num_seeds: int, num_documents: int = 0) -> AlphaBudget:
        """Return the budget after one more interim analysis of a variant.

        Earlier analyses without a number of documents are assumed to have had `num_documents`.
        """
        analyses = [
            replace(analysis, num_documents=analysis.num_documents or num_documents)
            for analysis in self.previous_analyses.get(variant_name, ())
        ]
        is_repeated = any(
            analysis.num_seeds >= num_seeds and analysis.num_documents >= num_documents for analysis in analyses
        )
        if not is_repeated:
            analyses.append(InterimAnalysis(num_seeds, self.num_planned_seeds, num_documents))
        return replace(self, previous_analyses={**self.previous_analyses, variant_name: tuple(analyses)})
