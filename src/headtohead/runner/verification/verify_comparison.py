"""Verify the folder of a comparison of commands (`h2h versus`): do its verdicts follow from the commands' output?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from headtohead.atomic_io import compute_sha256
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.schemas import Findings, RunEvent, read_record
from headtohead.json_files import CHECKSUM_KEY, read_json_object
from headtohead.runner.verification.json_differences import find_json_differences
from headtohead.runner.verification.verify import (
    MISMATCH_MESSAGE,
    RenderReport,
    VerificationCheck,
    check_own_checksum,
    check_reports,
    run_check,
)
from headtohead.versus.comparison_folder import ComparisonFolder, open_comparison_folder
from headtohead.versus.config import OUT_PLACEHOLDER
from headtohead.versus.file_schemas import LOG_FILE, RUN_FILE, CommandRun
from headtohead.versus.findings.compute import compute_findings
from headtohead.versus.jobs import CommandJob
from headtohead.versus.outputs.run_record import read_run_metric

FINDINGS_FILE = "findings.json"


def verify_comparison(
    folder: Path,
    *,
    render_report: RenderReport | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[VerificationCheck]:
    """Return the results of all checks on a comparison's folder. No command is rerun."""
    comparison = open_comparison_folder(folder)
    runs = [
        (comparison.get_run_folder(name, seed), run)
        for name, runs_by_seed in comparison.read_runs().items()
        for seed, run in runs_by_seed.items()
    ]
    if (repeated_run := comparison.read_repeated_run()) is not None:
        runs.append((comparison.repeated_run_folder, repeated_run))
    checks = []
    for run_folder, run in runs:
        location = str(run_folder.relative_to(folder))
        on_progress(location)
        checks += list(_check_run(comparison, location, run_folder, run))
    on_progress("journal")
    checks.append(run_check(JOURNAL_FILE, "records of the runs", partial(_find_unrecorded_runs, folder, runs)))
    checks.append(run_check("seeds", "list of seeds", partial(_find_missing_runs, comparison)))
    on_progress("figures")
    checks.append(run_check(FINDINGS_FILE, "checksum", partial(check_own_checksum, folder / FINDINGS_FILE)))
    checks.append(run_check(FINDINGS_FILE, "figures from the runs", partial(_compare_findings, comparison)))
    return [*checks, *check_reports(folder, render_report, on_progress)]


def _check_run(
    comparison: ComparisonFolder, location: str, run_folder: Path, run: CommandRun
) -> Iterator[VerificationCheck]:
    """Verify a run of a comparison: its captured output, and its metric, which is parsed again."""
    log_path = run_folder / LOG_FILE
    yield run_check(
        f"{location}/{LOG_FILE}",
        "checksum",
        lambda: "" if compute_sha256(log_path) == run.log_digest else "was changed since the run ended",
    )
    metric_file = comparison.config.metric.file
    if not run.has_finite_value:
        yield VerificationCheck(location, "metric", True, f"no value: {run.status}")
    elif metric_file is not None and OUT_PLACEHOLDER not in metric_file:
        yield VerificationCheck(
            location, "metric", True, f"not read again: {metric_file} is not in the folder of the run"
        )
    else:
        yield run_check(location, "metric", partial(_compare_metric, comparison, run_folder, run))


def _compare_metric(comparison: ComparisonFolder, run_folder: Path, run: CommandRun) -> str:
    """Verify the metric of a run: return the difference between run.json and the command's output, or ""."""
    job = CommandJob(run.variant, run.seed, run_folder.resolve(), Path(comparison.record.directory))
    curve, value = read_run_metric(comparison.config, job)
    if value != run.value:
        return f"{comparison.config.metric.name} is {run.value} in {RUN_FILE} and {value} in what the command wrote"
    return "" if len(curve) == len(run.curve) else f"{len(run.curve)} values in {RUN_FILE}, {len(curve)} were written"


def _find_unrecorded_runs(folder: Path, runs: list[tuple[Path, CommandRun]]) -> str:
    """Verify the records: return the runs whose run.json the comparison's journal does not record, or ""."""
    events = [event for event in Journal(folder).read() if isinstance(event, RunEvent)]
    recorded_runs = {(event.variant, event.seed, event.digest) for event in events}
    unrecorded_runs = [
        str(run_folder.relative_to(folder))
        for run_folder, run in runs
        if (run.variant, run.seed, compute_sha256(run_folder / RUN_FILE)) not in recorded_runs
    ]
    return f"not recorded as it is: {', '.join(unrecorded_runs)}" if unrecorded_runs else ""


def _find_missing_runs(comparison: ComparisonFolder) -> str:
    """Verify that a comparison is complete: return its runs that have no result, or an empty string."""
    runs = comparison.read_runs()
    missing_runs = [
        f"{name}/seed-{seed}"
        for name in comparison.config.commands
        for seed in comparison.config.list_seeds(name)
        if seed not in runs[name]
    ]
    return f"without a result: {', '.join(missing_runs)}; run them with --resume" if missing_runs else ""


def _compare_findings(comparison: ComparisonFolder) -> str:
    """Verify findings.json of a comparison: return the keys that differ from the recomputed findings, or ""."""
    path = comparison.path / FINDINGS_FILE
    stored_findings = {key: value for key, value in read_json_object(path).items() if key != CHECKSUM_KEY}
    recomputed_findings = compute_findings(comparison, read_record(path, Findings).command).to_json()
    differences = list(find_json_differences(stored_findings, recomputed_findings))
    return f"{', '.join(differences[:20])} {MISMATCH_MESSAGE}" if differences else ""
