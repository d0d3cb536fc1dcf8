"""Verdicts on the primary and secondary evaluation sets, and in comparisons among variants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headtohead.config.experiment import BASELINE, Experiment
from headtohead.experiment.run_folder import FinishedRuns
from headtohead.experiment.schemas import ComparisonFindings, CorpusFile
from headtohead.findings.evaluation_sets import EvaluationSet, resolve_split, select_evaluation_sets, stack_scores
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

        Empty if the reference has no finished run.
        """
        metric = self.experiment.primary.metric
        scores = {
            name: stack_scores(by_seed, self.corpus, evaluation_set, metric)
            for name, by_seed in finished.items()
            if by_seed  # a variant without a finished run is listed among the failures
        }
        if reference not in scores:
            return []
        baseline, is_per_byte = scores.pop(reference), False
        if metric == "perplexity" and any(
            not np.array_equal(variant_scores.weights, baseline.weights) for variant_scores in scores.values()
        ):
            # With different tokenizers, only totals per byte of the same text are comparable.
            is_per_byte = True
            num_bytes = self._count_bytes(evaluation_set.split)
            baseline = _sum_scores(baseline, num_bytes)
            scores = {name: _sum_scores(variant_scores, num_bytes) for name, variant_scores in scores.items()}
        withheld = {name: list(reasons) for name, reasons in self.withheld_reasons.items() if name != reference}
        title = "the baseline" if reference == BASELINE else reference
        for reason in self.withheld_reasons.get(reference, ()):
            for name in scores:
                if reason not in withheld.setdefault(name, []):  # a leak of data that both use is stated once
                    withheld[name].append(f"{title} {reason}")
        verdicts = compare_scores(
            baseline,
            scores,
            metric=metric,
            equivalence_margin=self.experiment.equivalence_margin,
            withheld=withheld,
            interim_analyses=self.interim_analyses,
        )
        verdicts = remove_judgements(verdicts) if self.experiment.quick else verdicts
        if is_per_byte:
            return [
                replace(verdict, summary=re.sub("(?i)(perplexity)", r"\1 per byte", verdict.summary))
                for verdict in verdicts
            ]
        return verdicts

    def _count_bytes(self, split: str) -> float:
        return float(sum(self.corpus.splits[name].bytes for name in resolve_split(self.corpus, split)))


def _sum_scores(scores: Scores, num_bytes: float) -> Scores:
    """Return the total score of each seed, with the number of bytes as its weight."""
    return Scores(scores.seeds, scores.values.sum(1, keepdims=True), np.array([num_bytes]))
