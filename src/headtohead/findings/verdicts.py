"""Compute verdicts: on the primary and secondary evaluation sets, and in comparisons among variants."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.config.trial_settings import diff_settings_from_baseline
from headtohead.experiment.recorded_analyses import has_recorded_analysis, is_analysis, read_alpha_budget
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns, Run
from headtohead.experiment.schemas import ComparisonFindings, CorpusFile, FailureRecord
from headtohead.findings.comparability import add_settings_to_reason, choose_score_unit
from headtohead.findings.evaluation_sets import EvaluationSet, resolve_split, select_evaluation_sets
from headtohead.findings.example_scores import ScoreUnit, has_finite_example_scores, stack_example_scores
from headtohead.verdict.compare import compare_scores, mark_as_quick_looks
from headtohead.verdict.decision_rule import CANNOT_TELL, NOT_COMPARABLE, QUICK_LOOK
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.tuning_variance import TuningVariance

TUNED_SENTENCE = "Each side is judged at its own optimum; the interval includes the noise of choosing it."
RANK_SENTENCE = "Ranks do not include the noise of choosing each side's optimum, so lost runs leave this verdict open."
MORE_TUNING_SENTENCE = "More tuning seeds (tune.seeds, in a new folder) would narrow it."
UNMEASURED_CHOICE_SENTENCE = (
    "This holds at the chosen settings: one tuning seed does not show how much a different choice would change it."
)


@dataclass(frozen=True)
class ExperimentVerdicts:
    """All verdicts in an experiment."""

    primary_set: EvaluationSet
    primary: list[Verdict]
    secondary: dict[str, list[Verdict]]
    """verdicts by secondary evaluation set"""
    comparisons: list[ComparisonFindings]

    @property
    def by_variant_pair(self) -> dict[tuple[str, str], Verdict]:
        """The verdicts of comparisons among variants, keyed by (baseline, variant)."""
        return {
            (comparison.baseline, verdict.variant): verdict
            for comparison in self.comparisons
            for verdict in comparison.verdicts
        }


def load_error_budget(runs: ExperimentRuns) -> AlphaBudget:
    """Return the error budget that all confirmatory verdicts of an experiment share."""
    experiment = runs.experiment
    num_other_comparisons = _count_comparisons_among_variants(experiment)
    return read_alpha_budget(runs.folder, experiment.variants, experiment.max_seeds, num_other_comparisons)


def _count_comparisons_among_variants(experiment: Experiment) -> int:
    """Return the number of confirmatory verdicts beyond those on each variant against the baseline."""
    num_comparisons = sum(
        len(comparison.variants)
        for comparison in experiment.comparisons
        if comparison.confirmatory and comparison.baseline != BASELINE
    )
    return num_comparisons + sum(claim.confirmatory and claim.needs_own_comparison for claim in experiment.claims)


@dataclass(frozen=True)
class VerdictBuilder:
    """Computes the verdicts of an experiment, and withholds those on variants for which there is a reason to do so."""

    experiment: Experiment
    finished_runs: FinishedRuns
    corpus: CorpusFile
    withheld_reasons: Mapping[str, Sequence[str]]
    lost_runs: Sequence[FailureRecord]
    error_budget: AlphaBudget
    tuning_variances: Mapping[str, TuningVariance] = field(default_factory=dict)
    """the error of choosing the settings of the baseline and of each variant, in a tuned comparison"""
    is_live: bool = False
    """do not judge differences that have not been analyzed with as many seeds"""

    def build_all_verdicts(self) -> ExperimentVerdicts:
        """Judge the variants on every evaluation set, and the comparisons among variants on the primary one."""
        primary_set, *secondary_sets = select_evaluation_sets(self.experiment, self.corpus)
        primary_verdicts = self.build_verdict_cards(primary_set, self.finished_runs)
        comparisons = []
        for comparison in self.experiment.comparisons:
            if comparison.baseline == BASELINE:  # the same comparison has the same interval wherever it is shown
                verdicts = [verdict for verdict in primary_verdicts if verdict.variant in comparison.variants]
            else:
                compared_runs = {name: self.finished_runs[name] for name in (comparison.baseline, *comparison.variants)}
                verdicts = self.build_verdict_cards(primary_set, compared_runs, comparison.baseline)
                verdicts = [replace(verdict, is_exploratory=not comparison.confirmatory) for verdict in verdicts]
            comparisons.append(ComparisonFindings(**dict(comparison), verdicts=tuple(verdicts)))
        secondary_verdicts = {
            str(evaluation_set): [
                replace(verdict, is_exploratory=True)
                for verdict in self.build_verdict_cards(evaluation_set, self.finished_runs)
            ]
            for evaluation_set in secondary_sets
        }
        return ExperimentVerdicts(primary_set, primary_verdicts, secondary_verdicts, comparisons)

    def build_verdict_cards(
        self, evaluation_set: EvaluationSet, finished_runs: FinishedRuns, reference: str = BASELINE
    ) -> list[Verdict]:
        """Return a verdict for each variant, compared with `reference`.

        The list is empty if the reference has no finished run. Variants with non-finite scores get no numbers; the
        finite-score audit withholds their verdicts.
        """
        metric = self.experiment.primary.metric
        if not finished_runs[reference]:
            return []
        withheld_reasons = {
            name: list(reasons)
            for name, reasons in self.withheld_reasons.items()
            if name in finished_runs and name != reference
        }
        score_units: dict[str, ScoreUnit] = {}
        for name, runs_by_seed in finished_runs.items():
            if name == reference:
                continue
            if not runs_by_seed:  # a variant without any run is listed among the failures
                score_units |= {name: ScoreUnit()} if self._list_lost_seeds(name) else {}
                continue
            unit = self.choose_variant_unit(name, evaluation_set, finished_runs[reference])
            if isinstance(unit, ScoreUnit):
                compared_runs = finished_runs[reference], runs_by_seed
                if all(
                    has_finite_example_scores(runs, self.corpus, evaluation_set.split, metric) for runs in compared_runs
                ):
                    score_units[name] = unit
                else:
                    withheld_reasons.setdefault(name, [])  # the finite-score audit gives the reason
            elif unit not in withheld_reasons.setdefault(name, []):
                withheld_reasons[name].append(unit)

        def stack_without_lost_runs(name: str, unit: ScoreUnit) -> Scores:
            """Return a variant's scores, excluding its lost runs."""
            runs = finished_runs[name] or finished_runs[reference]  # without any run, the reference's examples are used
            scores = stack_example_scores(runs, self.corpus, evaluation_set, metric, unit)
            lost_seeds = self._list_lost_seeds(name)
            seeds = tuple(seed for seed in finished_runs[name] if seed not in lost_seeds)
            seed_indices = [scores.seeds.index(seed) for seed in seeds]
            return replace(scores, seeds=seeds, values=scores.values[seed_indices], lost=lost_seeds)

        reference_scores = {unit: stack_without_lost_runs(reference, unit) for unit in score_units.values()}
        variant_scores = {name: stack_without_lost_runs(name, unit) for name, unit in score_units.items()}
        reference_title = "the baseline" if reference == BASELINE else reference
        for reason in self.withheld_reasons.get(reference, ()):
            for name in (name for name, runs_by_seed in finished_runs.items() if runs_by_seed and name != reference):
                if reason not in withheld_reasons.setdefault(name, []):  # a leak in data shared by both is stated once
                    withheld_reasons[name].append(f"{reference_title} {reason}")
        verdicts = compare_scores(
            {name: reference_scores[unit] for name, unit in score_units.items()},
            variant_scores,
            metric=metric,
            equivalence_margin=self.experiment.equivalence_margin,
            withheld=withheld_reasons,
            budget=self.error_budget,
            tuning_variances=self._combine_choice_errors(reference),
        )
        verdicts = [verdict for early_verdict in verdicts for verdict in self._hide_early_judgment(early_verdict)]
        verdicts = [self._add_tuning_sentences(verdict, reference) for verdict in verdicts]
        verdicts.sort(key=lambda verdict: [*finished_runs].index(verdict.variant))
        return [
            replace(verdict, summary=re.sub("(?i)(perplexity)", r"\1 per byte", verdict.summary))
            if verdict.variant in score_units and score_units[verdict.variant].per_byte
            else verdict
            for verdict in verdicts
        ]

    def _add_tuning_sentences(self, verdict: Verdict, reference: str) -> Verdict:
        """Return the verdict with sentences on what it says about tuned variants; unchanged without tuning."""
        if not self.experiment.tuned or verdict.outcome in (NOT_COMPARABLE, QUICK_LOOK):
            return verdict
        choice_error = self._combine_choice_errors(reference).get(verdict.variant)
        if choice_error is None:
            sentences = [UNMEASURED_CHOICE_SENTENCE]
        elif not math.isfinite(verdict.interval[0]):
            sentences = [RANK_SENTENCE] if verdict.outcome == CANNOT_TELL else []
        else:
            is_limited_by_choice = choice_error.variance > 0 and (
                verdict.additional_seeds is verdict.additional_documents is None
            )
            sentences = [TUNED_SENTENCE]
            if verdict.outcome == CANNOT_TELL and is_limited_by_choice:
                sentences.append(MORE_TUNING_SENTENCE)
        return replace(verdict, summary=" ".join([verdict.summary, *sentences]))

    def _combine_choice_errors(self, reference: str) -> dict[str, TuningVariance]:
        """Return, for each variant, the error of choosing its settings and those of the reference."""
        tuning_variances = self.tuning_variances
        if reference not in tuning_variances:
            return {}
        return {name: tuning_variances[reference].add(error) for name, error in tuning_variances.items()}

    def _hide_early_judgment(self, verdict: Verdict) -> list[Verdict]:
        """Return the verdict, without its judgment if this is a quick look or the analysis is not due yet."""
        if self.experiment.quick:
            return mark_as_quick_looks([verdict])
        if self.is_live and is_analysis(verdict) and not has_recorded_analysis(self.error_budget, verdict):
            return mark_as_quick_looks([verdict], "so far")
        return [verdict]

    def _list_lost_seeds(self, variant: str) -> tuple[int, ...]:
        """Return the seeds of the variant's lost runs."""
        return tuple(sorted({record.seed for record in self.lost_runs if record.variant == variant}))

    def choose_variant_unit(
        self, variant: str, evaluation_set: EvaluationSet, reference_runs: Mapping[int, Run]
    ) -> ScoreUnit | str:
        """Return the unit in which a variant can be compared with the reference runs, or the reason why it cannot."""
        by_example = evaluation_set.rows == "unseen" or self.experiment.primary.metric == "accuracy"
        splits = resolve_split(self.corpus, evaluation_set.split)
        unit = choose_score_unit(reference_runs, self.finished_runs[variant], splits, by_example=by_example)
        if isinstance(unit, ScoreUnit):
            return unit
        return add_settings_to_reason(unit, diff_settings_from_baseline(self.experiment, variant))

    def select_runs_on_same_text(self, evaluation_set: EvaluationSet) -> FinishedRuns:
        """Return the runs of variants that predict the same tokens as the baseline on this set."""
        return {
            name: runs_by_seed
            for name, runs_by_seed in self.finished_runs.items()
            if runs_by_seed
            and self.choose_variant_unit(name, evaluation_set, self.finished_runs[BASELINE])
            in (ScoreUnit(), ScoreUnit(by_document=True))
        }
