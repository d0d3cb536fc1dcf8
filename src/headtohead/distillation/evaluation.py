"""What distillation was worth: teacher, student before, and students after, on the same held-out documents.

Read from the experiment's folder alone, without torch:
  contestants/teacher.jsonl, before.jsonl    what these two wrote, one line a document (see `summaries`)
  VARIANT/seed-N/summaries.jsonl             what each trained student wrote
  teacher.json                               sizes and times

A figure is the mean over seeds and documents. Two intervals stand beside it: over documents by bootstrap (other
documents, these models), over seeds by t (other seeds, these documents). Each pair has a verdict by the rule of
`verdict`, on the documents that both have, simultaneous over all pairs of a measure. Teacher and student before do not
depend on a seed: in a pair with a trained student they are the same for each of its seeds; between the two of them a
document stands where the rule has a seed, as what is drawn anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from headtohead.config import distillation
from headtohead.config.experiment import BASELINE
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
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.record import Verdict
from headtohead.verdict.rule import VerdictOutcome
from headtohead.verdict.scores import Scores

REFERENCE_FOLDER = "contestants"
TEACHER, UNTRAINED_STUDENT = "teacher", "before"
ROUGE_MEASURES = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
MIN_RELEVANT_EFFECT = 0.01
COPY_MEASURES = ("copied-2", "copied-4")
NUM_SHOWN_DOCUMENTS = 3
"""documents that are shown with everybody's summary"""
OPPOSITE_VERDICTS: dict[str, VerdictOutcome] = {"helped": "hurt", "hurt": "helped"}


