"""Score the summarization systems of an experiment and judge every pair of them on the same held-out documents.

The systems are the teacher, the student before training, and the trained students.

Reads only the files in the experiment folder, so it runs without torch:

  contestants/teacher.jsonl, before.jsonl    summaries of the two reference models, one line per document
  VARIANT/seed-N/summaries.jsonl             summaries of a trained student
  teacher.json                               model sizes and timings

Scores are means over seeds and documents. Each score has two intervals: a bootstrap interval over documents and a t
interval over seeds. Every pair of systems gets a verdict by the rule in `verdict`, on the documents that both
summarized, with simultaneous confidence over all pairs for a metric. The teacher and the untrained student do not
depend on a seed: paired with a trained student, their scores are repeated for each of its seeds; paired with each
other, documents take the place of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headtohead.config.tables import distillation
from headtohead.experiment.run_folder import ExperimentRuns, FinishedRuns
from headtohead.experiment.schemas import (
    DistillationClaimResult,
    ExampleSummaries,
    SummarizationFindings,
    SummarizationTeacherFile,
    SummaryLine,
    SummaryMeasure,
    SystemCost,
    SystemPairVerdict,
    SystemScores,
    TeacherFile,
    read_record,
    read_record_lines,
)
from headtohead.experiment.seed_average import compute_average_interval
from headtohead.verdict.bootstrap import bootstrap_mean, bootstrap_paired_difference
from headtohead.verdict.compare import compare_scores, mark_as_quick_looks
from headtohead.verdict.decision_rule import VerdictOutcome, answer_claim
from headtohead.verdict.interim import AlphaBudget
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores

REFERENCE_FOLDER = "contestants"
TEACHER, UNTRAINED_STUDENT = "teacher", "untrained"
ROUGE_METRICS = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
COPIED_NGRAM_METRICS = ("copied-2", "copied-4")
"""fractions of the summary's bigrams and 4-grams that are copied from the document"""
MIN_RELEVANT_EFFECT = 0.01
"""smallest difference in ROUGE that counts as an effect"""
JUDGED_SYSTEM = "system"
"""name of the second system of every pair in the error budget"""
NUM_SHOWN_DOCUMENTS = 3
"""number of documents that the report shows with the summaries of all systems"""
OPPOSITE_VERDICTS: dict[str, VerdictOutcome] = {"helped": "hurt", "hurt": "helped"}


