"""A Model Context Protocol server for programs that run experiments: list, plan, run, watch and judge comparisons.

A comparison is described by a file (docs/how-to/versus.md) and runs in the folder ROOT/NAME, where NAME is the file
name without its extension. Verdicts are returned only when all planned runs have ended: until then neither scores
nor verdicts are shown, so that a program cannot stop at a favorable interim result.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from pydantic import BaseModel

from headtohead.child_process import PYTHON_COMMAND
from headtohead.errors import FolderLockedError, HeadToHeadError, MissingExtraError, RequestError
from headtohead.experiment.run_folder import lock_folder
from headtohead.versus.comparison_folder import (
    ComparisonFolder,
    create_comparison_folder,
    is_comparison_folder,
    open_comparison_folder,
)
from headtohead.versus.config import Direction, VersusConfig, build_comparison_config, read_comparison_file
from headtohead.versus.findings.compute import write_findings
from headtohead.versus.run_comparison import explain_skipped_runs

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:
    raise MissingExtraError("mcp", "mcp", "the Model Context Protocol server") from None

INSTRUCTIONS = (
    "Compare training scripts over several seeds. Write a comparison file, plan it, run it, watch it until its state "
    "is finished, then judge it. Decide on the number of seeds before the first run."
)
ERROR_PREFIX = "h2h: error: "
P = ParamSpec("P")
R = TypeVar("R")
ComparisonState = Literal["running", "interrupted", "finished"]


class Plan(BaseModel):
    """What running a comparison file would do."""

    name: str
    metric: str
    direction: Direction
    seeds: int
    runs: int
    """number of planned runs, those that have ended included"""
    commands: dict[str, str]


class Progress(BaseModel):
    """The progress of a comparison. It contains no scores."""

    name: str
    state: ComparisonState
    ended: int
    """number of runs that have ended"""
    runs: int
    """number of planned runs"""
    failures: dict[str, str]
    """why a run has no value, or why the remaining runs of a variant are skipped; keyed by run or variant"""
    error: str = ""
    """why the comparison ended before all of its runs did"""


class VerdictSummary(BaseModel):
    """The verdict on one variant."""

    variant: str
    outcome: str
    summary: str


class Judgment(BaseModel):
    """The verdicts of a finished comparison; none before all planned runs have ended."""

    name: str
    state: ComparisonState
    verdicts: list[VerdictSummary]
    warnings: list[str] = []
    """possible flaws of the comparison, and what to check"""
    message: str = ""
    """why there are no verdicts yet"""


def read_comparison_config(file: str) -> VersusConfig:
    """Read and validate a comparison file."""
    return build_comparison_config(read_comparison_file(Path(file)), file)


class MCPTools:
    """The tools of the server: they plan, run, watch and judge comparisons in the folder `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def list_comparisons(self) -> list[Progress]:
        """List the comparisons in the folder with their progress."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        return [self.read_progress(folder.name) for folder in folders if is_comparison_folder(folder)]

    def plan_comparison(self, file: str) -> Plan:
        """Validate a comparison file (TOML) and return the runs it describes. Nothing is run."""
        config = read_comparison_config(file)
        return Plan(
            name=Path(file).stem,
            metric=config.metric.name,
            direction="minimize" if config.metric.lower_is_better else "maximize",
            seeds=config.seeds,
            runs=len(config.list_planned_runs()),
            commands={name: command.command_line for name, command in config.commands.items()},
        )

    def start_comparison(self, file: str) -> str:
        """Start or continue the comparison of a file in the background. Watch it with the returned name."""
        config, name = read_comparison_config(file), Path(file).stem
        if self._is_running(name):
            raise RequestError(f"{name} is running already")
        self.root.mkdir(parents=True, exist_ok=True)
        # Planned here and not only by the process, so that `judge` cannot return the verdict of an earlier plan.
        with lock_folder(self.root / name):
            create_comparison_folder(self.root / name, config, Path.cwd(), resume=True)
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*PYTHON_COMMAND, "-m", "headtohead.cli", "versus", file, "--out", str(self.root / name), "--resume"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        threading.Thread(target=process.wait, daemon=True).start()  # collects its exit code
        return name

    def read_progress(self, name: str) -> Progress:
        """Return the number of runs of a comparison that have ended, and which of them have no value."""
        comparison = self._open_comparison(name)
        runs_by_variant = comparison.read_runs()
        runs = [run for runs_by_seed in runs_by_variant.values() for run in runs_by_seed.values()]
        num_planned = len(comparison.config.list_planned_runs())
        is_finished = len(runs) == num_planned
        state: ComparisonState = "running" if self._is_running(name) else "finished" if is_finished else "interrupted"
        failures = {f"{run.variant}/seed-{run.seed}": run.message for run in runs if not run.has_finite_value}
        failures |= {
            variant: f"stopped: {reason}"
            for variant, runs_by_seed in runs_by_variant.items()
            if state == "interrupted" and (reason := explain_skipped_runs(runs_by_seed.values()))
        }
        error = self._read_error_message(name) if state == "interrupted" else ""
        return Progress(name=name, state=state, ended=len(runs), runs=num_planned, failures=failures, error=error)

    def judge_comparison(self, name: str) -> Judgment:
        """Return the verdicts of a comparison whose planned runs have all ended."""
        progress = self.read_progress(name)
        if progress.state != "finished":
            message = (
                f"{progress.ended} of {progress.runs} planned runs have ended; there is no verdict before all have"
            )
            return Judgment(name=name, state=progress.state, verdicts=[], message=message)
        findings = write_findings(self._open_comparison(name))
        return Judgment(
            name=name,
            state=progress.state,
            verdicts=[
                VerdictSummary(variant=verdict.variant, outcome=verdict.outcome, summary=verdict.summary)
                for verdict in findings.verdicts
            ],
            warnings=[f"{warning.kind}: {warning.message} {warning.advice}" for warning in findings.warnings],
        )

    def _open_comparison(self, name: str) -> ComparisonFolder:
        """Open the comparison with a name that a client sent, which must not be a path."""
        folder = self.root / name
        if Path(name).name != name or not is_comparison_folder(folder):
            known_names = ", ".join(path.name for path in self.root.glob("*") if is_comparison_folder(path))
            raise RequestError(f"no comparison {name!r}; known: {known_names or 'none'}")
        return open_comparison_folder(folder)

    def _is_running(self, name: str) -> bool:
        """Return whether this server, or a different process, is running a comparison."""
        if name in self.processes and self.processes[name].poll() is None:
            return True
        if not is_comparison_folder(self.root / name):
            return False
        try:
            with lock_folder(self.root / name):
                return False
        except FolderLockedError:
            return True

    def _read_error_message(self, name: str) -> str:
        """Return the error message with which this server's last process for a comparison ended, or ""."""
        log = self.root / f"{name}.log"
        return log.read_text(errors="replace").partition(ERROR_PREFIX)[2].strip() if name in self.processes else ""


def report_errors_to_client(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a tool so that the client receives the message of this package's errors."""

    @wraps(function)
    def call_tool(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except HeadToHeadError as error:
            raise ToolError(str(error)) from None

    return call_tool


def build_server(root: Path) -> MCPServer:
    """Return the server with its five tools. Comparisons run in folders below `root`."""
    tools = MCPTools(root)
    server = MCPServer("headtohead", instructions=INSTRUCTIONS)
    server.tool("list")(report_errors_to_client(tools.list_comparisons))
    server.tool("plan")(report_errors_to_client(tools.plan_comparison))
    server.tool("run")(report_errors_to_client(tools.start_comparison))
    server.tool("watch")(report_errors_to_client(tools.read_progress))
    server.tool("judge")(report_errors_to_client(tools.judge_comparison))
    return server
