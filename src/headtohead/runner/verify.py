"""Verify an experiment's folder, for instructors: do the reported numbers follow from the runs, and can runs be
repeated?

There are four levels: the checksums of all files; the numbers of findings.json, computed again from the scores; the
scores, computed again from the saved weights; and a sample of trials, trained again, which must give identical weights.
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
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.findings import compute
from headtohead.search import points
from headtohead.tasks.registry import prepare_dataset
from headtohead.trials.evaluation import evaluate_splits
from headtohead.trials.trial import run_trial

MISMATCH_MESSAGE = "is not what the runs give"
LOSS_TOLERANCE = 1e-5
"""tolerance for scores of the same weights, which differ in the last digits between machines"""


@dataclass(frozen=True)
class VerificationCheck:
    """The result of one check."""

    place: str
    what: str
    passed: bool
    found: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


REPORT_FORMATS = {"report.html": "html", "report.md": "md"}
RenderReport = Callable[[Path, Sequence[str], Path], list[Path]]
"""renders a report: (experiment's folder, formats, output folder) to the written paths"""


def verify_experiment(
    folder: Path,
    *,
    rescore: bool = False,
    num_retrained: int = 0,
    render_report: RenderReport | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[VerificationCheck]:
    """Return the results of all checks of an experiment's folder.

    Args:
        folder: The folder of the experiment.
        rescore: Evaluate the saved weights of every run again.
        num_retrained: Number of randomly chosen trials to train again.
        render_report: Function that renders a report, to compare with the reports in the folder.
        on_progress: Called with a description of each step.
    """
    runs = run_folder.open_runs(folder)
    finished = [
        (f"{name}/seed-{seed}", run) for name in runs.experiment.names for seed, run in runs.finished(name).items()
    ]
    checks = []
    for location, run in [*finished, *points.list_finished_runs(folder)]:
        on_progress(f"files of {location}")
        checks += list(_check_run_files(location, run))
    on_progress("journal")
    checks.append(_run_check(JOURNAL_FILE, "chain of checksums", partial(_check_journal, runs)))
    on_progress("figures")
    checks += list(_check_sealed_files(folder))
    checks += list(_check_findings(runs))
    for name, report_format in REPORT_FORMATS.items() if render_report else ():
        if render_report and (folder / name).is_file():
            on_progress(name)
            checks.append(
                _run_check(
                    name,
                    "made again from the figures",
                    partial(_compare_report, folder, name, report_format, render_report),
                )
            )
    for location, run in finished if rescore else []:
        on_progress(f"scoring {location} again")
        checks.append(_run_check(location, "scores of the saved weights", partial(_compare_rescored, run)))
    for location, run in random.Random(folder.name).sample(finished, min(num_retrained, len(finished))):
        on_progress(f"training {location} again")
        checks.append(_run_check(location, "training again", partial(_compare_retrained, run)))
    return checks


def _run_check(location: str, description: str, find_mismatch: Callable[[], str]) -> VerificationCheck:
    """Run a check. It fails if `find_mismatch` returns a description of a mismatch or raises an error."""
    try:
        mismatch = find_mismatch()
    except (HeadToHeadError, OSError, *schemas.INCONSISTENT_DATA_ERRORS) as error:
        mismatch = f"could not be done: {error}"
    return VerificationCheck(location, description, not mismatch, mismatch or "the same")


def _check_run_files(location: str, run: Run) -> Iterator[VerificationCheck]:
    """Check the checksums of a run, and that result.json follows from its scores."""
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
    """Return how result.json differs from the per-example scores; empty if it agrees."""
    metric = run.result.metric
    for split, stored in run.result.scores.items():
        counts = run.scores[f"{split}.counts"].sum()
        loss = run.scores[f"{split}.losses"].sum() / counts
        computed = {
            "loss": loss,
            "perplexity": np.inf if loss > 700.0 else np.exp(loss),
            "accuracy": run.scores[f"{split}.correct"].sum() / counts,
        }
        for name in ("loss", metric):
            value = stored.get_metric(name)  # NaN if it was not finite
            expected = computed[name] if np.isfinite(computed[name]) else np.nan
            if value is None or not np.isclose(value, expected, rtol=1e-9, equal_nan=True):
                return f"{split} {name} is {value} in the file and {computed[name]:.6g} from its scores"
    return ""


def _check_journal(runs: ExperimentRuns) -> str:
    """Return what is wrong with the journal; empty if every line is as it was written."""
    return "" if Journal(runs.folder).read() else "the file is missing or empty"


def _check_sealed_files(folder: Path) -> Iterator[VerificationCheck]:
    """Check the files of the experiment that contain their own checksum."""
    for name in (*compute.CHECKSUMMED_FILES, "findings.json"):
        if (folder / name).is_file() and not has_valid_checksum(read_json_object(folder / name)):
            yield VerificationCheck(name, "checksum", False, "was changed since it was written")


def _check_findings(runs: ExperimentRuns) -> Iterator[VerificationCheck]:
    """Compare findings.json with findings computed from the runs."""
    file_name = "findings.json"
    if not (runs.folder / file_name).is_file():
        yield VerificationCheck(file_name, "is there", False, "the file is missing")
        return
    stored = {key: value for key, value in read_json_object(runs.folder / file_name).items() if key != CHECKSUM_KEY}
    try:
        findings = compute.compute_findings(
            runs, interim_analyses=compute.list_interim_analyses(runs), check_files=False
        )
        recomputed = findings.to_json()
    except (HeadToHeadError, OSError) as error:
        yield VerificationCheck(file_name, "figures from the runs", False, f"could not be made again: {error}")
        return
    differences = list(find_differences(stored, recomputed))
    for key_path in differences[:20]:
        yield VerificationCheck(
            _find_checksummed_file(key_path) or f"{file_name}: {key_path}",
            "figures from the runs",
            False,
            MISMATCH_MESSAGE,
        )
    if not differences:
        yield VerificationCheck(file_name, "figures from the runs", True, "every figure follows from the runs")


def _find_checksummed_file(key_path: str) -> str | None:
    """Return the file that a differing checksum in findings.json belongs to; None for other differences."""
    is_search = key_path.startswith("search.checksums.")
    if not is_search and not key_path.startswith("checksums."):
        return None
    run = key_path.removeprefix("search.").removeprefix("checksums.")
    return f"{f'{SEARCH}/' if is_search else ''}{run}/result.json"


def find_differences(one: Any, other: Any, key_path: str = "") -> Iterator[str]:
    """Yield the key path of each difference between two JSON values. Floats may differ in the last digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            if key not in one or key not in other:
                yield f"{key_path}.{key}".strip(".")
            else:
                yield from find_differences(one[key], other[key], f"{key_path}.{key}".strip("."))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (item, other_item) in enumerate(zip(one, other, strict=True)):
            yield from find_differences(item, other_item, f"{key_path}[{index}]")
    elif isinstance(one, float) and isinstance(other, int | float):
        if not np.isclose(one, other, rtol=1e-9):
            yield key_path
    elif one != other:
        yield key_path


def _compare_report(folder: Path, name: str, report_format: str, render_report: RenderReport) -> str:
    """Return how a report in the folder differs from a newly rendered one; empty if it is identical."""
    with tempfile.TemporaryDirectory() as scratch:
        (rendered_path,) = render_report(folder, [report_format], Path(scratch))
        is_identical = rendered_path.read_bytes() == (folder / name).read_bytes()
    return "" if is_identical else "was edited, or made by another version"


def _compare_rescored(run: Run) -> str:
    """Return how the recorded losses differ from those of the saved weights; empty if they agree."""
    saved_model = model_io.load(run.folder)
    trial = run.trial
    evaluations = evaluate_splits(
        trial, prepare_dataset(trial.data, trial.task), saved_model.model, torch.device("cpu")
    )
    for split, evaluation in evaluations.items():
        stored = run.result.scores[split].loss
        if not np.isclose(stored, evaluation.loss, rtol=LOSS_TOLERANCE):
            return f"{split} loss is {stored:.6g} in the file and {evaluation.loss:.6g} with the saved weights"
    return ""


def _compare_retrained(run: Run) -> str:
    """Return how a run differs from training the same trial again; empty if it is reproduced."""
    trust.check_trusted(run.folder, trust.list_code_files(run.trial))
    with tempfile.TemporaryDirectory() as scratch:
        retrained_folder = Path(scratch) / "run"
        run_trial(run.trial, retrained_folder, device=run.start.device)
        if (retrained_folder / "model.safetensors").read_bytes() == (run.folder / "model.safetensors").read_bytes():
            return ""
        stored_metrics, retrained_metrics = (
            [[line["step"], line["split"], line["loss"]] for line in read_jsonl(folder / "metrics.jsonl")]
            for folder in (run.folder, retrained_folder)
        )
        if stored_metrics == retrained_metrics:
            return "the metrics are the same, but the weights differ"
        if _is_within_rounding(run, stored_metrics, retrained_metrics):
            return ""
        step, split, loss = next(
            stored for stored, retrained in zip(stored_metrics, retrained_metrics, strict=False) if stored != retrained
        )
        return f"differs from step {step} on ({split}: loss {loss:.6g} in the file); same versions and machine?"


def _is_within_rounding(run: Run, stored_metrics: list[list[Any]], retrained_metrics: list[list[Any]]) -> bool:
    """Return whether two lists of metrics agree up to rounding, for runs trained by several processes.

    One process repeats such a run up to rounding if there is no dropout. Other runs must be reproduced exactly.
    """
    training = run.result.training
    if training.processes == 1 and not training.resharded:
        return False
    (stored_keys, stored_losses), (retrained_keys, retrained_losses) = (
        ([line[:2] for line in lines], [line[2] for line in lines]) for lines in (stored_metrics, retrained_metrics)
    )
    return stored_keys == retrained_keys and bool(
        np.allclose(stored_losses, retrained_losses, rtol=0, atol=LOSS_TOLERANCE)
    )
