"""Build the record of a run from its outputs: captured text, metric values, and evidence that the script recorded."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import TypeAdapter

from headtohead.atomic_io import compute_sha256
from headtohead.audit.result import CheckResult
from headtohead.errors import HeadToHeadError, RequestError, format_suggestion
from headtohead.json_files import read_jsonl
from headtohead.versus.config import VersusConfig
from headtohead.versus.file_schemas import LOG_FILE, RECORD_FILE, CommandRun, RunStatus
from headtohead.versus.jobs import CommandJob
from headtohead.versus.outputs.example_scores import read_example_scores
from headtohead.versus.outputs.metric_aggregation import aggregate_values
from headtohead.versus.outputs.metric_file_state import MetricFileState
from headtohead.versus.outputs.metric_readers import MetricValue, list_metric_names_in_output, read_metric_values
from headtohead.versus.script_files import TouchedFiles

NUM_LAST_LINES = 15
"""lines of output in the message of a failed run"""
MAX_LINE_CHARACTERS = 300
MAX_LOG_BYTES = 2**26
"""size of the end of output.log that is searched for the metric"""
MAX_SUGGESTED_NAMES = 8
COLOR_CODE_PATTERN = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
AUDIT_ADAPTER = TypeAdapter(CheckResult)
ProcessStatus = Literal["finished", "failed", "timeout"]


class ProcessResult(NamedTuple):
    """How the process of a run ended, and what it changed outside of the run's folder."""

    arguments: tuple[str, ...]
    status: ProcessStatus
    exit_code: int | None
    seconds: float
    attempts: int
    changed_files: list[str]
    """files of the script that were not the same as when the comparison began"""
    touched_files: TouchedFiles
    metric_file_state: MetricFileState | None
    """the metric file before the run, if there was one"""


