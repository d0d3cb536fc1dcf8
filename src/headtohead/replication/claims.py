"""What others published, answered: their figures beside ours, and whether their claims hold here."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from headtohead.config import experiment
from headtohead.config.base import span_in_steps
from headtohead.config.experiment import BASELINE
from headtohead.experiment.run_folder import Run
from headtohead.verdict.compare import compare
from headtohead.verdict.record import Verdict
from headtohead.verdict.scores import Scores
from headtohead.verdict.statistics import mean_interval

Finished = Mapping[str, Mapping[int, Run]]
HOLDS, FAILS, OPEN = "holds", "does not hold", "cannot tell"


def is_original(experiment: experiment.Experiment, digest: str) -> bool:
    """Are these the texts that the published figures were measured on?"""
    return experiment.original is None or not experiment.original.corpus or experiment.original.corpus == digest


def beside(figure: experiment.Published, finished: Finished, *, original: bool) -> dict[str, Any]:
    """A published figure with ours: the mean over seeds, at that step or at the end, with its interval."""
    values = []
    for run in finished.get(figure.variant, {}).values():
        if figure.step is None:
            values.append(run.result["scores"].get(figure.split, {}).get(figure.metric))
        else:
            line = _line(run, figure.split, figure.step)
            values.append(None if line is None else line.get(figure.metric))
    known = [float(value) for value in values if value is not None]
    return {
        **figure.model_dump(mode="json"),
        "other_data": figure.other_data or not original,
        "ours": statistics.fmean(known) if known else None,
        "interval": mean_interval(known),
        "seeds": len(known),
    }


def _line(run: Run, split: str, when: int | str) -> dict[str, Any] | None:
    """What was noted about a split at that step."""
    step = span_in_steps(when, run.start["steps_per_epoch"])
    return next((x for x in run.metrics if x["split"] == split and x["step"] == step), None)


def answers(
    experiment: experiment.Experiment,
    finished: Finished,
    verdicts: Sequence[Verdict],
    others: Mapping[str, Sequence[Verdict]],
    failed: Mapping[str, str],
    held_out: Sequence[str],
    among: Mapping[tuple[str, str], Verdict] | None = None,
) -> list[dict[str, Any]]:
    """Each claim with the verdict that answers it. One at the end is answered by the file's comparison of the two
    (`among`) where it has one, else by the experiment's own verdict; one along the way or at another length by a
    comparison of its own, on the totals of each seed."""
    found = []
    for claim in experiment.claims:
        at_the_end = claim.step is None and claim.context is None
        pair = (claim.against, claim.variant)
        if claim.against != BASELINE or (at_the_end and claim.split is None and pair in (among or {})):
            verdict = (among or {}).get(pair)
        elif at_the_end:
            named = next((rows for name, rows in others.items() if name == claim.split), None)
            rows = verdicts if claim.split is None else named
            verdict = next((v for v in rows or () if v.variant == claim.variant), None)
        else:
            names = [claim.split] if claim.split else list(held_out)
            verdict = _by_totals(experiment, finished, claim, names, failed)
        found.append(_answer(claim, verdict))
    return found


def _by_totals(
    experiment: experiment.Experiment,
    finished: Finished,
    claim: experiment.Claim,
    splits: Sequence[str],
    failed: Mapping[str, str],
) -> Verdict | None:
    """Along the way, the variant against the baseline at that step. On inputs of another length, the variant against
    itself at the length that it was trained with: does it keep what it can do?"""
    kind = "accuracy" if experiment.primary.metric == "accuracy" else "loss"

    def at_step(run: Run) -> list[tuple[float, float]]:
        assert claim.step is not None
        return _sums([line for name in splits if (line := _line(run, name, claim.step))], kind, len(splits))

    def at_length(run: Run, length: int | None) -> list[tuple[float, float]]:
        rows = [row for row in run.lengths.get("contexts", []) if row["context"] == length and row["split"] in splits]
        return _sums([row for row in rows if "error" not in row], kind, len(splits))

    variant = finished.get(claim.variant, {})
    if claim.context is None:
        before, after = _totals_of(finished.get(BASELINE, {}), at_step), _totals_of(variant, at_step)
    else:
        before = _totals_of(variant, lambda run: at_length(run, run.trial.model.context))
        after = _totals_of(variant, lambda run: at_length(run, claim.context))
    if before is None or after is None or not np.array_equal(before.weights, after.weights):
        return None
    barred = {name: reason for name, reason in failed.items() if name == claim.variant}
    metric, matters = experiment.primary.metric, experiment.matters
    (verdict,) = compare(before, {claim.variant: after}, metric=metric, matters=matters, failed=barred)
    return verdict


def _sums(rows: Sequence[Mapping[str, Any]], kind: str, wanted: int) -> list[tuple[float, float]]:
    """Total and count for each text; nothing unless all are there."""
    return [(row[kind] * row["count"], row["count"]) for row in rows] if len(rows) == wanted else []


def _totals_of(found: Mapping[int, Run], totals: Callable[[Run], list[tuple[float, float]]]) -> Scores | None:
    """The sum over texts for each seed, as a single example."""
    by_seed = {seed: pairs for seed, run in found.items() if (pairs := totals(run))}
    if not by_seed:
        return None
    values = np.array([[sum(value for value, _ in pairs)] for pairs in by_seed.values()])
    weight = sum(count for _, count in next(iter(by_seed.values())))
    return Scores(tuple(by_seed), values, np.array([float(weight)]))


def _answer(claim: experiment.Claim, verdict: Verdict | None) -> dict[str, Any]:
    row: dict[str, Any] = {**claim.model_dump(mode="json"), "answer": OPEN, "word": None, "sentence": ""}
    if verdict is None:
        what = (
            "the baseline cannot be tested there" if claim.context is not None else "there is nothing to answer it by"
        )
        return {**row, "sentence": what}
    said = verdict.as_row()
    word = str(said["word"])
    row |= {key: said[key] for key in ("word", "effect", "interval", "seeds", "sentence")}
    if word == claim.expects:
        row["answer"] = HOLDS
    elif word != "cannot tell":
        row["answer"] = FAILS
    return row
