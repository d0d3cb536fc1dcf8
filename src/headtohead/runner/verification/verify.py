"""Verify an experiment's folder: do the reported numbers follow from the runs, and are the runs reproducible?

There are five levels: the checksums of all files and the journal records; the numbers in findings.json, recomputed from
the scores; scores, audits, data checks and initial weights, recomputed from the saved weights and the corpus; the
scores of individual rows, recomputed by a process that cannot see the tokens it predicts; and a sample of trials, which
are retrained and must give identical files.
"""

from __future__ import annotations

import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from headtohead import safe_open
from headtohead.config.experiment import BASELINE
from headtohead.config.tables.search import SEARCH_FOLDER as SEARCH
from headtohead.errors import HeadToHeadError
from headtohead.experiment import run_folder, schemas
from headtohead.experiment.journal import JOURNAL_FILE, Journal, compute_settings_digest
from headtohead.experiment.provenance.environment_comparison import describe_mixed_environments
from headtohead.experiment.provenance.run_membership import find_run_issues
from headtohead.experiment.run_folder import ExperimentRuns, Run
from headtohead.experiment.sweep_cells import get_cell_folder
from headtohead.findings import compute
from headtohead.json_files import CHECKSUM_KEY, has_valid_json_checksum, read_json_object
from headtohead.runner.verification import recompute
from headtohead.runner.verification.isolated_scoring import compare_isolated_losses
from headtohead.runner.verification.json_differences import find_json_differences
from headtohead.runner.verification.retrain import retrain_and_compare
from headtohead.search import points, tuning

MISMATCH_MESSAGE = "is not what the runs give"


@dataclass(frozen=True)
class VerificationCheck:
    """The result of one check of an experiment's folder."""

    location: str
    """file, run or variant that was checked"""
    description: str
    """what was checked"""
    passed: bool
    observation: str
    """the mismatch if the check failed, otherwise what was found"""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


OUTPUT_FORMATS = {"report.html": "html", "report.md": "md"}
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
    runs = run_folder.open_experiment_runs(folder)
    if runs.experiment.sweep is not None:
        verify_cell = partial(
            verify_experiment,
            rescore=rescore,
            isolated=isolated,
            render_report=render_report,
            on_progress=on_progress,
        )
        checks = list(_check_cells(runs, verify_cell, num_retrained))
        checks += [_check_recorded_settings(runs), *_check_checksummed_files(folder), *_check_findings(runs)]
        return [*checks, *check_reports(folder, render_report, on_progress)]
    finished_runs = [
        (f"{name}/seed-{seed}", run) for name in runs.experiment.names for seed, run in runs.finished(name).items()
    ]
    checks = [run_check(str(folder), "plain files", partial(safe_open.find_hard_link, folder))]
    search_runs = [*points.list_finished_search_runs(folder), *tuning.list_finished_tuning_runs(folder)]
    for location, run in [*finished_runs, *search_runs]:
        on_progress(f"files of {location}")
        checks += list(_check_run_files(location, run))
    on_progress("journal")
    checks += list(_check_run_records(runs))
    checks.append(_report_mixed_environments([run for _, run in finished_runs]))
    on_progress("figures")
    checks += list(_check_checksummed_files(folder))
    checks += list(_check_findings(runs))
    checks += list(check_reports(folder, render_report, on_progress))
    if rescore:
        on_progress("checking the corpus again")
        checks.append(run_check("corpus.json", "data checks and unseen rows", partial(recompute.compare_corpus, runs)))
    for location, run in finished_runs if rescore else []:
        on_progress(f"scoring {location} again")
        recomputed_run = recompute.RecomputedRun(run)
        for description, find_mismatch in recomputed_run.checks.items():
            checks.append(run_check(location, description, find_mismatch))
    for location, run in finished_runs if isolated else []:
        description = "scores of an isolated process"
        if not run.trial.spec.target.is_causal:
            checks.append(VerificationCheck(location, description, True, "does not apply: the model reads whole texts"))
            continue
        on_progress(f"scoring {location} token by token")
        checks.append(run_check(location, description, partial(compare_isolated_losses, run)))
    # Sampled from the system's entropy, so that nobody can predict which runs are retrained.
    candidates = [*finished_runs, *search_runs]
    for location, run in random.SystemRandom().sample(candidates, min(num_retrained, len(candidates))):
        on_progress(f"training {location} again")
        checks.append(run_check(location, "training again", partial(retrain_and_compare, run)))
    return checks


def _check_cells(
    runs: ExperimentRuns, verify_cell: Callable[..., list[VerificationCheck]], num_retrained: int
) -> Iterator[VerificationCheck]:
    """Check every cell of a sweep, and retrain trials of randomly chosen cells."""
    assert runs.experiment.sweep is not None
    folders = [get_cell_folder(runs.folder, cell.name) for cell in runs.experiment.sweep.list_cells()]
    folders = [folder for folder in folders if (folder / "experiment.json").is_file()]
    retrained_folders = random.SystemRandom().choices(folders, k=num_retrained) if folders else []
    for folder in folders:
        cell = str(folder.relative_to(runs.folder))
        for check in verify_cell(folder, num_retrained=retrained_folders.count(folder)):
            location = check.location.removeprefix(str(folder)).strip("/")
            yield replace(check, location=f"{cell}/{location}".rstrip("/"))


