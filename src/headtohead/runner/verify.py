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

from headtohead.atomic_io import CHECKSUM_KEY, has_valid_checksum, read_json_object, read_jsonl
from headtohead.config.search import SEARCH_FOLDER as SEARCH
from headtohead.errors import HeadToHeadError
from headtohead.experiment import model_io, run_folder, schemas, trust
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.findings import compute
from headtohead.search import points
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.evaluation import evaluate_splits
from headtohead.trials.trial import run_trial

MISMATCH_MESSAGE = "is not what the runs give"
JOURNAL_CHECKSUM_KEY = f"search.checksums.{points.JOURNAL_FILE}"
LOSS_TOLERANCE = 1e-5
"""scores of the same weights on another machine may differ in the last digits"""


@dataclass(frozen=True)
class VerificationCheck:
    """One thing that was looked at."""

    place: str
    what: str
    passed: bool
    found: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


REPORT_FORMATS = {"report.html": "html", "report.md": "md"}
RenderReport = Callable[[Path, Sequence[str], Path], list[Path]]
"""makes a report anew: experiment's folder, formats, where to"""


def verify_experiment(
    folder: Path,
    *,
    rescore: bool = False,
    num_retrained: int = 0,
    render_report: RenderReport | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[VerificationCheck]:
    """Everything that can be checked about this experiment's folder. With `remake`, its reports too."""
    runs = run_folder.open_runs(folder)
    finished = [
        (f"{name}/seed-{seed}", run) for name in runs.experiment.names for seed, run in runs.finished(name).items()
    ]
    checks = []
    for place, run in [*finished, *points.list_finished_runs(folder)]:
        on_progress(f"files of {place}")
        checks += list(_check_run_files(place, run))
    on_progress("figures")
    checks += list(_check_sealed_files(folder))
    checks += list(_check_findings(runs))
    for name, form in REPORT_FORMATS.items() if render_report else ():
        if render_report and (folder / name).is_file():
            on_progress(name)
            checks.append(
                _run_check(
                    name, "made again from the figures", partial(_compare_report, folder, name, form, render_report)
                )
            )
    for place, run in finished if rescore else []:
        on_progress(f"scoring {place} again")
        checks.append(_run_check(place, "scores of the saved weights", partial(_compare_rescored, run)))
    for place, run in random.Random(folder.name).sample(finished, min(num_retrained, len(finished))):
        on_progress(f"training {place} again")
        checks.append(_run_check(place, "training again", partial(_compare_retrained, run)))
    return checks


def _run_check(location: str, description: str, find_mismatch: Callable[[], str]) -> VerificationCheck:
    """A check that could not even be made has failed."""
    try:
        fault = find_mismatch()
    except (HeadToHeadError, OSError, *schemas.INCONSISTENT_DATA_ERRORS) as error:
        fault = f"could not be done: {error}"
    return VerificationCheck(location, description, not fault, fault or "the same")


def _check_run_files(location: str, run: Run) -> Iterator[VerificationCheck]:
    try:
        damaged = [*run.find_damaged_files(), *([] if run.has_valid_checksum else ["result.json"])]
    except HeadToHeadError as error:
        yield VerificationCheck(f"{location}/result.json", "checksums", False, f"could not be read: {error}")
        return
    for name in damaged:
        yield VerificationCheck(f"{location}/{name}", "checksum", False, "was changed, or is gone, since the run ended")
    if not damaged:
        yield VerificationCheck(location, "checksums", True, f"{len(run.result.sha256)} files as they were written")
    yield _run_check(f"{location}/result.json", "figures from the scores", partial(_compare_result_to_scores, run))


def _compare_result_to_scores(run: Run) -> str:
    """Do the figures of result.json follow from the scores of each example, and the last metrics from those?"""
    metric = run.result.metric
    for split, stored in run.result.scores.items():
        counts = run.scores[f"{split}.counts"].sum()
        loss = run.scores[f"{split}.losses"].sum() / counts
        computed = {
            "loss": loss,
            "perplexity": np.exp(min(loss, 700.0)),
            "accuracy": run.scores[f"{split}.correct"].sum() / counts,
        }
        for name in ("loss", metric):
            value = stored.get_metric(name)
            if value is None or not np.isclose(value, computed[name], rtol=1e-9):
                return f"{split} {name} is {value} in the file and {computed[name]:.6g} from its scores"
    return ""


def _check_sealed_files(folder: Path) -> Iterator[VerificationCheck]:
    """The files of the experiment itself against the checksums that they carry."""
    for name in (*compute.CHECKSUMMED_FILES, "findings.json"):
        if (folder / name).is_file() and not has_valid_checksum(read_json_object(folder / name)):
            yield VerificationCheck(name, "checksum", False, "was changed since it was written")


def _check_findings(runs: ExperimentRuns) -> Iterator[VerificationCheck]:
    """findings.json against findings made anew."""
    place = "findings.json"
    if not (runs.folder / place).is_file():
        yield VerificationCheck(place, "is there", False, "the file is missing")
        return
    said = {key: value for key, value in read_json_object(runs.folder / place).items() if key != CHECKSUM_KEY}
    try:
        computed = compute.compute_findings(
            runs, interim_analyses=compute.list_interim_analyses(runs), check_files=False
        )
        made = computed.to_json()
    except (HeadToHeadError, OSError) as error:
        yield VerificationCheck(place, "figures from the runs", False, f"could not be made again: {error}")
        return
    different = list(find_differences(said, made))
    for where in different[:20]:
        yield VerificationCheck(
            _find_checksummed_file(where) or f"{place}: {where}", "figures from the runs", False, MISMATCH_MESSAGE
        )
    if not different:
        yield VerificationCheck(place, "figures from the runs", True, "every figure follows from the runs")


def _find_checksummed_file(key_path: str) -> str | None:
    """Return the file that a differing checksum in findings.json belongs to; None for other differences."""
    if key_path == JOURNAL_CHECKSUM_KEY:
        return f"{SEARCH}/{points.JOURNAL_FILE}"
    is_search = key_path.startswith("search.checksums.")
    if not is_search and not key_path.startswith("checksums."):
        return None
    run = key_path.removeprefix("search.").removeprefix("checksums.")
    return f"{f'{SEARCH}/' if is_search else ''}{run}/result.json"


def find_differences(one: Any, other: Any, key_path: str = "") -> Iterator[str]:
    """Where two pieces of plain data differ; numbers may differ in the last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key not in one or key not in other:
                yield f"{key_path}.{key}".strip(".")
            else:
                yield from find_differences(one[key], other[key], f"{key_path}.{key}".strip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (first, second) in enumerate(zip(one, other, strict=True)):
            yield from find_differences(first, second, f"{key_path}[{index}]")
    elif isinstance(one, float) and isinstance(other, int | float):
        if not np.isclose(one, other, rtol=1e-9):
            yield key_path
    elif one != other:
        yield key_path


def _compare_report(folder: Path, name: str, report_format: str, render_report: RenderReport) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        (made,) = render_report(folder, [report_format], Path(scratch))
        same = made.read_bytes() == (folder / name).read_bytes()
    return "" if same else "was edited, or made by another version"


def _compare_rescored(run: Run) -> str:
    loaded = model_io.load(run.folder)
    trial = run.trial
    found = evaluate_splits(trial, prepare_dataset(trial.data, trial.task), loaded.model, torch.device("cpu"))
    for split, evaluation in found.items():
        stored = run.result.scores[split].loss
        if not np.isclose(stored, evaluation.loss, rtol=LOSS_TOLERANCE):
            return f"{split} loss is {stored:.6g} in the file and {evaluation.loss:.6g} with the saved weights"
    return ""


def _compare_retrained(run: Run) -> str:
    trust.check_trusted(run.folder, trust.list_code_files(run.trial))
    with tempfile.TemporaryDirectory() as scratch:
        again = Path(scratch) / "run"
        run_trial(run.trial, again, device=run.start.device)
        if (again / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes():
            return ""
        said, made = (
            [[line["step"], line["split"], line["loss"]] for line in read_jsonl(place / "metrics.jsonl")]
            for place in (run.folder, again)
        )
        if said == made:
            return "the metrics are the same, but the weights differ"
        if _is_within_rounding(run, said, made):
            return ""
        step, split, loss = next(a for a, b in zip(said, made, strict=False) if a != b)
        return f"differs from step {step} on ({split}: loss {loss:.6g} in the file); same versions and machine?"


def _is_within_rounding(run: Run, stored_metrics: list[list[Any]], retrained_metrics: list[list[Any]]) -> bool:
    """What several processes trained together, one repeats up to rounding, where there is no dropout."""
    training = run.result.training
    if training.processes == 1 and not training.resharded:
        return False
    (places, losses), (other_places, others) = (
        ([line[:2] for line in lines], [line[2] for line in lines]) for lines in (stored_metrics, retrained_metrics)
    )
    return places == other_places and bool(np.allclose(losses, others, rtol=0, atol=LOSS_TOLERANCE))
