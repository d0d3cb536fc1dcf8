"""For instructors: is what a report says what the runs say, and would they say it again?

Four depths. Files: the checksums of every run. Figures: everything in findings.json made again from the runs' scores.
Scores: the saved weights evaluated anew. Retraining: a sample of trials from the start, which must give the same bits.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from headtohead.atomic_io import SEAL, is_as_written, read_lines, read_table
from headtohead.config.search import FOLDER as SEARCH
from headtohead.errors import HeadToHeadError
from headtohead.experiment import findings, model_io, run_folder, schemas, trust
from headtohead.experiment.run_folder import Run, Runs
from headtohead.experiment.trial import evaluate_splits, prepare, run_trial
from headtohead.search import points

DIFFERS = "is not what the runs give"
JOURNAL_SEAL = f"search.seals.{points.JOURNAL}"
CLOSE = 1e-5
"""scores of the same weights on another machine may differ in the last digits"""


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    place: str
    what: str
    passed: bool
    found: str

    def as_row(self) -> dict[str, Any]:
        return asdict(self)


REPORTS = {"report.html": "html", "report.md": "md"}
Remake = Callable[[Path, Sequence[str], Path], list[Path]]
"""makes a report anew: experiment's folder, formats, where to"""


def verify(
    folder: Path,
    *,
    rescore: bool = False,
    retrain: int = 0,
    remake: Remake | None = None,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Check]:
    """Everything that can be checked about this experiment's folder. With `remake`, its reports too."""
    runs = run_folder.open_runs(folder)
    finished = [
        (f"{name}/seed-{seed}", run) for name in runs.experiment.names for seed, run in runs.finished(name).items()
    ]
    checks = []
    for place, run in [*finished, *points.finished_runs(folder)]:
        tell(f"files of {place}")
        checks += list(_files(place, run))
    tell("figures")
    checks += list(_sealed(folder))
    checks += list(_figures(runs))
    for name, form in REPORTS.items() if remake else ():
        if remake and (folder / name).is_file():
            tell(name)
            checks.append(_guarded(name, "made again from the figures", partial(_report, folder, name, form, remake)))
    for place, run in finished if rescore else []:
        tell(f"scoring {place} again")
        checks.append(_guarded(place, "scores of the saved weights", partial(_rescore, run)))
    for place, run in random.Random(folder.name).sample(finished, min(retrain, len(finished))):
        tell(f"training {place} again")
        checks.append(_guarded(place, "training again", partial(_retrain, run)))
    return checks


def _guarded(place: str, what: str, work: Callable[[], str]) -> Check:
    """A check that could not even be made has failed."""
    try:
        fault = work()
    except (HeadToHeadError, OSError, *schemas.ODD) as error:
        fault = f"could not be done: {error}"
    return Check(place, what, not fault, fault or "the same")


def _files(place: str, run: Run) -> Iterator[Check]:
    try:
        damaged = [*run.damaged(), *([] if run.is_as_written else ["result.json"])]
    except HeadToHeadError as error:
        yield Check(f"{place}/result.json", "checksums", False, f"could not be read: {error}")
        return
    for name in damaged:
        yield Check(f"{place}/{name}", "checksum", False, "was changed, or is gone, since the run ended")
    if not damaged:
        yield Check(place, "checksums", True, f"{len(run.result['sha256'])} files as they were written")
    yield _guarded(f"{place}/result.json", "figures from the scores", partial(_result_from_scores, run))


def _result_from_scores(run: Run) -> str:
    """Do the figures of result.json follow from the scores of each example, and the last metrics from those?"""
    metric = run.result["metric"]
    for split, said in run.result["scores"].items():
        counts = run.scores[f"{split}.counts"].sum()
        loss = run.scores[f"{split}.losses"].sum() / counts
        made = {
            "loss": loss,
            "perplexity": np.exp(min(loss, 700.0)),
            "accuracy": run.scores[f"{split}.correct"].sum() / counts,
        }
        for name in ("loss", metric):
            if not np.isclose(said[name], made[name], rtol=1e-9):
                return f"{split} {name} is {said[name]:.6g} in the file and {made[name]:.6g} from its scores"
    return ""


