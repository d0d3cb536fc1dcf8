"""False verdicts in real A/A experiments: "helped" or "hurt" where both sides differ in nothing that can matter.

Seeds are fixed, added by `seeds = "auto"`, or added as the advice of each verdict says. The verdicts are those of
`compare_scores`, with the error budget that the journal of an experiment would give it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np
from scipy import stats

from headtohead.verdict import compare
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.decision_rule import HELPED, HURT, OPEN_OUTCOMES
from headtohead.verdict.interim import AlphaBudget, plan_interim_analyses
from headtohead.verdict.metric import MetricName
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores

from .aa_training import SEEDS
from .results import ResultStore

METRICS: dict[str, MetricName] = {"language model": "perplexity", "classifier": "accuracy"}
MARGINS = (0.01, 0.0)
"""equivalence margins: the default, and the strictest case"""
FIXED_SEEDS = (3, 5, 8, 12, SEEDS)
AUTO_LIMITS = (12, SEEDS)
FIRST_SEEDS = (3, 5)
"""seeds of the first analysis if advice is followed"""
VARIANT_COUNTS = {1: 5, 2: 5, 4: 5, 7: 5, 11: 4, 15: 3}
"""seeds of each variant by number of variants; all runs of an experiment are divided between them and the baseline"""
LOST_SHARE = 0.4
"""share of the runs of the variant, the worst ones, that are lost"""
LOST_RUN_SEEDS = (5, 8, 12)
ROUNDING_STEP = 0.01
TIE_SEEDS = (3, 5, 8)


ScoreChange = Callable[[Scores, Scores], tuple[Scores, Scores]]
"""a change of the scores of baseline and variant"""


@dataclass(frozen=True, eq=False)
class MeasuredExperiment:
    """Scores of both sides of an A/A experiment, (sides, seeds, examples)."""

    metric: MetricName
    values: np.ndarray
    weights: np.ndarray
    documents: tuple[str, ...]

    def get_scores(self, side: int, rows: Sequence[int]) -> Scores:
        """Return the scores of some runs of a side, numbered from 0."""
        return Scores(tuple(range(len(rows))), self.values[side, rows], self.weights, (), self.documents)

    def judge(
        self,
        num_seeds: int,
        budget: AlphaBudget,
        margin: float,
        change: ScoreChange = lambda baseline, variant: (baseline, variant),
    ) -> Verdict:
        """Return the verdict on the first seeds, whose scores `change` may change."""
        baseline, variant = change(*(self.get_scores(side, range(num_seeds)) for side in range(2)))
        (verdict,) = compare_scores(
            baseline, {"variant": variant}, metric=self.metric, equivalence_margin=margin, budget=budget
        )
        return verdict


def load_experiments(kind: str, cache: Path) -> Iterator[MeasuredExperiment]:
    """Yield all trained experiments of a kind."""
    for path in sorted((cache / kind.replace(" ", "-")).glob("[0-9]*.npz")):
        if path.name.endswith(".tmp.npz"):
            continue
        with np.load(path) as file:
            for name in [name for name in file.files if name.startswith("scores-")]:
                number = name.removeprefix("scores-")
                yield MeasuredExperiment(
                    METRICS[kind],
                    file[name].astype(float),
                    file[f"weights-{number}"].astype(float),
                    tuple(map(str, file[f"documents-{number}"])),
                )


@dataclass(frozen=True)
class FalseVerdictRow:
    """How often experiments without a true difference end in "helped" or "hurt"."""

    kind: str
    procedure: str
    margin: float
    experiments: int
    helped: int
    hurt: int
    equivalent: int
    seeds_used: float
    analyses: float

    @property
    def share(self) -> float:
        return (self.helped + self.hurt) / self.experiments

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share (Clopper and Pearson)."""
        interval = stats.binomtest(self.helped + self.hurt, self.experiments).proportion_ci()
        return float(interval.low), float(interval.high)

    @property
    def misses_target(self) -> bool:
        """Whether the share is above 5 % by more than its binomial error."""
        return self.interval[0] > 0.05


Procedure = Callable[[MeasuredExperiment, float], tuple[Verdict, int]]
"""from an experiment and a margin to the last verdict and the number of analyses"""


def skip_advice() -> AbstractContextManager[object]:
    """Skip the computation of advice, which takes most of the time of a verdict and does not influence its outcome."""
    return mock.patch.object(compare, "estimate_additional_data", return_value=compare.AdditionalData())


def judge_once(num_seeds: int, change: ScoreChange = lambda baseline, variant: (baseline, variant)) -> Procedure:
    """Return the procedure that judges once, with a fixed number of seeds."""

    def run_procedure(experiment: MeasuredExperiment, margin: float) -> tuple[Verdict, int]:
        with skip_advice():
            return experiment.judge(num_seeds, AlphaBudget(), margin, change), 1

    return run_procedure


def add_seeds_automatically(max_seeds: int) -> Procedure:
    """Return the procedure of `seeds = "auto"`."""

    def run_procedure(experiment: MeasuredExperiment, margin: float) -> tuple[Verdict, int]:
        budget, analyses = AlphaBudget(num_planned_seeds=max_seeds), plan_interim_analyses(max_seeds)
        for num_seeds in analyses:
            with skip_advice():
                verdict = experiment.judge(num_seeds, budget, margin)
            if verdict.outcome not in OPEN_OUTCOMES:
                break
            budget = budget.add_analysis("variant", num_seeds)
        return verdict, analyses.index(num_seeds) + 1

    return run_procedure