@dataclass(frozen=True)
class SystemOutputs:
    """One system's summaries of the held-out documents.

    `lines_by_seed` maps each seed to one line per document. A system without seeds has the single key None.
    """

    name: str
    lines_by_seed: Mapping[int | None, Sequence[SummaryLine]]

    @property
    def is_seed_independent(self) -> bool:
        """Whether the system has one set of summaries instead of one per seed."""
        return None in self.lines_by_seed

    def get_rouge_scores(self, metric: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the scores for one ROUGE metric, shape (seeds, documents)."""
        return np.array([[line.rouge[metric] for line in lines] for lines in self.lines_by_seed.values()])

    def get_word_counts(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the summary lengths in words, shape (seeds, documents)."""
        return np.array([[float(line.length) for line in lines] for lines in self.lines_by_seed.values()])

    def compute_copied_fraction(self, metric: str) -> float | None:
        """Return the fraction of summary n-grams copied from the documents, or None if there are no n-grams."""
        ngram_counts = [line.copied[metric] for lines in self.lines_by_seed.values() for line in lines]
        num_ngrams = sum(num_total for _, num_total in ngram_counts)
        return sum(num_copied for num_copied, _ in ngram_counts) / num_ngrams if num_ngrams else None


def read_teacher_file(experiment_folder: Path) -> TeacherFile | SummarizationTeacherFile:
    """Read teacher.json, from either a summarization or a plain-text distillation."""
    is_summarization = (experiment_folder / REFERENCE_FOLDER / f"{TEACHER}.jsonl").is_file()
    path = experiment_folder / "teacher.json"
    return read_record(path, SummarizationTeacherFile) if is_summarization else read_record(path, TeacherFile)


def evaluate_distillation(
    runs: ExperimentRuns, finished_runs: FinishedRuns, budget: AlphaBudget
) -> SummarizationFindings | None:
    """Compare all systems on their summaries; return None if the experiment has no summaries.

    Every interim analysis in `budget` counts for every pair that includes a trained student.
    """
    teacher_file = read_teacher_file(runs.folder)
    if not isinstance(teacher_file, SummarizationTeacherFile):
        return None
    systems = load_system_outputs(runs, finished_runs)
    pairs = [
        pair_verdict
        for metric in ROUGE_METRICS
        for pair_verdict in compare_systems(systems, metric, budget, is_judged=not runs.experiment.quick)
    ]
    teacher_config = runs.experiment.teacher
    assert teacher_config is not None
    return SummarizationFindings(
        signature=teacher_file.signature,
        num_documents=len(teacher_file.documents),
        scores={system.name: compute_system_scores(system) for system in systems},
        costs=collect_system_costs(teacher_file, finished_runs),
        pairs=pairs,
        examples=select_example_summaries(teacher_file, systems),
        published=list(teacher_config.published),
        claims=[evaluate_claim(claim, pairs) for claim in teacher_config.claims],
        num_truncated=teacher_file.num_truncated,
    )


def load_system_outputs(runs: ExperimentRuns, finished_runs: FinishedRuns) -> list[SystemOutputs]:
    """Load the summaries of the teacher, the untrained student, the baseline student and the distilled students."""
    systems = []
    for name in (TEACHER, UNTRAINED_STUDENT):
        lines = read_record_lines(runs.folder / REFERENCE_FOLDER / f"{name}.jsonl", SummaryLine)
        systems.append(SystemOutputs(name, {None: lines}))
    for name, runs_by_seed in finished_runs.items():
        lines_by_seed: dict[int | None, Sequence[SummaryLine]] = {
            seed: read_record_lines(run.folder / "summaries.jsonl", SummaryLine) for seed, run in runs_by_seed.items()
        }
        if lines_by_seed:
            systems.append(SystemOutputs(name, lines_by_seed))
    return systems


def compute_system_scores(system: SystemOutputs) -> SystemScores:
    """Compute every quality metric of one system's summaries."""
    stop_reasons = [line.stop_reason for lines in system.lines_by_seed.values() for line in lines]
    return SystemScores(
        rouge={
            metric: _compute_mean_with_intervals(system, system.get_rouge_scores(metric)) for metric in ROUGE_METRICS
        },
        length=_compute_mean_with_intervals(system, system.get_word_counts()),
        copied={metric: system.compute_copied_fraction(metric) for metric in COPIED_NGRAM_METRICS},
        unfinished=sum(reason == "length" for reason in stop_reasons) / len(stop_reasons),
    )


def _compute_mean_with_intervals(
    system: SystemOutputs, scores: np.ndarray[Any, np.dtype[np.float64]]
) -> SummaryMeasure:
    """Return a metric's mean and its intervals over documents and seeds; `scores` has shape (seeds, documents)."""
    seed_means = scores.mean(axis=1).tolist()
    return SummaryMeasure(
        value=float(scores.mean()),
        by_seed=seed_means,
        over_documents=bootstrap_mean(scores.mean(axis=0).tolist()).interval,
        over_seeds=None if system.is_seed_independent else compute_average_interval("score", seed_means),
    )


def compare_systems(
    systems: Sequence[SystemOutputs],
    metric: str,
    budget: AlphaBudget = AlphaBudget(),  # noqa: B008  # immutable
    *,
    is_judged: bool = True,
) -> list[SystemPairVerdict]:
    """Return a verdict for each pair of systems on one ROUGE metric, or only the difference unless `is_judged`.

    In each pair, the system that comes later in `systems` is judged against the earlier one. All pairs share the
    familywise error rate. Every interim analysis in `budget` counts for all of them, except for pairs without a trained
    student, whose data are fixed in advance.
    """
    pairs = list(combinations(systems, 2))
    analyses = {analysis.num_seeds: analysis for previous in budget.previous_analyses.values() for analysis in previous}
    pair_budget = replace(
        budget,
        previous_analyses={JUDGED_SYSTEM: [analyses[seeds] for seeds in sorted(analyses)]},
        num_comparisons=len(pairs),
    )
    verdicts = []
    for reference, system in pairs:
        verdict = _compare_pair(reference, system, metric, pair_budget)
        verdict = verdict if is_judged else mark_as_quick_looks([verdict])[0]
        scores_by_document = [outputs.get_rouge_scores(metric).mean(axis=0).tolist() for outputs in (reference, system)]
        verdicts.append(
            SystemPairVerdict(
                metric=metric,
                system=system.name,
                reference=reference.name,
                outcome=verdict.outcome,
                effect=verdict.effect,
                interval=verdict.interval,
                seeds=verdict.seeds,
                examples=verdict.examples,
                min_detectable_effect=verdict.min_detectable_effect,
                adjusted_confidence=verdict.adjusted_confidence,
                bootstrap=bootstrap_paired_difference(*scores_by_document),
            )
        )
    return verdicts


def _compare_pair(reference: SystemOutputs, system: SystemOutputs, metric: str, budget: AlphaBudget) -> Verdict:
    """Judge `system` against `reference`, paired by seed where both have seeds."""
    reference_scores, system_scores = reference.get_rouge_scores(metric), system.get_rouge_scores(metric)
    if reference.is_seed_independent and system.is_seed_independent:
        documents = tuple(range(reference_scores.shape[1]))
        return _judge_rouge_scores(documents, reference_scores.T, system_scores.T, replace(budget, is_final=True))
    if not reference.is_seed_independent and not system.is_seed_independent:
        seeds = [seed for seed in reference.lines_by_seed if seed in system.lines_by_seed]
        reference_scores = reference_scores[[list(reference.lines_by_seed).index(seed) for seed in seeds]]
        system_scores = system_scores[[list(system.lines_by_seed).index(seed) for seed in seeds]]
        return _judge_rouge_scores(tuple(int(seed or 0) for seed in seeds), reference_scores, system_scores, budget)
    seeds = list(system.lines_by_seed if reference.is_seed_independent else reference.lines_by_seed)
    reference_scores, system_scores = np.broadcast_arrays(reference_scores, system_scores)
    return _judge_rouge_scores(tuple(int(seed or 0) for seed in seeds), reference_scores, system_scores, budget)


def _judge_rouge_scores(
    seeds: tuple[int, ...], reference_scores: Any, system_scores: Any, budget: AlphaBudget
) -> Verdict:
    """Apply the verdict rule to two systems' ROUGE scores, each of shape (seeds, documents)."""
    document_weights = np.ones(reference_scores.shape[1])
    (verdict,) = compare_scores(
        Scores(seeds, reference_scores, document_weights),
        {JUDGED_SYSTEM: Scores(seeds, system_scores, document_weights)},
        metric="score",
        equivalence_margin=MIN_RELEVANT_EFFECT,
        budget=budget,
    )
    return verdict


def evaluate_claim(
    claim: distillation.DistillationClaim, pairs: Sequence[SystemPairVerdict]
) -> DistillationClaimResult:
    """Return a published claim about two systems with the verdict of their comparison."""
    for pair in pairs:
        if pair.metric == claim.metric and {pair.system, pair.reference} == {claim.model, claim.reference}:
            is_reversed = pair.system != claim.model
            outcome = OPPOSITE_VERDICTS.get(pair.outcome, pair.outcome) if is_reversed else pair.outcome
            return DistillationClaimResult(
                **dict(claim),
                answer=answer_claim(outcome, claim.expected_verdict),
                outcome=outcome,
                effect=-pair.effect if is_reversed else pair.effect,
            )
    return DistillationClaimResult(**dict(claim))


def collect_system_costs(teacher_file: SummarizationTeacherFile, finished_runs: FinishedRuns) -> dict[str, SystemCost]:
    """Return the size and speed of each compared system. For trained students, the first seed is used."""
    reference_models = {TEACHER: teacher_file.teacher, UNTRAINED_STUDENT: teacher_file.untrained}
    costs = {
        name: SystemCost(
            parameters=model.parameters,
            weights_bytes=model.weights_bytes,
            seconds_per_summary=model.seconds_per_summary,
        )
        for name, model in reference_models.items()
    }
    for name, runs_by_seed in finished_runs.items():
        for run in runs_by_seed.values():
            cost = SystemCost(
                parameters=run.start.parameters,
                weights_bytes=run.start.weights_bytes,
                seconds_per_summary=run.result.seconds_per_summary,
                training_seconds=run.result.training.seconds,
                training_memory=run.result.training.peak_memory,
            )
            costs.setdefault(name, cost)
    return costs


def select_example_summaries(
    teacher_file: SummarizationTeacherFile, systems: Sequence[SystemOutputs]
) -> list[ExampleSummaries]:
    """Return a few evenly spaced documents with the summary of every compared system."""
    documents = teacher_file.documents
    num_shown = min(NUM_SHOWN_DOCUMENTS, len(documents))
    document_indices = dict.fromkeys(
        shown_index * len(documents) // NUM_SHOWN_DOCUMENTS for shown_index in range(num_shown)
    )
    return [
        ExampleSummaries(
            **dict(documents[index]),
            summaries={system.name: next(iter(system.lines_by_seed.values()))[index] for system in systems},
        )
        for index in document_indices
    ]
