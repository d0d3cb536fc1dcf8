"""Verdicts on the primary and secondary evaluation sets, and in comparisons among variants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.loading import diff_from_baseline
from headtohead.experiment.error_budget import has_analysis, is_analysed
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import ComparisonFindings, CorpusFile, FailureRecord
from headtohead.findings.comparability import add_settings, compare_runs
from headtohead.findings.evaluation_sets import (
    EvaluationSet,
    ScoreUnit,
    has_finite_scores,
    resolve_split,
    select_evaluation_sets,
    stack_scores,
)
from headtohead.verdict.compare import ErrorBudget, compare_scores, remove_judgements
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores


@dataclass(frozen=True)
class JudgedVariants:
    """All verdicts in an experiment."""

    primary_set: EvaluationSet
    primary: list[Verdict]
    secondary: dict[str, list[Verdict]]
    comparisons: list[ComparisonFindings]

    @property
    def pairwise(self) -> dict[tuple[str, str], Verdict]:
        """Return the verdicts on the comparisons, keyed by (baseline, variant)."""
        return {
            (comparison.baseline, verdict.variant): verdict
            for comparison in self.comparisons
            for verdict in comparison.verdicts
        }


@dataclass(frozen=True)
class Judge:
    """Computes verdicts, and withholds those on variants for which there is a reason to do so."""

    experiment: Experiment
    finished_runs: FinishedRuns
    corpus: CorpusFile
    withheld_reasons: Mapping[str, Sequence[str]]
    lost: Sequence[FailureRecord]
    budget: ErrorBudget
    is_live: bool = False
    """do not judge differences that have not been analysed with as many seeds"""

    def judge_all(self) -> JudgedVariants:
        """Judge the variants on every evaluation set, and the comparisons on the primary one."""
        primary_set, *secondary_sets = select_evaluation_sets(self.experiment, self.corpus)
        primary = self.judge(primary_set, self.finished_runs)
        comparisons = []
        for comparison in self.experiment.comparisons:
            if comparison.baseline == BASELINE:  # the same comparison has the same interval wherever it is shown
                verdicts = [verdict for verdict in primary if verdict.variant in comparison.variants]
            else:
                runs = {name: self.finished_runs[name] for name in (comparison.baseline, *comparison.variants)}
                verdicts = self.judge(primary_set, runs, comparison.baseline)
                verdicts = [replace(row, is_exploratory=not comparison.confirmatory) for row in verdicts]
            comparisons.append(ComparisonFindings(**dict(comparison), verdicts=tuple(verdicts)))
        secondary = {
            str(evaluation_set): [
                replace(verdict, is_exploratory=True) for verdict in self.judge(evaluation_set, self.finished_runs)
            ]
            for evaluation_set in secondary_sets
        }
        return JudgedVariants(primary_set, primary, secondary, comparisons)

    def judge(
        self, evaluation_set: EvaluationSet, finished_runs: FinishedRuns, reference: str = BASELINE
    ) -> list[Verdict]:
        """Return a verdict for each variant, compared with `reference`.

        The list is empty if the reference has no finished run. Variants with non-finite scores get no numbers; the
        finite-score audit withholds their verdicts.
        """
        metric = self.experiment.primary.metric
        if not finished_runs[reference]:
            return []
        withheld = {
            name: list(reasons)
            for name, reasons in self.withheld_reasons.items()
            if name in finished_runs and name != reference
        }
        units: dict[str, ScoreUnit] = {}
        for name, by_seed in finished_runs.items():
            if name == reference:
                continue
            if not by_seed:  # a variant without any run is listed among the failures
                units |= {name: ScoreUnit()} if self._list_lost_seeds(name) else {}
                continue
            unit = self.compare_texts(name, evaluation_set, finished_runs[reference])
            if isinstance(unit, ScoreUnit):
                runs = finished_runs[reference], by_seed
                if all(has_finite_scores(side, self.corpus, evaluation_set.split, metric) for side in runs):
                    units[name] = unit
                else:
                    withheld.setdefault(name, [])  # the finite-score audit gives the reason
            elif unit not in withheld.setdefault(name, []):
                withheld[name].append(unit)

        def stack(name: str, unit: ScoreUnit) -> Scores:
            """Return a variant's scores, excluding its lost runs."""
            runs = finished_runs[name] or finished_runs[reference]  # without any run, the reference's examples are used
            scores = stack_scores(runs, self.corpus, evaluation_set, metric, unit)
            lost = self._list_lost_seeds(name)
            seeds = tuple(seed for seed in finished_runs[name] if seed not in lost)
            rows = [scores.seeds.index(seed) for seed in seeds]
            return replace(scores, seeds=seeds, values=scores.values[rows], lost=lost)

        references = {unit: stack(reference, unit) for unit in units.values()}
        scores = {name: stack(name, unit) for name, unit in units.items()}
        title = "the baseline" if reference == BASELINE else reference
        for reason in self.withheld_reasons.get(reference, ()):
            for name in (name for name, by_seed in finished_runs.items() if by_seed and name != reference):
                if reason not in withheld.setdefault(name, []):  # a leak in data shared by both is stated once
                    withheld[name].append(f"{title} {reason}")
        verdicts = compare_scores(
            {name: references[unit] for name, unit in units.items()},
            scores,
            metric=metric,
            equivalence_margin=self.experiment.equivalence_margin,
            withheld=withheld,
            budget=self.budget,
        )
        verdicts = [verdict for row in verdicts for verdict in self._remove_judgement(row)]
        verdicts.sort(key=lambda verdict: [*finished_runs].index(verdict.variant))
        return [
            replace(verdict, summary=re.sub("(?i)(perplexity)", r"\1 per byte", verdict.summary))
            if verdict.variant in units and units[verdict.variant].per_byte
            else verdict
            for verdict in verdicts
        ]

    def _remove_judgement(self, verdict: Verdict) -> list[Verdict]:
        """Return the verdict, without its judgement if this is a quick look or the analysis is not due yet."""
        if self.experiment.quick:
            return remove_judgements([verdict])
        if self.is_live and is_analysed(verdict) and not has_analysis(self.budget, verdict):
            return remove_judgements([verdict], "so far")
        return [verdict]

    def _list_lost_seeds(self, variant: str) -> tuple[int, ...]:
        """Return the seeds of the variant's lost runs."""
        return tuple(sorted({record.seed for record in self.lost if record.variant == variant}))

    def compare_texts(
        self, variant: str, evaluation_set: EvaluationSet, reference: Mapping[int, Run]
    ) -> ScoreUnit | str:
        """Return the unit in which a variant can be compared with the reference runs, or the reason why it cannot."""
        by_example = evaluation_set.rows == "unseen" or self.experiment.primary.metric == "accuracy"
        splits = resolve_split(self.corpus, evaluation_set.split)
        unit = compare_runs(reference, self.finished_runs[variant], splits, by_example=by_example)
        return add_settings(unit, diff_from_baseline(self.experiment, variant)) if isinstance(unit, str) else unit

    def select_same_text(self, evaluation_set: EvaluationSet) -> FinishedRuns:
        """Return the runs of variants that predict the same tokens as the baseline on this set."""
        return {
            name: by_seed
            for name, by_seed in self.finished_runs.items()
            if by_seed
            and self.compare_texts(name, evaluation_set, self.finished_runs[BASELINE]) in (ScoreUnit(), ScoreUnit(True))
        }