def follow_advice(first_seeds: int) -> Procedure:
    """Return the procedure that adds the advised seeds until the verdict is settled or no number is advised.

    An experiment has a limited number of runs. Advice beyond it is followed as far as runs exist.
    """

    def run_procedure(experiment: MeasuredExperiment, margin: float) -> tuple[Verdict, int]:
        budget, num_seeds, num_analyses = AlphaBudget(), first_seeds, 1
        verdict = experiment.judge(num_seeds, budget, margin)
        while verdict.outcome in OPEN_OUTCOMES and verdict.additional_seeds and num_seeds < SEEDS:
            budget = budget.add_analysis("variant", num_seeds)
            num_seeds, num_analyses = min(num_seeds + verdict.additional_seeds, SEEDS), num_analyses + 1
            verdict = experiment.judge(num_seeds, budget, margin)
        return verdict, num_analyses

    return run_procedure


def lose_worst_runs(baseline: Scores, variant: Scores) -> tuple[Scores, Scores]:
    """Return the scores after the loss of the variant's worst runs."""
    order = np.argsort(variant.compute_seed_means())
    num_lost = round(LOST_SHARE * len(order))
    worst_runs = order[-num_lost:] if variant.values.max() > 1 else order[:num_lost]  # losses, or correct answers
    remaining_seeds = [seed for seed in variant.seeds if seed not in worst_runs]
    return baseline, replace(
        variant.select_seeds(remaining_seeds), lost=tuple(int(seed) for seed in sorted(worst_runs))
    )


def round_scores(baseline: Scores, variant: Scores) -> tuple[Scores, Scores]:
    """Return one rounded score for each seed."""
    rounded_baseline, rounded_variant = (
        Scores(scores.seeds, np.round(scores.compute_seed_means() / ROUNDING_STEP)[:, None] * ROUNDING_STEP, np.ones(1))
        for scores in (baseline, variant)
    )
    return rounded_baseline, rounded_variant


PROCEDURES: dict[str, Procedure] = {
    **{f"{seeds} seeds": judge_once(seeds) for seeds in FIXED_SEEDS},
    **{f"auto, at most {limit} seeds": add_seeds_automatically(limit) for limit in AUTO_LIMITS},
    **{f"advice followed from {seeds} seeds": follow_advice(seeds) for seeds in FIRST_SEEDS},
    **{
        f"{seeds} seeds, the worst {LOST_SHARE:.0%} of the variant's runs lost": judge_once(seeds, lose_worst_runs)
        for seeds in LOST_RUN_SEEDS
    },
    **{f"{seeds} seeds, scores rounded to {ROUNDING_STEP:g}": judge_once(seeds, round_scores) for seeds in TIE_SEEDS},
}


def study_false_verdicts(store: ResultStore, kind: str, cache: Path, margin: float) -> list[FalseVerdictRow]:
    """Return a row for each procedure."""
    experiments = list(load_experiments(kind, cache))
    return [
        store.get(
            "false-verdicts",
            f"{kind}; {name}; {margin:g}; {len(experiments)}",
            FalseVerdictRow,
            lambda name=name: _run_procedure(kind, name, margin, experiments),  # type: ignore[misc]
        )
        for name in PROCEDURES
    ]


def _run_procedure(kind: str, name: str, margin: float, experiments: Sequence[MeasuredExperiment]) -> FalseVerdictRow:
    """Judge all experiments by one procedure."""
    results = [PROCEDURES[name](experiment, margin) for experiment in experiments]
    outcomes = [verdict.outcome for verdict, _ in results]
    return FalseVerdictRow(
        kind,
        name,
        margin,
        len(experiments),
        outcomes.count(HELPED),
        outcomes.count(HURT),
        outcomes.count("no practical difference"),
        float(np.mean([verdict.runs for verdict, _ in results])),
        float(np.mean([count for _, count in results])),
    )


@dataclass(frozen=True)
class FamilyRow:
    """How often at least one of several variants without a true difference is judged "helped" or "hurt"."""

    kind: str
    variants: int
    seeds: int
    experiments: int
    false: int

    @property
    def share(self) -> float:
        return self.false / self.experiments

    @property
    def interval(self) -> tuple[float, float]:
        interval = stats.binomtest(self.false, self.experiments).proportion_ci()
        return float(interval.low), float(interval.high)

    @property
    def misses_target(self) -> bool:
        return self.interval[0] > 0.05


def study_families(store: ResultStore, kind: str, cache: Path) -> list[FamilyRow]:
    """Return a row for each number of variants.

    All runs of an A/A experiment are exchangeable. They are divided into a baseline and several variants with the same
    number of runs each.
    """
    experiments = list(load_experiments(kind, cache))
    return [
        store.get(
            "families",
            f"{kind}; {variants}; {seeds}; {len(experiments)}",
            FamilyRow,
            lambda variants=variants, seeds=seeds: FamilyRow(  # type: ignore[misc]
                kind,
                variants,
                seeds,
                len(experiments),
                sum(has_false_verdict(experiment, variants, seeds) for experiment in experiments),
            ),
        )
        for variants, seeds in VARIANT_COUNTS.items()
    ]


def has_false_verdict(experiment: MeasuredExperiment, variants: int, seeds: int) -> bool:
    """Return whether any of several equal variants, each with `seeds` runs, is judged "helped" or "hurt"."""
    run_groups = [
        experiment.get_scores(side, range(first, first + seeds))
        for side in range(2)
        for first in range(0, SEEDS - seeds + 1, seeds)
    ]
    with skip_advice():
        verdicts = compare_scores(
            run_groups[0],
            {str(index): run_scores for index, run_scores in enumerate(run_groups[1 : variants + 1])},
            metric=experiment.metric,
            equivalence_margin=0.0,
        )
    assert len(verdicts) == variants
    return any(verdict.outcome in (HELPED, HURT) for verdict in verdicts)
