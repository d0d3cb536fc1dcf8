"""A Model Context Protocol server for programs that run experiments: list, plan, run, watch and judge comparisons.

A comparison is described by a file (docs/how-to/versus.md) and runs in the folder ROOT/NAME, where NAME is the file
name without its extension. Verdicts are returned only when all planned runs have ended: until then neither scores
nor verdicts are shown, so that a program cannot stop at a favorable interim result.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from pydantic import BaseModel

from headtohead.errors import FolderLockedError, HeadToHeadError, MissingExtraError, RequestError
from headtohead.experiment.run_folder import lock_folder
from headtohead.versus.comparison import ComparisonFolder, is_comparison, open_comparison
from headtohead.versus.config import VersusConfig, build_comparison, read_comparison_file
from headtohead.versus.findings import write_findings

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
except ImportError:
    raise MissingExtraError("mcp", "mcp", "the Model Context Protocol server") from None

INSTRUCTIONS = (
    "Compare training scripts over several seeds. Write a comparison file, plan it, run it, watch it until its state "
    "is finished, then judge it. Decide on the number of seeds before the first run."
)
P = ParamSpec("P")
R = TypeVar("R")
State = Literal["running", "interrupted", "finished"]


class Plan(BaseModel):
    """What running a comparison file would do."""

    name: str
    metric: str
    goal: Literal["lower", "higher"]
    seeds: int
    runs: int
    """processes that will be started, ended ones included"""
    commands: dict[str, str]


class Progress(BaseModel):
    """How far a comparison is. It contains no scores."""

    name: str
    state: State
    ended: int
    runs: int
    failures: dict[str, str]
    """run: why it has no value"""


class VerdictSummary(BaseModel):
    """The verdict on one variant."""

    variant: str
    outcome: str
    summary: str


class Judgement(BaseModel):
    """The verdicts of a finished comparison; none before all planned runs have ended."""

    name: str
    state: State
    verdicts: list[VerdictSummary]
    message: str = ""


def read_config(file: str) -> VersusConfig:
    """Read and validate a comparison file."""
    return build_comparison(read_comparison_file(Path(file)), file)


def plan(file: str) -> Plan:
    """Validate a comparison file (TOML) and return the runs it describes. Nothing is run."""
    config = read_config(file)
    return Plan(
        name=Path(file).stem,
        metric=config.metric.name,
        goal="lower" if config.metric.is_lower_better else "higher",
        seeds=config.seeds,
        runs=len(config.list_runs()),
        commands={name: command.text for name, command in config.commands.items()},
    )


class ComparisonTools:
    """The tools that work in a folder of comparisons."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def list_comparisons(self) -> list[Progress]:
        """List the comparisons in the folder with their progress."""
        folders = sorted(self.root.iterdir()) if self.root.is_dir() else []
        return [self.watch(folder.name) for folder in folders if is_comparison(folder)]

    def run(self, file: str) -> str:
        """Start or continue the comparison of a file in the background. Watch it with the returned name."""
        read_config(file)
        name = Path(file).stem
        if is_comparison(self.root / name) and is_running(self.root / name):
            raise RequestError(f"{name} is running already")
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headtohead.cli", "versus", file, "--out", str(self.root / name), "--resume"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=process.wait, daemon=True).start()  # collects its exit code
        return name

    def watch(self, name: str) -> Progress:
        """Return how many runs of a comparison have ended, and which of them have no value."""
        comparison = self._open(name)
        runs = [run for by_seed in comparison.read_runs().values() for run in by_seed.values()]
        planned = len(comparison.config.list_runs())
        is_finished = len(runs) == planned
        state: State = "running" if is_running(comparison.path) else "finished" if is_finished else "interrupted"
        failures = {f"{run.variant}/seed-{run.seed}": run.message for run in runs if not run.is_counted}
        return Progress(name=name, state=state, ended=len(runs), runs=planned, failures=failures)

    def judge(self, name: str) -> Judgement:
        """Return the verdicts of a comparison whose planned runs have all ended."""
        progress = self.watch(name)
        if progress.state != "finished":
            message = (
                f"{progress.ended} of {progress.runs} planned runs have ended; there is no verdict before all have"
            )
            return Judgement(name=name, state=progress.state, verdicts=[], message=message)
        findings = write_findings(self._open(name))
        verdicts = [
            VerdictSummary(variant=verdict.variant, outcome=verdict.outcome, summary=verdict.summary)
            for verdict in findings.verdicts
        ]
        return Judgement(name=name, state=progress.state, verdicts=verdicts)

    def _open(self, name: str) -> ComparisonFolder:
        folder = self.root / name
        if Path(name).name != name or not is_comparison(folder):
            known = ", ".join(path.name for path in self.root.glob("*") if is_comparison(path))
            raise RequestError(f"no comparison {name!r}; known: {known or 'none'}")
        return open_comparison(folder)


def is_running(folder: Path) -> bool:
    """Return whether a process is working in a comparison's folder."""
    try:
        with lock_folder(folder):
            return False
    except FolderLockedError:
        return True


def report_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that this package's errors are passed on to the client."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except HeadToHeadError as error:
            raise ToolError(str(error)) from None

    return call


def build_server(root: Path) -> MCPServer:
    """Return the server with its five tools. Comparisons run in folders below `root`."""
    tools = ComparisonTools(root)
    server = MCPServer("headtohead", instructions=INSTRUCTIONS)
    server.tool("list")(report_errors(tools.list_comparisons))
    server.tool("plan")(report_errors(plan))
    server.tool("run")(report_errors(tools.run))
    server.tool("watch")(report_errors(tools.watch))
    server.tool("judge")(report_errors(tools.judge))
    return server
