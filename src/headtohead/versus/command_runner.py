"""Run the command of a single job: start its process, enforce the time limit and capture the output."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class CommandProcess:
    """The process of a command: what to run, where, and for how long."""

    arguments: tuple[str, ...]
    working_directory: Path
    environment: dict[str, str]
    log_path: Path
    """receives standard output and standard error"""
    timeout: float | None
    """seconds"""


RunProcess = Callable[[CommandProcess, threading.Event], tuple[ProcessStatus, int | None]]
"""runs a process until it exits and returns its status and exit code; raises InterruptedError if the event is set"""


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
    run_process: RunProcess,
    device: str | None = None,
) -> CommandRun:
    """Run a job's command until it succeeds or its retries are exhausted, then read its metric and write run.json.

    Every attempt starts with an empty folder. Files that other runs wrote since the time `comparison_start_ns` are
    noticed if this run reads them. If `stop_event` is set, terminate the process group and raise InterruptedError.
    """
    config = comparison.config
    arguments = config.commands[job.variant].build_process_arguments(job.placeholder_values, use_shell=config.shell)
    environment = build_command_environment(config, job, device)
    process = CommandProcess(arguments, job.working_directory, environment, job.folder / LOG_FILE, config.timeout)
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
        status, exit_code = run_process(process, stop_event)
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


def run_local_process(command: CommandProcess, stop_event: threading.Event) -> tuple[ProcessStatus, int | None]:
    """Run a command in its own process group, with its output in a log file; return its status and exit code."""
    with command.log_path.open("wb") as log:
        try:
            process = subprocess.Popen(
                command.arguments,
                cwd=command.working_directory,
                env=command.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise RequestError(f"{command.arguments[0]}: {error.strerror}") from None
        deadline = time.monotonic() + command.timeout if command.timeout else math.inf
        try:
            while not stop_event.is_set():
                try:
                    exit_code = process.wait(timeout=0.05)
                    return ("finished" if exit_code == 0 else "failed"), exit_code
                except subprocess.TimeoutExpired:
                    if time.monotonic() > deadline:
                        return "timeout", None
        finally:
            if process.poll() is None:
                terminate_process_group(process)
    raise InterruptedError(command.arguments[0])


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
