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

from headtohead.atomic_io import read_json, read_lines
from headtohead.config import distillation
from headtohead.config.experiment import BASELINE
from headtohead.experiment.run_folder import Run, Runs
from headtohead.verdict.bootstrap import paired, resampled
from headtohead.verdict.compare import compare
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import mean_interval

FOLDER = "contestants"
TEACHER, BEFORE = "teacher", "before"
JUDGED = ("rouge-1", "rouge-2", "rouge-l", "rouge-lsum")
MATTERS = 0.01
SHARES = ("copied-2", "copied-4")
SHOWN = 3
"""documents that are shown with everybody's summary"""
OPPOSITE = {"helped": "hurt", "hurt": "helped"}


@dataclass(frozen=True)
class Contestant:
    """What one wrote about the held-out documents: a list of lines for each seed, or one without a seed."""

    name: str
    by_seed: Mapping[int | None, Sequence[Mapping[str, Any]]]

    @property
    def is_fixed(self) -> bool:
        return None in self.by_seed

    def values(self, measure: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seeds down, documents across."""
        return np.array([[float(line[measure]) for line in lines] for lines in self.by_seed.values()])

    def share(self, measure: str) -> float | None:
        """Total over total, for what is counted in n-grams."""
        pairs = [line[measure] for lines in self.by_seed.values() for line in lines]
        of = sum(pair[1] for pair in pairs)
        return sum(pair[0] for pair in pairs) / of if of else None


def find(runs: Runs, finished: Mapping[str, Mapping[int, Run]]) -> dict[str, Any] | None:
    """All that can be said, as plain data; None for an experiment without summaries."""
    if not (runs.folder / FOLDER / f"{TEACHER}.jsonl").is_file():
        return None
    who = contestants(runs, finished)
    about = read_json(runs.folder / "teacher.json")
    pairs = [row for measure in JUDGED for row in judged(who, measure)]
    teacher = runs.experiment.teacher
    assert teacher is not None
    return {
        "signature": about["signature"],
        "documents": len(about["documents"]),
        "figures": {one.name: figures(one) for one in who},
        "costs": costs(about, finished),
        "pairs": pairs,
        "side_by_side": side_by_side(about, who),
        "reported": [row.model_dump(mode="json") for row in teacher.reported],
        "claims": [answered(claim, pairs) for claim in teacher.claims],
        "cut": about["cut"],
    }


def contestants(runs: Runs, finished: Mapping[str, Mapping[int, Run]]) -> list[Contestant]:
    """The two without a seed, then the student on people's summaries, then those on the teacher's."""
    found = [Contestant(name, {None: read_lines(runs.folder / FOLDER / f"{name}.jsonl")}) for name in (TEACHER, BEFORE)]
    for name, by_seed in finished.items():
        lines: dict[int | None, Sequence[Mapping[str, Any]]] = {
            seed: read_lines(run.folder / "summaries.jsonl") for seed, run in by_seed.items()
        }
        if lines:
            found.append(Contestant(name, lines))
    return found


def figures(one: Contestant) -> dict[str, Any]:
    """Every measure of one contestant."""
    made: dict[str, Any] = {}
    for measure in (*JUDGED, "length"):
        values = one.values(measure)
        seeds = values.mean(axis=1).tolist()
        made[measure] = {
            "value": float(values.mean()),
            "by_seed": seeds,
            "over_documents": list(resampled(values.mean(axis=0).tolist()).interval),
            "over_seeds": None if one.is_fixed else mean_interval(seeds),
        }
    for measure in SHARES:
        made[measure] = {"value": one.share(measure)}
    ended = [line["ended"] for lines in one.by_seed.values() for line in lines]
    made["unfinished"] = {"value": sum(how == "length" for how in ended) / len(ended)}
    return made


def judged(who: Sequence[Contestant], measure: str) -> list[dict[str, Any]]:
    """Each pair on one measure: the later of the two beside the earlier."""
    every = list(combinations(who, 2))
    level = 1 - 0.05 / max(1, len(every))
    made = []
    for against, one in every:
        row = _verdict(against, one, measure, level).as_row()
        documents = [x.values(measure).mean(axis=0).tolist() for x in (against, one)]
        keys = ("word", "effect", "interval", "seeds", "examples", "detectable", "level")
        made.append(
            {
                "measure": measure,
                "who": one.name,
                "against": against.name,
                **{key: row[key] for key in keys},
                "bootstrap": paired(*documents).as_row(),
            }
        )
    return made


def _verdict(against: Contestant, one: Contestant, measure: str, level: float) -> Verdict:
    base, other = against.values(measure), one.values(measure)
    if against.is_fixed and one.is_fixed:
        return _compared(tuple(range(base.shape[1])), base.T, other.T, level)
    if not against.is_fixed and not one.is_fixed:
        seeds = [seed for seed in against.by_seed if seed in one.by_seed]
        base = base[[list(against.by_seed).index(seed) for seed in seeds]]
        other = other[[list(one.by_seed).index(seed) for seed in seeds]]
        return _compared(tuple(int(seed or 0) for seed in seeds), base, other, level)
    seeds = list(one.by_seed if against.is_fixed else against.by_seed)
    base, other = np.broadcast_arrays(base, other)
    return _compared(tuple(int(seed or 0) for seed in seeds), base, other, level)


def _compared(seeds: tuple[int, ...], base: Any, other: Any, level: float) -> Verdict:
    ones = np.ones(base.shape[1])
    (verdict,) = compare(
        Scores(seeds, base, ones),
        {"": Scores(seeds, other, ones)},
        metric="score",
        matters=MATTERS,
        confidence=level,
    )
    return verdict


def answered(claim: distillation.ContestClaim, pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A claim about two contestants with the verdict that answers it."""
    row: dict[str, Any] = {**claim.model_dump(mode="json"), "answer": "cannot tell", "word": None}
    for pair in pairs:
        if pair["measure"] == claim.measure and {pair["who"], pair["against"]} == {claim.who, claim.against}:
            turned = pair["who"] != claim.who
            word = OPPOSITE.get(pair["word"], pair["word"]) if turned else pair["word"]
            effect = -pair["effect"] if turned and pair["effect"] is not None else pair["effect"]
            row |= {"word": word, "effect": effect}
            if word == claim.expects:
                row["answer"] = "holds"
            elif word != "cannot tell":
                row["answer"] = "does not hold"
    return row


def costs(about: Mapping[str, Any], finished: Mapping[str, Mapping[int, Run]]) -> dict[str, Any]:
    """What each costs to keep and to use."""
    made = {name: dict(about[name]) for name in (TEACHER, BEFORE)}
    for name, by_seed in finished.items():
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


def side_by_side(about: Mapping[str, Any], who: Sequence[Contestant]) -> list[dict[str, Any]]:
    """A few documents, evenly chosen, with everybody's summary: of a trained student, that of its first seed."""
    documents = about["documents"]
    chosen = [at * len(documents) // SHOWN for at in range(min(SHOWN, len(documents)))]
    return [
        {
            **documents[at],
            "written": {one.name: dict(next(iter(one.by_seed.values()))[at]) for one in who},
        }
        for at in dict.fromkeys(chosen)
    ]


__all__ = ["BASELINE", "BEFORE", "FOLDER", "TEACHER", "find"]
