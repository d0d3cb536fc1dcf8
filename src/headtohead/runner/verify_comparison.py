"""Verify the folder of a command comparison (`h2h versus`): do its verdicts follow from the commands' output?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from headtohead.atomic_io import CHECKSUM_KEY, compute_sha256, read_json_object
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.schemas import Findings, RunEvent, read_record
from headtohead.runner.verify import (
    MISMATCH_MESSAGE,
    RenderReport,
    VerificationCheck,
    check_own_checksum,
    check_reports,
    find_differences,
    run_check,
)
from headtohead.versus.command_runner import CommandJob, read_metric
from headtohead.versus.comparison import ComparisonFolder, open_comparison
from headtohead.versus.config import OUT_FIELD
from headtohead.versus.findings import compute_findings
from headtohead.versus.records import LOG_FILE, RUN_FILE, CommandRun

FINDINGS_FILE = "findings.json"


def verify_comparison(
    folder: Path,
    *,
    render_report: RenderReport | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> list[VerificationCheck]:
    """Return the results of all checks on a comparison's folder. No command is rerun."""
    comparison = open_comparison(folder)
    runs = [
        (comparison.get_run_folder(name, seed), run)
        for name, by_seed in comparison.read_runs().items()
        for seed, run in by_seed.items()
    ]
    if (repeated := comparison.read_repeat()) is not None:
        runs.append((comparison.repeat_folder, repeated))
    checks = []
    for run_folder, run in runs:
        location = str(run_folder.relative_to(folder))
        on_progress(location)
        checks += list(_check_run(comparison, location, run_folder, run))
    on_progress("journal")
    checks.append(run_check(JOURNAL_FILE, "records of the runs", partial(_find_unrecorded, folder, runs)))
    checks.append(run_check("seeds", "list of seeds", partial(_find_missing, comparison)))
    on_progress("figures")
    checks.append(run_check(FINDINGS_FILE, "checksum", partial(check_own_checksum, folder / FINDINGS_FILE)))
    checks.append(run_check(FINDINGS_FILE, "figures from the runs", partial(_compare_findings, comparison)))
    return [*checks, *check_reports(folder, render_report, on_progress)]


def _check_run(
    comparison: ComparisonFolder, location: str, run_folder: Path, run: CommandRun
) -> Iterator[VerificationCheck]:
    """Check a run's captured output, and parse its metric again."""
    log = run_folder / LOG_FILE
    yield run_check(
        f"{location}/{LOG_FILE}",
        "checksum",
        lambda: "" if compute_sha256(log) == run.log_digest else "was changed since the run ended",
    )
    source = comparison.config.metric.source
    if not run.is_counted:
        yield VerificationCheck(location, "metric", True, f"no value: {run.status}")
    elif source is not None and OUT_FIELD not in source:
        yield VerificationCheck(location, "metric", True, f"not read again: {source} is not in the folder of the run")
    else:
        yield run_check(location, "metric", partial(_compare_metric, comparison, run_folder, run))


def _compare_metric(comparison: ComparisonFolder, run_folder: Path, run: CommandRun) -> str:
    """Return how the metric in run.json differs from the command's output, or an empty string if it agrees."""
    job = CommandJob(run.variant, run.seed, run_folder.resolve(), Path(comparison.file.directory))
    values, value = read_metric(comparison.config, job)
    if value != run.value:
        return f"{comparison.config.metric.name} is {run.value} in {RUN_FILE} and {value} in what the command wrote"
    steps = [(item.step, item.value) for item in values]
    return "" if len(steps) == len(run.curve) else f"{len(run.curve)} values in {RUN_FILE}, {len(steps)} were written"


def _find_unrecorded(folder: Path, runs: list[tuple[Path, CommandRun]]) -> str:
    """Return the runs whose run.json is not recorded in the journal, or an empty string if all are."""
    events = [event for event in Journal(folder).read() if isinstance(event, RunEvent)]
    recorded = {(event.variant, event.seed, event.digest) for event in events}
    unrecorded = [
        str(run_folder.relative_to(folder))
        for run_folder, run in runs
        if (run.variant, run.seed, compute_sha256(run_folder / RUN_FILE)) not in recorded
    ]
    return f"not recorded as it is: {', '.join(unrecorded)}" if unrecorded else ""


def _find_missing(comparison: ComparisonFolder) -> str:
    """Return the runs that have not ended, or an empty string if there are none."""
    runs = comparison.read_runs()
    missing = [
        f"{name}/seed-{seed}"
        for name in comparison.config.commands
        for seed in comparison.config.list_seeds(name)
        if seed not in runs[name]
    ]
    return f"without a result: {', '.join(missing)}; run them with --resume" if missing else ""


def _compare_findings(comparison: ComparisonFolder) -> str:
    """Return the keys of findings.json that differ from the recomputed findings, or an empty string if none do."""
    path = comparison.path / FINDINGS_FILE
    stored = {key: value for key, value in read_json_object(path).items() if key != CHECKSUM_KEY}
    recomputed = compute_findings(comparison, read_record(path, Findings).command).to_json()
    differences = list(find_differences(stored, recomputed))
    return f"{', '.join(differences[:20])} {MISMATCH_MESSAGE}" if differences else ""
