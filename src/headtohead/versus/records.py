"""Files of a comparison's folder: comparison.json and the run.json of each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headtohead.audit.result import CheckResult
from headtohead.experiment.schemas.base import Record, StepScore, VersionedRecord
from headtohead.verdict.record import NullableFloat
from headtohead.versus.config import VersusConfig

COMPARISON_FILE, RUN_FILE, LOG_FILE, RECORD_FILE = "comparison.json", "run.json", "output.log", "h2h-record.jsonl"
RunStatus = Literal["finished", "failed", "timeout", "no metric", "not finite"]


class RevisionRecord(Record):
    """A git revision that was run"""

    name: str
    """name that was given, such as a branch"""
    commit: str
    """full hash of the commit"""
    patch: str = ""
    """SHA-256 of the uncommitted changes, if they were included"""


class ComparisonFile(VersionedRecord):
    """comparison.json: what is compared, and in which environment"""

    config: VersusConfig
    """the resolved comparison"""
    revisions: dict[str, RevisionRecord] = {}
    """revision of each variant, if there are any"""
    diffs: dict[str, str] = {}
    """difference between the revisions of the baseline and of each variant"""
    versions: dict[str, str] = {}
    """versions of Python and of the main libraries"""
    directory: str = ""
    """folder in which the commands run"""


class CommandRun(VersionedRecord):
    """run.json: the outcome of one run of a command"""

    variant: str
    """name of the variant"""
    seed: int
    """seed"""
    arguments: list[str]
    """arguments of the process"""
    status: RunStatus
    """how it ended"""
    exit_code: int | None
    """exit code; null if it was ended after the time limit"""
    seconds: float
    """duration"""
    attempts: int
    """how often it was started"""
    value: NullableFloat
    """the metric; null if the run has none"""
    curve: list[StepScore] = []
    """values of the metric along the way, [step, value]"""
    log_digest: str
    """SHA-256 of output.log"""
    start_digest: str = ""
    """SHA-256 of the initial weights, if the script recorded them"""
    batch_digest: str = ""
    """SHA-256 of all recorded batches"""
    audits: list[CheckResult] = []
    """checks of the trained model, if the script recorded them"""
    message: str = ""
    """why there is no value"""

    @property
    def is_counted(self) -> bool:
        """Whether the run has a finite value."""
        return self.status == "finished"


Runs = Mapping[str, Mapping[int, CommandRun]]
"""runs by variant and seed"""