def _check_recorded_settings(runs: ExperimentRuns) -> VerificationCheck:
    """Verify that a sweep's experiment.json is the one that its journal records."""

    def find_mismatch() -> str:
        digests = [event.digest for event in Journal(runs.folder).read() if isinstance(event, schemas.SettingsEvent)]
        digest = compute_settings_digest(read_json_object(runs.folder / "experiment.json"))
        return "" if digests[-1:] == [digest] else "experiment.json is not the one that it records"

    return run_check(JOURNAL_FILE, "settings of the sweep", find_mismatch)


@dataclass(frozen=True)
class FolderVerification:
    """The result of verifying one experiment's folder, for a table of many folders."""

    folder: str
    checks: list[VerificationCheck]

    @property
    def num_failed(self) -> int:
        return sum(not check.passed for check in self.checks)

    @property
    def first_problem(self) -> str:
        """Return the first failed check with its location, or an empty string."""
        failed_check = next((check for check in self.checks if not check.passed), None)
        return f"{failed_check.location}: {failed_check.observation}" if failed_check else ""

    def to_dict(self) -> dict[str, Any]:
        return {"folder": self.folder, "passed": self.num_failed == 0, "checks": [c.to_dict() for c in self.checks]}


def verify_folder(folder: Path, verify: Callable[[Path], list[VerificationCheck]]) -> FolderVerification:
    """Verify one of many folders with the given function. An unreadable folder counts as a failed check."""
    try:
        checks = verify(folder)
    except (HeadToHeadError, OSError, *schemas.INCONSISTENT_DATA_ERRORS) as error:
        checks = [VerificationCheck(str(folder), "folder", False, f"{error}" or type(error).__name__)]
    return FolderVerification(str(folder), checks)


def run_check(location: str, description: str, find_mismatch: Callable[[], str]) -> VerificationCheck:
    """Return the result of a check of `h2h verify`, which fails if `find_mismatch` describes a mismatch or raises."""
    try:
        mismatch = find_mismatch()
    except (HeadToHeadError, OSError, *schemas.INCONSISTENT_DATA_ERRORS) as error:
        mismatch = f"could not be done: {error}"
    return VerificationCheck(location, description, not mismatch, mismatch or "the same")


def _report_mixed_environments(runs: Sequence[Run]) -> VerificationCheck:
    """Verify that runs had equal package versions, devices and processors; report differences.

    They do not indicate edited files, so the check passes.
    """
    try:
        observation, passed = describe_mixed_environments(runs) or "one environment", True
    except HeadToHeadError as error:
        observation, passed = f"could not be read: {error}", False
    return VerificationCheck("start.json", "versions, devices and processors", passed, observation)


def _check_run_files(location: str, run: Run) -> Iterator[VerificationCheck]:
    """Verify a run's checksums, and that result.json follows from its scores."""
    try:
        damaged_files = [*run.find_damaged_files(), *([] if run.has_valid_checksum else ["result.json"])]
    except HeadToHeadError as error:
        yield VerificationCheck(f"{location}/result.json", "checksums", False, f"could not be read: {error}")
        return
    for name in damaged_files:
        yield VerificationCheck(f"{location}/{name}", "checksum", False, "was changed or removed after the run ended")
    if not damaged_files:
        yield VerificationCheck(location, "checksums", True, f"{len(run.result.sha256)} files as they were written")
    yield run_check(f"{location}/result.json", "figures from the scores", partial(_compare_result_to_scores, run))


def _compare_result_to_scores(run: Run) -> str:
    """Verify result.json: return the first difference to the per-example scores, or an empty string."""
    metric = run.result.metric
    for split, recorded_scores in run.result.scores.items():
        counts = run.scores[f"{split}.counts"].sum()
        loss = run.scores[f"{split}.losses"].sum() / counts
        computed_scores = {
            "loss": loss,
            "perplexity": np.inf if loss > 700.0 else np.exp(loss),
            "accuracy": run.scores[f"{split}.correct"].sum() / counts,
        }
        for name in ("loss", metric):
            value = recorded_scores.get_metric(name)  # NaN if it was not finite
            expected = computed_scores[name] if np.isfinite(computed_scores[name]) else np.nan
            if value is None or not np.isclose(value, expected, rtol=1e-9, equal_nan=True):
                return f"{split} {name} is {value} in the file and {computed_scores[name]:.6g} from its scores"
    return ""


