"""Compare the teacher, the student before training and the trained students on the same held-out documents.

Reads only the files in the experiment folder, so it runs without torch:

  contestants/teacher.jsonl, before.jsonl    summaries of the two reference models, one line per document
  VARIANT/seed-N/summaries.jsonl             summaries of a trained student
  teacher.json                               model sizes and timings

Scores are means over seeds and documents. Each score has two intervals: a bootstrap interval over documents and a t
interval over seeds. Every pair of systems gets a verdict by the rule in `verdict`, on the documents that both
summarized, with simultaneous confidence over all pairs for a measure. The teacher and the untrained student do not
depend on a seed: paired with a trained student, their scores are repeated for each of its seeds; paired with each
other, documents take the place of seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headtohead.config import distillation
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
from headtohead.verdict.compare import ErrorBudget, compare_scores, remove_judgements
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import VerdictOutcome, answer_claim
from headtohead.verdict.scores import Scores

REFERENCE_FOLDER = "contestants"
TEACHER, UNTRAINED_STUDENT = "teacher", "untrained"
ROUGE_MEASURES = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
MIN_RELEVANT_EFFECT = 0.01
COPY_MEASURES = ("copied-2", "copied-4")
NUM_SHOWN_DOCUMENTS = 3
"""documents that the report shows with the summaries of all systems"""
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

    def get_rouge(self, measure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the scores for one ROUGE measure, shape (seeds, documents)."""
        return np.array([[line.rouge[measure] for line in lines] for lines in self.lines_by_seed.values()])

    def get_lengths(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the summary lengths in words, shape (seeds, documents)."""
        return np.array([[float(line.length) for line in lines] for lines in self.lines_by_seed.values()])

    def compute_copied_share(self, measure: str) -> float | None:
        """Return the fraction of summary n-grams copied from the documents, or None if there are no n-grams."""
        pairs = [line.copied[measure] for lines in self.lines_by_seed.values() for line in lines]
        total = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / total if total else None


def read_teacher(experiment_folder: Path) -> TeacherFile | SummarizationTeacherFile:
    """Read teacher.json, from either a summarization or a plain-text distillation."""
    is_summarization = (experiment_folder / REFERENCE_FOLDER / f"{TEACHER}.jsonl").is_file()
    path = experiment_folder / "teacher.json"
    return read_record(path, SummarizationTeacherFile) if is_summarization else read_record(path, TeacherFile)


def evaluate_distillation(runs: ExperimentRuns, finished_runs: FinishedRuns) -> SummarizationFindings | None:
    """Compare all systems on their summaries; return None if the experiment has no summaries."""
    description = read_teacher(runs.folder)
    if not isinstance(description, SummarizationTeacherFile):
        return None
    systems = load_system_outputs(runs, finished_runs)
    pairs = [
        pair_verdict
        for measure in ROUGE_MEASURES
        for pair_verdict in compare_systems(systems, measure, is_judged=not runs.experiment.quick)
    ]
    teacher = runs.experiment.teacher
    assert teacher is not None
    return SummarizationFindings(
        signature=description.signature,
        num_documents=len(description.documents),
        scores={system.name: summarize_system(system) for system in systems},
        costs=collect_costs(description, finished_runs),
        pairs=pairs,
        examples=select_example_summaries(description, systems),
        published=list(teacher.published),
        claims=[evaluate_claim(claim, pairs) for claim in teacher.claims],
        num_truncated=description.num_truncated,
    )


def load_system_outputs(runs: ExperimentRuns, finished_runs: FinishedRuns) -> list[SystemOutputs]:
    """Load the outputs of the teacher, the untrained student, the baseline student and the distilled students."""
    systems = []
    for name in (TEACHER, UNTRAINED_STUDENT):
        lines = read_record_lines(runs.folder / REFERENCE_FOLDER / f"{name}.jsonl", SummaryLine)
        systems.append(SystemOutputs(name, {None: lines}))
    for name, by_seed in finished_runs.items():
        lines_by_seed: dict[int | None, Sequence[SummaryLine]] = {
            seed: read_record_lines(run.folder / "summaries.jsonl", SummaryLine) for seed, run in by_seed.items()
        }
        if lines_by_seed:
            systems.append(SystemOutputs(name, lines_by_seed))
    return systems


def summarize_system(system: SystemOutputs) -> SystemScores:
    """Compute every measure for one system."""
    stop_reasons = [line.stop_reason for lines in system.lines_by_seed.values() for line in lines]
    return SystemScores(
        rouge={measure: _summarize_measure(system, system.get_rouge(measure)) for measure in ROUGE_MEASURES},
        length=_summarize_measure(system, system.get_lengths()),
        copied={measure: system.compute_copied_share(measure) for measure in COPY_MEASURES},
        unfinished=sum(reason == "length" for reason in stop_reasons) / len(stop_reasons),
    )


def _summarize_measure(system: SystemOutputs, values: np.ndarray[Any, np.dtype[np.float64]]) -> SummaryMeasure:
    """Return the mean and both intervals for one summary measure; `values` has shape (seeds, documents)."""
    by_seed = values.mean(axis=1).tolist()
    return SummaryMeasure(
        value=float(values.mean()),
        by_seed=by_seed,
        over_documents=bootstrap_mean(values.mean(axis=0).tolist()).interval,
        over_seeds=None if system.is_seed_independent else compute_average_interval("score", by_seed),
    )


def compare_systems(
    systems: Sequence[SystemOutputs], measure: str, *, is_judged: bool = True
) -> list[SystemPairVerdict]:
    """Return a verdict for each pair of systems on one ROUGE measure, or only the difference unless `is_judged`.

    In each pair, the system that comes later in `systems` is judged against the earlier one. The confidence level is
    Bonferroni-corrected for the number of pairs.
    """
    pairs = list(combinations(systems, 2))
    level = 1 - 0.05 / max(1, len(pairs))
    verdicts = []
    for reference, system in pairs:
        verdict = _compare_pair(reference, system, measure, level)
        verdict = verdict if is_judged else remove_judgements([verdict])[0]
        scores_by_document = [outputs.get_rouge(measure).mean(axis=0).tolist() for outputs in (reference, system)]
        verdicts.append(
            SystemPairVerdict(
                metric=measure,
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


def _compare_pair(reference: SystemOutputs, system: SystemOutputs, measure: str, level: float) -> Verdict:
    """Judge `system` against `reference`, paired by seed where both have seeds."""
    reference_scores, system_scores = reference.get_rouge(measure), system.get_rouge(measure)
    if reference.is_seed_independent and system.is_seed_independent:
        documents = tuple(range(reference_scores.shape[1]))
        budget = ErrorBudget(is_final=True)  # documents are fixed in advance
        return _compute_verdict(documents, reference_scores.T, system_scores.T, level, budget)
    if not reference.is_seed_independent and not system.is_seed_independent:
        seeds = [seed for seed in reference.lines_by_seed if seed in system.lines_by_seed]
        reference_scores = reference_scores[[list(reference.lines_by_seed).index(seed) for seed in seeds]]
        system_scores = system_scores[[list(system.lines_by_seed).index(seed) for seed in seeds]]
        return _compute_verdict(tuple(int(seed or 0) for seed in seeds), reference_scores, system_scores, level)
    seeds = list(system.lines_by_seed if reference.is_seed_independent else reference.lines_by_seed)
    reference_scores, system_scores = np.broadcast_arrays(reference_scores, system_scores)
    return _compute_verdict(tuple(int(seed or 0) for seed in seeds), reference_scores, system_scores, level)


def _compute_verdict(
    seeds: tuple[int, ...],
    reference_scores: Any,
    system_scores: Any,
    level: float,
    budget: ErrorBudget = ErrorBudget(),  # noqa: B008  # immutable
) -> Verdict:
    """Apply the verdict rule to two systems' ROUGE scores, each of shape (seeds, documents)."""
    document_weights = np.ones(reference_scores.shape[1])
    (verdict,) = compare_scores(
        Scores(seeds, reference_scores, document_weights),
        {"": Scores(seeds, system_scores, document_weights)},
        metric="score",
        equivalence_margin=MIN_RELEVANT_EFFECT,
        confidence=level,
        budget=budget,
    )
    return verdict


def evaluate_claim(
    claim: distillation.DistillationClaim, pairs: Sequence[SystemPairVerdict]
) -> DistillationClaimResult:
    """Return a published claim about two systems with the verdict that answers it."""
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


def collect_costs(description: SummarizationTeacherFile, finished_runs: FinishedRuns) -> dict[str, SystemCost]:
    """Return each system's size and speed. For trained students, the first seed is used."""
    references = {TEACHER: description.teacher, UNTRAINED_STUDENT: description.untrained}
    costs = {
        name: SystemCost(
            parameters=model.parameters,
            weights_bytes=model.weights_bytes,
            seconds_per_summary=model.seconds_per_summary,
        )
        for name, model in references.items()
    }
    for name, by_seed in finished_runs.items():
        for run in by_seed.values():
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
    description: SummarizationTeacherFile, systems: Sequence[SystemOutputs]
) -> list[ExampleSummaries]:
    """Return a few evenly spaced documents with every system's summary (first seed for trained students)."""
    documents = description.documents
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
