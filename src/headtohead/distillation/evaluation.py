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
from typing import Any

import numpy as np

from headtohead.atomic_io import read_json, read_jsonl
from headtohead.config import distillation
from headtohead.config.experiment import BASELINE
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.verdict.bootstrap import bootstrap_mean, bootstrap_paired_difference
from headtohead.verdict.compare import compare_scores
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import compute_mean_interval

REFERENCE_FOLDER = "contestants"
TEACHER, UNTRAINED_STUDENT = "teacher", "before"
ROUGE_MEASURES = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
MIN_RELEVANT_EFFECT = 0.01
COPY_MEASURES = ("copied-2", "copied-4")
NUM_SHOWN_DOCUMENTS = 3
"""documents that are shown with everybody's summary"""
OPPOSITE_VERDICTS = {"helped": "hurt", "hurt": "helped"}


@dataclass(frozen=True)
class SystemOutputs:
    """What one wrote about the held-out documents: a list of lines for each seed, or one without a seed."""

    name: str
    lines_by_seed: Mapping[int | None, Sequence[Mapping[str, Any]]]

    @property
    def is_seed_independent(self) -> bool:
        return None in self.lines_by_seed

    def values(self, measure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seeds down, documents across."""
        return np.array([[float(line[measure]) for line in lines] for lines in self.lines_by_seed.values()])

    def share(self, measure: str) -> float | None:
        """Total over total, for what is counted in n-grams."""
        pairs = [line[measure] for lines in self.lines_by_seed.values() for line in lines]
        of = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / of if of else None


def evaluate_distillation(
    runs: ExperimentRuns, finished_runs: Mapping[str, Mapping[int, Run]]
) -> dict[str, Any] | None:
    """All that can be said, as plain data; None for an experiment without summaries."""
    if not (runs.folder / REFERENCE_FOLDER / f"{TEACHER}.jsonl").is_file():
        return None
    who = load_system_outputs(runs, finished_runs)
    about = read_json(runs.folder / "teacher.json")
    pairs = [row for measure in ROUGE_MEASURES for row in compare_systems(who, measure)]
    teacher = runs.experiment.teacher
    assert teacher is not None
    return {
        "signature": about["signature"],
        "documents": len(about["documents"]),
        "figures": {one.name: summarize_system(one) for one in who},
        "costs": collect_costs(about, finished_runs),
        "pairs": pairs,
        "side_by_side": select_example_summaries(about, who),
        "reported": [row.model_dump(mode="json") for row in teacher.reported],
        "claims": [evaluate_claim(claim, pairs) for claim in teacher.claims],
        "cut": about["cut"],
    }


def load_system_outputs(runs: ExperimentRuns, finished_runs: Mapping[str, Mapping[int, Run]]) -> list[SystemOutputs]:
    """The two without a seed, then the student on people's summaries, then those on the teacher's."""
    found = [
        SystemOutputs(name, {None: read_jsonl(runs.folder / REFERENCE_FOLDER / f"{name}.jsonl")})
        for name in (TEACHER, UNTRAINED_STUDENT)
    ]
    for name, by_seed in finished_runs.items():
        lines: dict[int | None, Sequence[Mapping[str, Any]]] = {
            seed: read_jsonl(run.folder / "summaries.jsonl") for seed, run in by_seed.items()
        }
        if lines:
            found.append(SystemOutputs(name, lines))
    return found


def summarize_system(system: SystemOutputs) -> dict[str, Any]:
    """Every measure of one contestant."""
    made: dict[str, Any] = {}
    for measure in (*ROUGE_MEASURES, "length"):
        values = system.values(measure)
        seeds = values.mean(axis=1).tolist()
        made[measure] = {
            "value": float(values.mean()),
            "by_seed": seeds,
            "over_documents": list(bootstrap_mean(values.mean(axis=0).tolist()).interval),
            "over_seeds": None if system.is_seed_independent else compute_mean_interval(seeds),
        }
    for measure in COPY_MEASURES:
        made[measure] = {"value": system.share(measure)}
    ended = [line["ended"] for lines in system.lines_by_seed.values() for line in lines]
    made["unfinished"] = {"value": sum(how == "length" for how in ended) / len(ended)}
    return made


def compare_systems(systems: Sequence[SystemOutputs], measure: str) -> list[dict[str, Any]]:
    """Each pair on one measure: the later of the two beside the earlier."""
    every = list(combinations(systems, 2))
    level = 1 - 0.05 / max(1, len(every))
    made = []
    for against, one in every:
        row = _compare_pair(against, one, measure, level).to_dict()
        documents = [x.values(measure).mean(axis=0).tolist() for x in (against, one)]
        keys = ("outcome", "effect", "interval", "seeds", "examples", "min_detectable_effect", "adjusted_confidence")
        made.append(
            {
                "measure": measure,
                "who": one.name,
                "against": against.name,
                **{key: row[key] for key in keys},
                "bootstrap": bootstrap_paired_difference(*documents).to_dict(),
            }
        )
    return made


def _compare_pair(reference: SystemOutputs, system: SystemOutputs, measure: str, level: float) -> Verdict:
    base, other = reference.values(measure), system.values(measure)
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


def evaluate_claim(claim: distillation.DistillationClaim, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A claim about two contestants with the verdict that answers it."""
    row: dict[str, Any] = {**claim.model_dump(mode="json"), "answer": "cannot tell", "outcome": None}
    for pair in pairs:
        if pair["measure"] == claim.measure and {pair["who"], pair["against"]} == {claim.who, claim.against}:
            turned = pair["who"] != claim.who
            word = OPPOSITE_VERDICTS.get(pair["outcome"], pair["outcome"]) if turned else pair["outcome"]
            effect = -pair["effect"] if turned and pair["effect"] is not None else pair["effect"]
            row |= {"outcome": word, "effect": effect}
            if word == claim.expects:
                row["answer"] = "holds"
            elif word != "cannot tell":
                row["answer"] = "does not hold"
    return row


def collect_costs(teacher_info: Mapping[str, Any], finished_runs: Mapping[str, Mapping[int, Run]]) -> dict[str, Any]:
    """What each costs to keep and to use."""
    made = {name: dict(teacher_info[name]) for name in (TEACHER, UNTRAINED_STUDENT)}
    for name, by_seed in finished_runs.items():
        for run in by_seed.values():
            seconds = run.result.get("seconds_per_summary")
            made.setdefault(
                name,
                {
                    "parameters": run.start["parameters"],
                    "weights_bytes": run.start["weights_bytes"],
                    "seconds_per_summary": seconds,
                    "training_seconds": run.result["trained"]["seconds"],
                    "training_memory": run.result["trained"]["peak_memory"],
                },
            )
    return made


def select_example_summaries(teacher_info: Mapping[str, Any], systems: Sequence[SystemOutputs]) -> list[dict[str, Any]]:
    """A few documents, evenly chosen, with everybody's summary: of a trained student, that of its first seed."""
    documents = teacher_info["documents"]
    chosen = [at * len(documents) // NUM_SHOWN_DOCUMENTS for at in range(min(NUM_SHOWN_DOCUMENTS, len(documents)))]
    return [
        {
            **documents[at],
            "written": {one.name: dict(next(iter(one.lines_by_seed.values()))[at]) for one in systems},
        }
        for at in dict.fromkeys(chosen)
    ]


__all__ = ["BASELINE", "REFERENCE_FOLDER", "TEACHER", "UNTRAINED_STUDENT", "evaluate_distillation"]
