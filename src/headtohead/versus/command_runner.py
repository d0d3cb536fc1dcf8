"""Run the command of a single job: start its process, enforce the time limit and capture the output."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from headtohead.errors import RequestError
from headtohead.experiment.schemas import write_record
from headtohead.versus.comparison_folder import ComparisonFolder
from headtohead.versus.config import VersusConfig, replace_placeholders
from headtohead.versus.file_schemas import LOG_FILE, RUN_FILE, CommandRun
from headtohead.versus.jobs import CommandJob
from headtohead.versus.outputs.metric_file_state import MetricFileState
from headtohead.versus.outputs.run_record import ProcessResult, ProcessStatus, build_run_record
from headtohead.versus.script_files import find_touched_files, list_changed_files

TERMINATION_TIMEOUT_SECONDS = 5.0
CLOCK_TICK_NANOSECONDS = 10_000_000
"""modification times of files may lie this far before the clock"""


def build_command_environment(config: VersusConfig, job: CommandJob, device: str | None) -> dict[str, str]:
    """Return a command's environment variables: those of this process, of the job and of the variant's settings."""
    device_variables = {"CUDA_VISIBLE_DEVICES": device} if device is not None else {}
    job_variables = {
        "H2H_SEED": str(job.seed),
        "H2H_OUT": str(job.output_folder),
        "H2H_VARIANT": job.variant,
        "PYTHONUNBUFFERED": "1",
    }
    configured_variables = {
        name: replace_placeholders(value, job.placeholder_values)
        for name, value in config.commands[job.variant].env.items()
    }
    return {**os.environ, **device_variables, **job_variables, **configured_variables}


def run_command(
    comparison: ComparisonFolder,
    job: CommandJob,
    stop_event: threading.Event,
    *,
    comparison_start_ns: int,
    device: str | None = None,
) -> CommandRun:
    """Run a job's command until it succeeds or its retries are exhausted, then read its metric and write run.json.

    Every attempt starts with an empty folder. Files that other runs wrote since the time `comparison_start_ns` are
    noticed if this run reads them. If `stop_event` is set, terminate the process group and raise InterruptedError.
    """
    config = comparison.config
    arguments = config.commands[job.variant].build_process_arguments(job.placeholder_values, use_shell=config.shell)
    environment = build_command_environment(config, job, device)
    metric_file = job.get_metric_file(config)
    for attempt in range(1, config.retries + 2):
        if job.folder.exists():
            kill_leftover_processes(job.output_folder)
            shutil.rmtree(job.folder)
        job.output_folder.mkdir(parents=True)
        metric_file_state = MetricFileState.read(metric_file) if metric_file is not None else None
        changed_files = list_changed_files(comparison.record.files.get(job.variant, {}), job.working_directory)
        start_time = time.monotonic()
        run_start_ns = time.time_ns() - CLOCK_TICK_NANOSECONDS
        status, exit_code = _run_process(config, job, arguments, stop_event, environment)
        seconds = time.monotonic() - start_time
        if status == "finished" or attempt > config.retries:
            break
    touched_files = find_touched_files(
        job.working_directory,
        comparison_start_ns=comparison_start_ns,
        run_start_ns=run_start_ns,
        excluded_folder=comparison.path.resolve(),
    )
    result = ProcessResult(
        arguments, status, exit_code, seconds, attempt, changed_files, touched_files, metric_file_state
    )
    run = build_run_record(config, job, result)
    write_record(job.folder / RUN_FILE, run, fsync=True, with_checksum=True)
    return run


def _run_process(
    config: VersusConfig,
    job: CommandJob,
    arguments: tuple[str, ...],
    stop_event: threading.Event,
    environment: Mapping[str, str],
) -> tuple[ProcessStatus, int | None]:
    """Run a job's command in its own process group, with its output in output.log; return its status and exit code."""
    with (job.folder / LOG_FILE).open("wb") as log:
        try:
            process = subprocess.Popen(
                arguments,
                cwd=job.working_directory,
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
                exit_code = process.wait(timeout=0.05)
                return ("finished" if exit_code == 0 else "failed"), exit_code
            except subprocess.TimeoutExpired:
                if stop_event.is_set():
                    terminate_process_group(process)
                    raise InterruptedError(job.run_name) from None
                if time.monotonic() > deadline:
                    terminate_process_group(process)
                    return "timeout", None


def terminate_process_group(process: subprocess.Popen[bytes]) -> None:
    """Terminate a command's process and its children, and kill them if they do not exit."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signal_number)
        except ProcessLookupError:
            return
        try:
            process.wait(timeout=TERMINATION_TIMEOUT_SECONDS)
            return
        except subprocess.TimeoutExpired:
            continue


def kill_leftover_processes(output_folder: Path) -> None:
    """Kill processes of the same command that an earlier `h2h versus` left running: they would write to this folder."""
    leftover_processes = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("H2H_OUT") == str(output_folder):
                process.kill()
                leftover_processes.append(process)
        except (psutil.Error, OSError):
            continue
    psutil.wait_procs(leftover_processes, timeout=TERMINATION_TIMEOUT_SECONDS)