def read_log_text(path: Path) -> str:
    """Return the end of the captured output as text, without color codes."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
        return COLOR_CODE_PATTERN.sub("", log.read().decode(errors="replace").replace("\r", "\n"))


def read_run_metric(config: VersusConfig, job: CommandJob) -> tuple[list[MetricValue], float]:
    """Return, for the record of a run, all values of the metric that it reported, and the value to compare.

    Raise RequestError if there are none.
    """
    metric, metric_file = config.metric, job.get_metric_file(config)
    output = read_log_text(job.folder / LOG_FILE)
    values, selecting_values = (
        read_recorded_values(job.output_folder, name) or read_metric_values(metric, name, output, metric_file)
        if name
        else None
        for name in (metric.name, metric.metric_for_best_step)
    )
    if not values:
        place = metric_file or _describe_output(output, metric.name)
        raise RequestError(f"the metric {metric.name!r} does not appear in {place}")
    value = aggregate_values(values, metric, selecting_values)
    if metric.verdict_metric == "perplexity" and value <= 0:
        raise RequestError(f"{metric.name} is {value:g}, but perplexities are positive")
    return values, value


def _describe_output(output: str, missing_name: str) -> str:
    """Return "the output" and the metrics that it has, for the error message about a metric that it lacks."""
    names = list_metric_names_in_output(output)
    listed = f", which has {', '.join(names[:MAX_SUGGESTED_NAMES])}" if names else ""
    return f"the output{listed}{format_suggestion(missing_name, names)}"


def read_recorded_values(output_folder: Path, metric_name: str) -> list[MetricValue]:
    """Return, for the record of a run, the values of a metric that it logged with `headtohead.record()`."""
    record_file = output_folder / RECORD_FILE
    events = read_jsonl(record_file) if record_file.is_file() else []
    reported = [
        (int(event["step"]), event["metrics"][metric_name])
        for event in events
        if event.get("event") == "log" and metric_name in event.get("metrics", {})
    ]
    return [MetricValue(step, math.nan if value is None else float(value)) for step, value in reported]


def build_run_record(config: VersusConfig, job: CommandJob, result: ProcessResult) -> CommandRun:
    """Return run.json of a run that has ended. If it has no finite value, `status` and `message` give the reason."""
    values: list[MetricValue] = []
    status: RunStatus = result.status
    value, message = math.nan, ""
    if status == "finished":
        try:
            values, value = _read_metric_of_ended_run(config, job, result.metric_file_state)
        except HeadToHeadError as error:
            status, message = "no metric", str(error)
        else:
            if not math.isfinite(value):
                status, message = "not finite", f"{config.metric.name} is {value}"
    if status in ("failed", "timeout", "no metric"):
        message = _describe_failed_run(config, job, result, message)
    evidence = read_recorded_evidence(job.output_folder)
    return CommandRun(
        variant=job.variant,
        seed=job.seed,
        is_repeat=job.is_repeat,
        arguments=list(result.arguments),
        status=status,
        exit_code=result.exit_code,
        seconds=round(result.seconds, 3),
        attempts=result.attempts,
        value=value if math.isfinite(value) else math.nan,
        curve=[(reported.step, reported.value if math.isfinite(reported.value) else None) for reported in values],
        split=values[-1].split if values else "",
        log_digest=compute_sha256(job.folder / LOG_FILE),
        start_digest=evidence.start_digest,
        batch_digest=evidence.batch_digest,
        audits=evidence.audits,
        changed_files=result.changed_files,
        written_files=result.touched_files.written,
        read_files=result.touched_files.read,
        message=message,
    )


def _read_metric_of_ended_run(
    config: VersusConfig, job: CommandJob, metric_file_state: MetricFileState | None
) -> tuple[list[MetricValue], float]:
    """Return, for the record of an ended run, the values of its metric, and the value to compare.

    Raise RequestError if a file is missing, invalid or older than the run.
    """
    metric_file, example_scores_file = job.get_metric_file(config), job.get_example_scores_file(config)
    if metric_file is not None and metric_file_state is not None:
        metric_file_state.check_overwritten(metric_file)
    if example_scores_file is not None:
        read_example_scores(example_scores_file)
    return read_run_metric(config, job)


def _describe_failed_run(config: VersusConfig, job: CommandJob, result: ProcessResult, message: str) -> str:
    """Return the message of a run without a metric: the reason and the last lines of its output.

    `message` is the reason if the process itself succeeded.
    """
    if result.status == "timeout":
        message = f"ended after {config.timeout:g} s, the time limit"
    elif result.status == "failed":
        message = f"exit code {result.exit_code}"
    last_lines = [
        line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:MAX_LINE_CHARACTERS]} ..."
        for line in read_log_text(job.folder / LOG_FILE).rstrip().splitlines()[-NUM_LAST_LINES:]
    ]
    message += "; the last lines of its output:\n" + "\n".join(last_lines) if last_lines else "; no output"
    if config.commands[job.variant].revision is not None and "No such file" in message:
        message += "\nFiles that git does not track, such as data, are not in the worktree of a revision: --link PATH"
    return message


@dataclass(frozen=True)
class RecordedEvidence:
    """Digests of initial weights and batches, and audits of the trained model; fields are empty if not recorded."""

    start_digest: str
    batch_digest: str
    audits: list[CheckResult]


def read_recorded_evidence(output_folder: Path) -> RecordedEvidence:
    """Return, for the record of a run, the hashes and audits of `headtohead.record()`."""
    record_file = output_folder / RECORD_FILE
    events = read_jsonl(record_file) if record_file.is_file() else []
    start_digest = next((str(event["digest"]) for event in events if event.get("event") == "start"), "")
    batch_digests = [str(event["digest"]) for event in events if event.get("event") == "batch"]
    digest_of_batches = hashlib.sha256("".join(batch_digests).encode()).hexdigest() if batch_digests else ""
    audits = [AUDIT_ADAPTER.validate_python(event["result"]) for event in events if event.get("event") == "audit"]
    return RecordedEvidence(start_digest, digest_of_batches, audits)