def _check_run_records(runs: ExperimentRuns) -> Iterator[VerificationCheck]:
    """Verify that all runs belong to the experiment, that the journal records them, and that no seed is missing."""
    yield run_check(JOURNAL_FILE, "chain of checksums", partial(_check_journal, runs.folder))
    try:
        issues = find_run_issues(runs)
    except HeadToHeadError as error:
        issues = []
        yield VerificationCheck(str(runs.folder), "runs of the experiment", False, f"could not be done: {error}")
    for issue in issues:
        folders = ", ".join(f"{issue.variant}/seed-{seed}" for seed in issue.seeds) or issue.variant
        yield VerificationCheck(folders, "runs of the experiment", False, issue.reason)
    if not issues:
        yield VerificationCheck(JOURNAL_FILE, "runs of the experiment", True, "all runs are recorded, and no others")
    for name in runs.experiment.tuned:
        search_folder = tuning.get_tuning_folder(runs.folder, name)
        location = f"{search_folder.relative_to(runs.folder)}/{JOURNAL_FILE}"
        yield run_check(location, "chain of checksums", partial(_check_journal, search_folder))
    for name in runs.experiment.names:
        yield run_check(name, "list of seeds", partial(_find_missing_seeds, runs, name))


def _check_journal(folder: Path) -> str:
    """Read a journal, which raises an error if its chain of checksums is broken; return whether it is empty."""
    return "" if Journal(folder).read() else "missing or empty"


def _find_missing_seeds(runs: ExperimentRuns, variant: str) -> str:
    """Verify that a variant is complete: return the requested seeds without a result, or an empty string.

    With seeds = "auto", a variant needs no seeds beyond the baseline's.
    """
    has_interim_analyses = isinstance(runs.experiment.seeds, str)
    num_seeds = max(runs.finished(BASELINE), default=-1) + 1 if has_interim_analyses else runs.experiment.max_seeds
    missing_seeds = sorted({*range(num_seeds)} - {*runs.finished(variant)})
    if not missing_seeds:
        return ""
    failures = [failure.message for seed in missing_seeds if (failure := runs.run(variant, seed).failure)]
    reason = f" ({failures[0]})" if failures else ""
    return f"seeds without a result: {', '.join(map(str, missing_seeds))}{reason}; train them with --resume"


def _check_checksummed_files(folder: Path) -> Iterator[VerificationCheck]:
    """Verify the experiment files that contain their own checksum."""
    for name in (*compute.CHECKSUMMED_FILES, "findings.json"):
        if (folder / name).is_file():
            check = run_check(name, "checksum", partial(check_own_checksum, folder / name))
            if not check.passed:
                yield check


def check_own_checksum(path: Path) -> str:
    """Return why a file that contains a checksum of its content does not match it, or an empty string."""
    return "" if has_valid_json_checksum(read_json_object(path)) else "was changed since it was written"


def _check_findings(runs: ExperimentRuns) -> Iterator[VerificationCheck]:
    """Verify findings.json: compare it with the findings recomputed from the runs."""
    file_name = "findings.json"
    if not (runs.folder / file_name).is_file():
        yield VerificationCheck(file_name, "is there", False, "the file is missing")
        return
    try:
        stored_findings = {
            key: value for key, value in read_json_object(runs.folder / file_name).items() if key != CHECKSUM_KEY
        }
        findings = compute.compute_findings(runs, check_files=False)
        recomputed_findings = findings.to_json()
    except (HeadToHeadError, OSError) as error:
        yield VerificationCheck(file_name, "figures from the runs", False, f"could not be recomputed: {error}")
        return
    differences = list(find_json_differences(stored_findings, recomputed_findings))
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
    """Return the file to which a checksum that differs in the verified findings.json belongs, or None."""
    is_search = key_path.startswith("search.checksums.")
    if not is_search and not key_path.startswith("checksums."):
        return None
    run = key_path.removeprefix("search.").removeprefix("checksums.")
    return f"{f'{SEARCH}/' if is_search else ''}{run}/result.json"


def check_reports(
    folder: Path, render_report: RenderReport | None, on_progress: Callable[[str], None]
) -> Iterator[VerificationCheck]:
    """Verify the reports in an experiment's folder: render them again, and compare."""
    for name, report_format in OUTPUT_FORMATS.items() if render_report else ():
        if render_report and (folder / name).is_file():
            on_progress(name)
            find_mismatch = partial(_compare_report, folder, name, report_format, render_report)
            yield run_check(name, "rendered again from the findings", find_mismatch)


def _compare_report(folder: Path, name: str, report_format: str, render_report: RenderReport) -> str:
    """Verify a report: return the difference to a newly rendered one, or an empty string if they are identical."""
    with tempfile.TemporaryDirectory() as scratch, warnings.catch_warnings(record=True) as missing_charts:
        warnings.simplefilter("always")
        render_report(folder, [report_format], Path(scratch))
        is_identical = (Path(scratch) / name).read_bytes() == safe_open.read_file(folder / name)
    if is_identical:
        return ""
    if missing_charts:
        return f"could not be made again: {missing_charts[0].message}"
    return "was edited, or made by another version"
