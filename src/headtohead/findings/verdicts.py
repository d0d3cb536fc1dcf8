"""Verdicts on the primary and secondary evaluation sets, and in comparisons among variants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.loading import diff_from_baseline
from headtohead.experiment.run_folder import FinishedRuns, Run
from headtohead.experiment.schemas import ComparisonFindings, CorpusFile
from headtohead.findings.comparability import add_settings, compare_runs
from headtohead.findings.evaluation_sets import (
    EvaluationSet,
    ScoreUnit,
    has_finite_scores,
    resolve_split,
    select_evaluation_sets,
    stack_scores,
)
from headtohead.verdict.compare import compare_scores, remove_judgements
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores


@dataclass(frozen=True)
class JudgedVariants:
    """All verdicts of an experiment."""

    primary_set: EvaluationSet
    primary: list[Verdict]
    secondary: dict[str, list[Verdict]]
    comparisons: list[ComparisonFindings]

    @property
    def pairwise(self) -> dict[tuple[str, str], Verdict]:
        """Return the verdicts of the comparisons by (baseline, variant)."""
        return {
            (comparison.baseline, verdict.variant): verdict
            for comparison in self.comparisons
            for verdict in comparison.verdicts
        }


@dataclass(frozen=True)
class Judge:
    """Computes verdicts. Those on variants with withheld reasons are withheld."""

    experiment: Experiment
    finished: FinishedRuns
    corpus: CorpusFile
    withheld_reasons: Mapping[str, Sequence[str]]
    interim_analyses: Sequence[int]

    def judge_all(self) -> JudgedVariants:
        """Judge the variants on every evaluation set, and the comparisons on the primary one."""
        primary_set, *secondary_sets = select_evaluation_sets(self.experiment, self.corpus)
        comparisons = []
        for comparison in self.experiment.comparisons:
            runs = {name: self.finished[name] for name in (comparison.baseline, *comparison.variants)}
            verdicts = self.judge(primary_set, runs, comparison.baseline)
            comparisons.append(ComparisonFindings(**dict(comparison), verdicts=tuple(verdicts)))
        secondary = {
            str(evaluation_set): self.judge(evaluation_set, self.finished) for evaluation_set in secondary_sets
        }
        return JudgedVariants(primary_set, self.judge(primary_set, self.finished), secondary, comparisons)

    def judge(self, evaluation_set: EvaluationSet, finished: FinishedRuns, reference: str = BASELINE) -> list[Verdict]:
        """Return a verdict for each variant, compared with `reference`.

        Empty if the reference has no finished run. Variants with scores that are not finite have no numbers; the audit
        of finite scores withholds their verdicts.
        """
        metric = self.experiment.primary.metric
        if not finished[reference]:
            return []
        withheld = {
            name: list(reasons)
            for name, reasons in self.withheld_reasons.items()
            if name in finished and name != reference
        }
        units: dict[str, ScoreUnit] = {}
        for name, by_seed in finished.items():
            if name == reference or not by_seed:  # a variant without a finished run is listed among the failures
                continue
            unit = self.compare_texts(name, evaluation_set, finished[reference])
            if isinstance(unit, ScoreUnit):
                runs = finished[reference], by_seed
                if all(has_finite_scores(side, self.corpus, evaluation_set.split, metric) for side in runs):
                    units[name] = unit
                else:
                    withheld.setdefault(name, [])  # the audit of finite scores gives the reason
            elif unit not in withheld.setdefault(name, []):
                withheld[name].append(unit)

        def stack(name: str, unit: ScoreUnit) -> Scores:
            return stack_scores(finished[name], self.corpus, evaluation_set, metric, unit)

        references = {unit: stack(reference, unit) for unit in units.values()}
        scores = {name: stack(name, unit) for name, unit in units.items()}
        title = "the baseline" if reference == BASELINE else reference
        for reason in self.withheld_reasons.get(reference, ()):
            for name in (name for name, by_seed in finished.items() if by_seed and name != reference):
                if reason not in withheld.setdefault(name, []):  # a leak of data that both use is stated once
                    withheld[name].append(f"{title} {reason}")
        verdicts = compare_scores(
            {name: references[unit] for name, unit in units.items()},
            scores,
            metric=metric,
            equivalence_margin=self.experiment.equivalence_margin,
            withheld=withheld,
            interim_analyses=self.interim_analyses,
        )
        verdicts = remove_judgements(verdicts) if self.experiment.quick else verdicts
        verdicts.sort(key=lambda verdict: [*finished].index(verdict.variant))
        return [
            replace(verdict, summary=re.sub("(?i)(perplexity)", r"\1 per byte", verdict.summary))
            if verdict.variant in units and units[verdict.variant].per_byte
            else verdict
            for verdict in verdicts
        ]

    def compare_texts(
        self, variant: str, evaluation_set: EvaluationSet, reference: Mapping[int, Run]
    ) -> ScoreUnit | str:
        """Return the unit in which a variant can be compared with the runs of another, or why it cannot."""
        by_example = evaluation_set.rows == "unseen" or self.experiment.primary.metric == "accuracy"
        splits = resolve_split(self.corpus, evaluation_set.split)
        unit = compare_runs(reference, self.finished[variant], splits, by_example=by_example)
        return add_settings(unit, diff_from_baseline(self.experiment, variant)) if isinstance(unit, str) else unit

    def select_same_text(self, evaluation_set: EvaluationSet) -> FinishedRuns:
        """Return the runs of the variants whose predictions on this set are the baseline's, token by token."""
        return {
            name: by_seed
            for name, by_seed in self.finished.items()
            if by_seed
            and self.compare_texts(name, evaluation_set, self.finished[BASELINE]) in (ScoreUnit(), ScoreUnit(True))
        }
