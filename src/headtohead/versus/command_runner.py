"""Run a single command: start its process, enforce the time limit, capture the output, and read the reported metric."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from headtohead.atomic_io import compute_sha256, read_jsonl
from headtohead.audit.result import CheckResult
from headtohead.errors import HeadToHeadError, RequestError
from headtohead.experiment.schemas import write_record
from headtohead.versus.config import VersusConfig, replace_fields
from headtohead.versus.metric_readers import MetricValue, read_values, reduce_values
from headtohead.versus.records import LOG_FILE, RECORD_FILE, RUN_FILE, CommandRun, RunStatus

OUTPUT_FOLDER = "out"
LAST_LINES = 15
MAX_READ_BYTES = 2**26
"""bytes at the end of the output in which the metric is looked for"""
TERMINATION_SECONDS = 5.0
AUDIT_ADAPTER = TypeAdapter(CheckResult)


@dataclass
class CommandJob:
    """One pending or running command: a variant with a seed. The state is updated while it runs."""

    variant: str
    seed: int
    folder: Path
    directory: Path
    """working directory of the command"""
    state: str = "waiting"
    start_time: float = 0.0
    end_time: float = 0.0
    run: CommandRun | None = None
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def out(self) -> Path:
        """The folder that replaces {out}."""
        return self.folder / OUTPUT_FOLDER

    @property
    def location(self) -> str:
        return f"{self.variant}/{self.folder.name}"


def build_environment(config: VersusConfig, job: CommandJob, device: str | None) -> dict[str, str]:
    """Return a command's environment: this process's, plus the variant's variables, the seed and the output folder."""
    own = {
        key: replace_fields(value, {"{seed}": str(job.seed), "{out}": str(job.out), "{variant}": job.variant})
        for key, value in config.commands[job.variant].env.items()
    }
    devices = {"CUDA_VISIBLE_DEVICES": device} if device is not None else {}
    fixed = {"H2H_SEED": str(job.seed), "H2H_OUT": str(job.out), "H2H_VARIANT": job.variant, "PYTHONUNBUFFERED": "1"}
    return {**os.environ, **devices, **fixed, **own}


def execute(config: VersusConfig, job: CommandJob, stop: threading.Event, device: str | None = None) -> CommandRun:
    """Run a command until it succeeds or its retries are exhausted, then read its metric and write run.json.

    Every attempt starts with an empty folder. If `stop` is set, terminate the process group and raise InterruptedError.
    """
    for attempt in range(1, config.retries + 2):
        if job.folder.exists():
            shutil.rmtree(job.folder)
        job.out.mkdir(parents=True)
        arguments = config.commands[job.variant].expand(job.seed, job.out, job.variant, use_shell=config.shell)
        began = time.monotonic()
        status, exit_code = _run_process(config, job, arguments, stop, build_environment(config, job, device))
        seconds = time.monotonic() - began
        if status == "finished" or attempt > config.retries:
            break
    run = _read_run(config, job, arguments, status, exit_code, seconds, attempt)
    write_record(job.folder / RUN_FILE, run, fsync=True, with_checksum=True)
    return run