@dataclass(frozen=True)
class SystemOutputs:
    """What one wrote about the held-out documents: a list of lines for each seed, or one without a seed."""

    name: str
    lines_by_seed: Mapping[int | None, Sequence[SummaryLine]]

    @property
    def is_seed_independent(self) -> bool:
        return None in self.lines_by_seed

    def get_rouge(self, measure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the scores, seeds x documents."""
        return np.array([[line.rouge[measure] for line in lines] for lines in self.lines_by_seed.values()])

    def get_lengths(self) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the number of words, seeds x documents."""
        return np.array([[float(line.length) for line in lines] for lines in self.lines_by_seed.values()])

    def compute_copied_share(self, measure: str) -> float | None:
        """Return the share of n-grams copied from the documents; None without n-grams."""
        pairs = [line.copied[measure] for lines in self.lines_by_seed.values() for line in lines]
        total = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / total if total else None


def read_teacher(experiment_folder: Path) -> TeacherFile | SummarizationTeacherFile:
    """Read teacher.json of either kind of distillation."""
    is_summarization = (experiment_folder / REFERENCE_FOLDER / f"{TEACHER}.jsonl").is_file()
    path = experiment_folder / "teacher.json"
    return read_record(path, SummarizationTeacherFile) if is_summarization else read_record(path, TeacherFile)


def evaluate_distillation(runs: ExperimentRuns, finished_runs: FinishedRuns) -> SummarizationFindings | None:
    """Compare teacher, untrained student and students on summaries; return None for an experiment without summaries."""
    description = read_teacher(runs.folder)
    if not isinstance(description, SummarizationTeacherFile):
        return None
    systems = load_system_outputs(runs, finished_runs)
    pairs = [row for measure in ROUGE_MEASURES for row in compare_systems(systems, measure)]
    teacher = runs.experiment.teacher
    assert teacher is not None
    return SummarizationFindings(
        signature=description.signature,
        num_documents=len(description.documents),
        scores={system.name: summarize_system(system) for system in systems},
        costs=collect_costs(description, finished_runs),
        pairs=pairs,
        examples=select_example_summaries(description, systems),
        published=list(teacher.reported),
        claims=[evaluate_claim(claim, pairs) for claim in teacher.claims],
        num_truncated=description.num_truncated,
    )


def load_system_outputs(runs: ExperimentRuns, finished_runs: FinishedRuns) -> list[SystemOutputs]:
    """Return teacher and untrained student, then the student on reference summaries, then those on the teacher's."""
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
    """Return every measure of one system."""
    stop_reasons = [line.stop_reason for lines in system.lines_by_seed.values() for line in lines]
    return SystemScores(
        rouge={measure: _summarize_measure(system, system.get_rouge(measure)) for measure in ROUGE_MEASURES},
        length=_summarize_measure(system, system.get_lengths()),
        copied={measure: system.compute_copied_share(measure) for measure in COPY_MEASURES},
        unfinished=sum(reason == "length" for reason in stop_reasons) / len(stop_reasons),
    )


def _summarize_measure(system: SystemOutputs, values: np.ndarray[Any, np.dtype[np.float64]]) -> SummaryMeasure:
    by_seed = values.mean(axis=1).tolist()
    return SummaryMeasure(
        value=float(values.mean()),
        by_seed=by_seed,
        over_documents=bootstrap_mean(values.mean(axis=0).tolist()).interval,
        over_seeds=None if system.is_seed_independent else compute_average_interval("score", by_seed),
    )


def compare_systems(systems: Sequence[SystemOutputs], measure: str) -> list[SystemPairVerdict]:
    """Return the verdict on each pair by one measure: the later of the two beside the earlier."""
    pairs = list(combinations(systems, 2))
    level = 1 - 0.05 / max(1, len(pairs))
    rows = []
    for against, system in pairs:
        verdict = _compare_pair(against, system, measure, level)
        documents = [one.get_rouge(measure).mean(axis=0).tolist() for one in (against, system)]
        rows.append(
            SystemPairVerdict(
                measure=measure,
                system=system.name,
                against=against.name,
                outcome=verdict.outcome,
                effect=verdict.effect,
                interval=verdict.interval,
                seeds=verdict.seeds,
                examples=verdict.examples,
                min_detectable_effect=verdict.min_detectable_effect,
                adjusted_confidence=verdict.adjusted_confidence,
                bootstrap=bootstrap_paired_difference(*documents),
            )
        )
    return rows


def _compare_pair(reference: SystemOutputs, system: SystemOutputs, measure: str, level: float) -> Verdict:
    base, other = reference.get_rouge(measure), system.get_rouge(measure)
    if reference.is_seed_independent and system.is_seed_independent:
        return _compute_verdict(tuple(range(base.shape[1])), base.T, other.T, level)
    if not reference.is_seed_independent and not system.is_seed_independent:
        seeds = [seed for seed in reference.lines_by_seed if seed in system.lines_by_seed]
        base = base[[list(reference.lines_by_seed).index(seed) for seed in seeds]]
        other = other[[list(system.lines_by_seed).index(seed) for seed in seeds]]
        return _compute_verdict(tuple(int(seed or 0) for seed in seeds), base, other, level)
    seeds = list(system.lines_by_seed if reference.is_seed_independent else reference.lines_by_seed)
    base, other = np.broadcast_arrays(base, other)
    return _compute_verdict(tuple(int(seed or 0) for seed in seeds), base, other, level)


def _compute_verdict(seeds: tuple[int, ...], base: Any, other: Any, level: float) -> Verdict:
    ones = np.ones(base.shape[1])
    (verdict,) = compare_scores(
        Scores(seeds, base, ones),
        {"": Scores(seeds, other, ones)},
        metric="score",
        equivalence_margin=MIN_RELEVANT_EFFECT,
        confidence=level,
    )
    return verdict


def evaluate_claim(
    claim: distillation.DistillationClaim, pairs: Sequence[SystemPairVerdict]
) -> DistillationClaimResult:
    """Return a claim about two systems with the verdict that answers it."""
    for pair in pairs:
        if pair.measure == claim.measure and {pair.system, pair.against} == {claim.who, claim.against}:
            is_reversed = pair.system != claim.who
            outcome = OPPOSITE_VERDICTS.get(pair.outcome, pair.outcome) if is_reversed else pair.outcome
            is_open = outcome == "cannot tell"
            return DistillationClaimResult(
                **dict(claim),
                answer="holds" if outcome == claim.expects else "cannot tell" if is_open else "does not hold",
                outcome=outcome,
                effect=-pair.effect if is_reversed else pair.effect,
            )
    return DistillationClaimResult(**dict(claim))


def collect_costs(description: SummarizationTeacherFile, finished_runs: FinishedRuns) -> dict[str, SystemCost]:
    """Return size and speed of each system; of a trained student, those of its first seed."""
    references = {TEACHER: description.teacher, UNTRAINED_STUDENT: description.before}
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
    """Return a few evenly spaced documents with every system's summary; for trained students, the first seed's."""
    documents = description.documents
    count = min(NUM_SHOWN_DOCUMENTS, len(documents))
    chosen = dict.fromkeys(number * len(documents) // NUM_SHOWN_DOCUMENTS for number in range(count))
    return [
        ExampleSummaries(
            **dict(documents[index]),
            summaries={system.name: next(iter(system.lines_by_seed.values()))[index] for system in systems},
        )
        for index in chosen
    ]


__all__ = ["BASELINE", "REFERENCE_FOLDER", "TEACHER", "UNTRAINED_STUDENT", "evaluate_distillation"]
