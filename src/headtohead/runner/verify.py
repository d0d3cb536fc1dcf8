"""Verify an experiment's folder: do the reported numbers follow from the runs, and are the runs reproducible?

There are five levels: the checksums of all files and the journal records; the numbers in findings.json, recomputed from
the scores; scores, audits, data checks and initial weights, recomputed from the saved weights and the corpus; the
scores of individual rows, recomputed by a process that cannot see the tokens it predicts; and a sample of trials, which
are retrained and must give identical weights.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headtohead import safe_open
from headtohead.atomic_io import CHECKSUM_KEY, has_valid_checksum, read_json_object
from headtohead.config.experiment import BASELINE
from headtohead.config.search import SEARCH_FOLDER as SEARCH
from headtohead.errors import HeadToHeadError
from headtohead.experiment import run_folder, schemas
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.machines import describe_mixed_machines
from headtohead.experiment.run_checks import find_issues
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.findings import compute
from headtohead.runner import recompute
from headtohead.runner.isolated_scoring import compare_isolated
from headtohead.search import points

MISMATCH_MESSAGE = "is not what the runs give"


@dataclass(frozen=True)
class VerificationCheck:
    """The result of one check."""

    location: str
    """file, run or variant that was checked"""
    description: str
    """what was checked"""
    passed: bool
    observation: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


REPORT_FORMATS = {"report.html": "html", "report.md": "md"}
RenderReport = Callable[[Path, Sequence[str], Path], list[Path]]
"""renders a report: (experiment's folder, formats, output folder) to the written paths"""


def verify_experiment(
    folder: Path,
    *,
    rescore: bool = False,
    isolated: bool = False,
    num_retrained: int = 0,
    render_report: RenderReport | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[VerificationCheck]:
    """Return the results of all checks on an experiment's folder.

    Args:
        folder: The experiment's folder.
        rescore: Recompute scores and audits from every run's saved weights, and repeat the data checks.
        isolated: Score randomly chosen rows in a process that receives one token at a time.
        num_retrained: Number of randomly chosen trials to retrain.
        render_report: Function that renders a report, for comparison with the reports in the folder.
        on_progress: Called with a description of each step.
    """
    runs = run_folder.open_runs(folder)
    finished = [
        (f"{name}/seed-{seed}", run) for name in runs.experiment.names for seed, run in runs.finished(name).items()
    ]
    checks = [run_check(str(folder), "plain files", partial(safe_open.find_hard_link, folder))]
    for location, run in [*finished, *points.list_finished_runs(folder)]:
        on_progress(f"files of {location}")
        checks += list(_check_run_files(location, run))
    on_progress("journal")
    checks += list(_check_recorded_runs(runs))
    checks.append(_report_environments([run for _, run in finished]))
    on_progress("figures")
    checks += list(_check_checksummed_files(folder))
    checks += list(_check_findings(runs))
    checks += list(check_reports(folder, render_report, on_progress))
    if rescore:
        on_progress("checking the corpus again")
        checks.append(run_check("corpus.json", "data checks and unseen rows", partial(recompute.compare_corpus, runs)))
    for location, run in finished if rescore else []:
        on_progress(f"scoring {location} again")
        recomputed = recompute.RecomputedRun(run)
        for description, find_mismatch in recomputed.checks.items():
            checks.append(run_check(location, description, find_mismatch))
    for location, run in finished if isolated else []:
        on_progress(f"scoring {location} token by token")
        checks.append(run_check(location, "scores of an isolated process", partial(compare_isolated, run)))
    # Sampled from the system's entropy, so that nobody can predict which runs are retrained.
    for location, run in random.SystemRandom().sample(finished, min(num_retrained, len(finished))):
        on_progress(f"training {location} again")
        checks.append(run_check(location, "training again", partial(recompute.compare_retrained, run)))
    return checks


@dataclass(frozen=True)
class FolderVerification:
    """The result of verifying one of many folders."""

    folder: str
    checks: list[VerificationCheck]

    @property
    def num_failed(self) -> int:
        return sum(not check.passed for check in self.checks)

    @property
    def first_problem(self) -> str:
        """Return the first failed check with its location, or an empty string."""
        failed = next((check for check in self.checks if not check.passed), None)
        return f"{failed.location}: {failed.observation}" if failed else ""

    def to_dict(self) -> dict[str, Any]:
        return {"folder": self.folder, "passed": self.num_failed == 0, "checks": [c.to_dict() for c in self.checks]}


def verify_folder(folder: Path, verify: Callable[[Path], list[VerificationCheck]]) -> FolderVerification:
    """Verify a folder with the given function. An unreadable folder counts as a failed check."""
    try:
        checks = verify(folder)
    except (HeadToHeadError, OSError, *schemas.INCONSISTENT_DATA_ERRORS) as error:
        checks = [VerificationCheck(str(folder), "folder", False, f"{error}" or type(error).__name__)]
    return FolderVerification(str(folder), checks)


def run_check(location: str, description: str, find_mismatch: Callable[[], str]) -> VerificationCheck:
    """Run a check. It fails if `find_mismatch` returns a description of a mismatch or raises an error."""
    try:
        mismatch = find_mismatch()
    except (HeadToHeadError, OSError, *schemas.INCONSISTENT_DATA_ERRORS) as error:
        mismatch = f"could not be done: {error}"
    return VerificationCheck(location, description, not mismatch, mismatch or "the same")


def _report_environments(runs: Sequence[Run]) -> VerificationCheck:
    """Report mixed package versions, devices and processors. They do not indicate edited files, so the check passes."""
    try:
        observation, passed = describe_mixed_machines(runs) or "one environment", True
    except HeadToHeadError as error:
        observation, passed = f"could not be read: {error}", False
    return VerificationCheck("start.json", "versions, devices and processors", passed, observation)


def _check_run_files(location: str, run: Run) -> Iterator[VerificationCheck]:
    """Check a run's checksums, and that result.json follows from its scores."""
    try:
        damaged = [*run.find_damaged_files(), *([] if run.has_valid_checksum else ["result.json"])]
    except HeadToHeadError as error:
        yield VerificationCheck(f"{location}/result.json", "checksums", False, f"could not be read: {error}")
        return
    for name in damaged:
        yield VerificationCheck(f"{location}/{name}", "checksum", False, "was changed or removed after the run ended")
    if not damaged:
        yield VerificationCheck(location, "checksums", True, f"{len(run.result.sha256)} files as they were written")
    yield run_check(f"{location}/result.json", "figures from the scores", partial(_compare_result_to_scores, run))


def _compare_result_to_scores(run: Run) -> str:
    """Return how result.json differs from the per-example scores, or an empty string if it agrees."""
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


def _check_recorded_runs(runs: ExperimentRuns) -> Iterator[VerificationCheck]:
    """Check that all runs belong to the experiment, that the journal records them, and that no seed is missing."""
    yield run_check(JOURNAL_FILE, "chain of checksums", lambda: "" if _read_events(runs) else "missing or empty")
    try:
        issues = find_issues(runs)
    except HeadToHeadError as error:
        issues = []
        yield VerificationCheck(str(runs.folder), "runs of the experiment", False, f"could not be done: {error}")
    for issue in issues:
        folders = ", ".join(f"{issue.variant}/seed-{seed}" for seed in issue.seeds) or issue.variant
        yield VerificationCheck(folders, "runs of the experiment", False, issue.reason)
    if not issues:
        yield VerificationCheck(JOURNAL_FILE, "runs of the experiment", True, "all runs are recorded, and no others")
    for name in runs.experiment.names:
        yield run_check(name, "list of seeds", partial(_find_missing_seeds, runs, name))


def _read_events(runs: ExperimentRuns) -> list[schemas.JournalEvent]:
    return Journal(runs.folder).read()


def _find_missing_seeds(runs: ExperimentRuns, variant: str) -> str:
    """Return the requested seeds that have no result, or an empty string if there are none.

    With seeds = "auto", a variant needs no seeds beyond the baseline's.
    """
    is_auto = isinstance(runs.experiment.seeds, str)
    num_seeds = max(runs.finished(BASELINE), default=-1) + 1 if is_auto else runs.experiment.max_seeds
    missing = sorted({*range(num_seeds)} - {*runs.finished(variant)})
    if not missing:
        return ""
    failures = [failure.message for seed in missing if (failure := runs.run(variant, seed).failure)]
    reason = f" ({failures[0]})" if failures else ""
    return f"seeds without a result: {', '.join(map(str, missing))}{reason}; train them with --resume"


def _check_checksummed_files(folder: Path) -> Iterator[VerificationCheck]:
    """Check the experiment files that contain their own checksum."""
    for name in (*compute.CHECKSUMMED_FILES, "findings.json"):
        if (folder / name).is_file():
            check = run_check(name, "checksum", partial(check_own_checksum, folder / name))
            if not check.passed:
                yield check


def check_own_checksum(path: Path) -> str:
    return "" if has_valid_checksum(read_json_object(path)) else "was changed since it was written"


def _check_findings(runs: ExperimentRuns) -> Iterator[VerificationCheck]:
    """Compare findings.json with the findings recomputed from the runs."""
    file_name = "findings.json"
    if not (runs.folder / file_name).is_file():
        yield VerificationCheck(file_name, "is there", False, "the file is missing")
        return
    try:
        stored = {key: value for key, value in read_json_object(runs.folder / file_name).items() if key != CHECKSUM_KEY}
        findings = compute.compute_findings(runs, check_files=False)
        recomputed = findings.to_json()
    except (HeadToHeadError, OSError) as error:
        yield VerificationCheck(file_name, "figures from the runs", False, f"could not be recomputed: {error}")
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
        yield VerificationCheck(file_name, "figures from the runs", True, "every number follows from the runs")


def _find_checksummed_file(key_path: str) -> str | None:
    """Return the file that a differing checksum in findings.json belongs to, or None for any other difference."""
    is_search = key_path.startswith("search.checksums.")
    if not is_search and not key_path.startswith("checksums."):
        return None
    run = key_path.removeprefix("search.").removeprefix("checksums.")
    return f"{f'{SEARCH}/' if is_search else ''}{run}/result.json"


def find_differences(first: Any, second: Any, key_path: str = "") -> Iterator[str]:
    """Yield the key path of each difference between two JSON values. Floats may differ in their last digits."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in {**first, **second}:
            if key not in first or key not in second:
                yield f"{key_path}.{key}".strip(".")
            else:
                yield from find_differences(first[key], second[key], f"{key_path}.{key}".strip("."))
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        for index, (item, other_item) in enumerate(zip(first, second, strict=True)):
            yield from find_differences(item, other_item, f"{key_path}[{index}]")
    elif isinstance(first, float) and isinstance(second, int | float):
        if not np.isclose(first, second, rtol=1e-9):
            yield key_path
    elif first != second:
        yield key_path


def check_reports(
    folder: Path, render_report: RenderReport | None, on_progress: Callable[[str], None]
) -> Iterator[VerificationCheck]:
    """Re-render the reports in the folder and compare them."""
    for name, report_format in REPORT_FORMATS.items() if render_report else ():
        if render_report and (folder / name).is_file():
            on_progress(name)
            find_mismatch = partial(_compare_report, folder, name, report_format, render_report)
            yield run_check(name, "rendered again from the findings", find_mismatch)


def _compare_report(folder: Path, name: str, report_format: str, render_report: RenderReport) -> str:
    """Return how a report in the folder differs from a newly rendered one, or an empty string if they are identical."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings(record=True) as missing_charts:
        warnings.simplefilter("always")
        render_report(folder, [report_format], Path(scratch))
        is_identical = (Path(scratch) / name).read_bytes() == safe_open.read_file(folder / name)
    if is_identical:
        return ""
    if missing_charts:
        return f"could not be made again: {missing_charts[0].message}"
    return "was edited, or made by another version"