def _run_process(
    config: VersusConfig,
    job: CommandJob,
    arguments: tuple[str, ...],
    stop: threading.Event,
    environment: Mapping[str, str],
) -> tuple[RunStatus, int | None]:
    """Run the process in its own process group, with its output redirected to output.log. Return how it ended."""
    with (job.folder / LOG_FILE).open("wb") as log:
        try:
            job.process = subprocess.Popen(
                arguments,
                cwd=job.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise RequestError(f"{arguments[0]}: {error.strerror}") from None
        deadline = time.monotonic() + config.timeout if config.timeout else math.inf
        while True:
            try:
                code = job.process.wait(timeout=0.05)
                return ("finished" if code == 0 else "failed"), code
            except subprocess.TimeoutExpired:
                if stop.is_set():
                    end_process_group(job.process)
                    raise InterruptedError(job.location) from None
                if time.monotonic() > deadline:
                    end_process_group(job.process)
                    return "timeout", None


def end_process_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and its children, and kill them if they do not exit."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=TERMINATION_SECONDS)
            return
        except subprocess.TimeoutExpired:
            continue


def read_output_text(path: Path) -> str:
    """Return the end of the captured output as text."""
    with path.open("rb") as log:
        log.seek(max(0, path.stat().st_size - MAX_READ_BYTES))
        return log.read().decode(errors="replace").replace("\r", "\n")


def read_metric(config: VersusConfig, job: CommandJob) -> tuple[list[MetricValue], float]:
    """Return all reported metric values and the one that is compared. Raise RequestError if there is none."""
    metric = config.metric
    output = read_output_text(job.folder / LOG_FILE)
    source = None
    if metric.source is not None:
        fields = {"{seed}": str(job.seed), "{out}": str(job.out), "{variant}": job.variant}
        source = job.directory / replace_fields(metric.source, fields)
    values = read_recorded_values(job.out, metric.name) or read_values(metric, metric.name, output, source)
    if not values:
        place = source or "the output"
        raise RequestError(f"the metric {metric.name!r} does not appear in {place}")
    selection = read_values(metric, metric.best_by, output, source) if metric.best_by else None
    return values, reduce_values(values, metric, selection)


def read_recorded_values(out: Path, name: str) -> list[MetricValue]:
    """Return the values that the script logged with `headtohead.record()`."""
    lines = read_jsonl(out / RECORD_FILE) if (out / RECORD_FILE).is_file() else []
    return [
        MetricValue(int(line["step"]), math.nan if line["metrics"][name] is None else float(line["metrics"][name]))
        for line in lines
        if line.get("event") == "log" and name in line.get("metrics", {})
    ]


def _read_run(
    config: VersusConfig,
    job: CommandJob,
    arguments: tuple[str, ...],
    status: RunStatus,
    exit_code: int | None,
    seconds: float,
    attempts: int,
) -> CommandRun:
    """Return the record of a run that has ended. A run without a finite metric is kept, along with the reason."""
    values: list[MetricValue] = []
    value, message = math.nan, ""
    if status == "finished":
        try:
            values, value = read_metric(config, job)
        except HeadToHeadError as error:
            status, message = "no metric", str(error)
        else:
            if not math.isfinite(value):
                status, message = "not finite", f"{config.metric.name} is {value}"
    elif status == "timeout":
        message = f"ended after {config.timeout:g} s, the time limit"
    else:
        message = f"exit code {exit_code}"
    if status in ("failed", "timeout", "no metric"):
        last_lines = read_output_text(job.folder / LOG_FILE).rstrip().splitlines()[-LAST_LINES:]
        message += "; the last lines of its output:\n" + "\n".join(last_lines) if last_lines else "; no output"
    evidence = read_recorded_evidence(job.out)
    return CommandRun(
        variant=job.variant,
        seed=job.seed,
        arguments=list(arguments),
        status=status,
        exit_code=exit_code,
        seconds=round(seconds, 3),
        attempts=attempts,
        value=value if math.isfinite(value) else math.nan,
        curve=[(item.step, item.value if math.isfinite(item.value) else None) for item in values],
        log_digest=compute_sha256(job.folder / LOG_FILE),
        start_digest=evidence.start_digest,
        batch_digest=evidence.batch_digest,
        audits=evidence.audits,
        message=message,
    )


@dataclass(frozen=True)
class RecordedEvidence:
    """What the script recorded about its initial weights, batches and trained model; empty if it recorded nothing."""

    start_digest: str
    batch_digest: str
    audits: list[CheckResult]


def read_recorded_evidence(out: Path) -> RecordedEvidence:
    """Return what the script recorded with `headtohead.record()`."""
    lines = read_jsonl(out / RECORD_FILE) if (out / RECORD_FILE).is_file() else []
    start = next((str(line["digest"]) for line in lines if line.get("event") == "start"), "")
    batches = [str(line["digest"]) for line in lines if line.get("event") == "batch"]
    audits = [AUDIT_ADAPTER.validate_python(line["result"]) for line in lines if line.get("event") == "audit"]
    return RecordedEvidence(start, hashlib.sha256("".join(batches).encode()).hexdigest() if batches else "", audits)