def _sealed(folder: Path) -> Iterator[Check]:
    """The files of the experiment itself against the checksums that they carry."""
    for name in (*findings.SEALED, "findings.json"):
        if (folder / name).is_file() and not is_as_written(read_table(folder / name)):
            yield Check(name, "checksum", False, "was changed since it was written")


def _figures(runs: Runs) -> Iterator[Check]:
    """findings.json against findings made anew."""
    place = "findings.json"
    if not (runs.folder / place).is_file():
        yield Check(place, "is there", False, "the file is missing")
        return
    said = {key: value for key, value in read_table(runs.folder / place).items() if key != SEAL}
    try:
        made = findings.find(runs, looks=findings.looks_of(runs), checked=False)
    except (HeadToHeadError, OSError) as error:
        yield Check(place, "figures from the runs", False, f"could not be made again: {error}")
        return
    different = [where for where in differences(said, made) if not _is_older(where, said)]
    for where in different[:20]:
        yield Check(_sealed_place(where) or f"{place}: {where}", "figures from the runs", False, DIFFERS)
    if not different:
        yield Check(place, "figures from the runs", True, "every figure follows from the runs")


def _sealed_place(where: str) -> str | None:
    """The file that findings.json holds a checksum of, if that is where the two differ."""
    if where == JOURNAL_SEAL:
        return f"{SEARCH}/{points.JOURNAL}"
    searched = where.startswith("search.seals.")
    name = where.removeprefix("search.").removeprefix("seals.") if searched or where.startswith("seals.") else None
    return name and f"{f'{SEARCH}/' if searched else ''}{name}/result.json"


def _is_older(where: str, said: dict[str, Any]) -> bool:
    """Earlier versions kept no checksum of the journal."""
    return where == JOURNAL_SEAL and points.JOURNAL not in said["search"]["seals"]


def differences(one: Any, other: Any, place: str = "") -> Iterator[str]:
    """Where two pieces of plain data differ; numbers may differ in the last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key not in one or key not in other:
                yield f"{place}.{key}".strip(".")
            else:
                yield from differences(one[key], other[key], f"{place}.{key}".strip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from differences(first, second, f"{place}[{index}]")
    elif isinstance(one, float) and isinstance(other, int | float):
        if not np.isclose(one, other, rtol=1e-9):
            yield place
    elif one != other:
        yield place


def _report(folder: Path, name: str, form: str, remake: Remake) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        (made,) = remake(folder, [form], Path(scratch))
        same = made.read_bytes() == (folder / name).read_bytes()
    return "" if same else "was edited, or made by another version"


def _rescore(run: Run) -> str:
    loaded = model_io.load(run.folder)
    trial = run.trial
    found = evaluate_splits(trial, prepare(trial.data, trial.task), loaded.model, torch.device("cpu"))
    for split, evaluation in found.items():
        said = run.result["scores"][split]["loss"]
        if not np.isclose(said, evaluation.loss, rtol=CLOSE):
            return f"{split} loss is {said:.6g} in the file and {evaluation.loss:.6g} with the saved weights"
    return ""


def _retrain(run: Run) -> str:
    trust.check(run.folder, trust.named(run.trial))
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / "run"
        run_trial(run.trial, again, device=run.start["device"])
        if (again / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes():
            return ""
        said, made = (
            [[line["step"], line["split"], line["loss"]] for line in read_lines(place / "metrics.jsonl")]
            for place in (run.folder, again)
        )
        if said == made:
            return "the metrics are the same, but the weights differ"
        if _is_near(run, said, made):
            return ""
        step, split, loss = next(a for a, b in zip(said, made, strict=False) if a != b)
        return f"differs from step {step} on ({split}: loss {loss:.6g} in the file); same versions and machine?"


def _is_near(run: Run, said: list[list[Any]], made: list[list[Any]]) -> bool:
    """What several processes trained together, one repeats up to rounding, where there is no dropout."""
    trained = run.result["trained"]
    if trained.get("processes", 1) == 1 and not trained.get("resharded"):
        return False
    (places, losses), (other_places, others) = (
        ([line[:2] for line in lines], [line[2] for line in lines]) for lines in (said, made)
    )
    return places == other_places and bool(np.allclose(losses, others, rtol=0, atol=CLOSE))
