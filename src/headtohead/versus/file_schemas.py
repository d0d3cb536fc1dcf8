"""Files of a comparison's folder: comparison.json and the run.json of each run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from headtohead.audit.result import CheckResult
from headtohead.experiment.schemas.base import Record, StepScore, VersionedRecord
from headtohead.verdict.record import NullableFloat
from headtohead.versus.config import VersusConfig
from headtohead.versus.script_files import list_named_paths

COMPARISON_FILE = "comparison.json"
RUN_FILE = "run.json"
LOG_FILE = "output.log"
OUTPUT_FOLDER = "out"
RECORD_FILE = "h2h-record.jsonl"
"""what a script recorded with `headtohead.record()`"""
RECORDED_EXAMPLES_FILE = "h2h-examples.jsonl"
"""scores per example that a script recorded with `run.examples(...)`"""
RunStatus = Literal["finished", "failed", "timeout", "no metric", "not finite"]


class RevisionRecord(Record):
    """A git revision that was run"""

    name: str
    """name that the user gave, such as a branch"""
    commit: str
    """full hash of the commit"""
    patch: str = ""
    """SHA-256 of the uncommitted changes, if they were included"""


class ComparisonFile(VersionedRecord):
    """comparison.json: what is compared, and in which environment"""

    config: VersusConfig
    """settings of the comparison, defaults included"""
    revisions: dict[str, RevisionRecord] = {}
    """git revision of the baseline and of each variant, if revisions are compared"""
    diffs: dict[str, str] = {}
    """difference between the revisions of the baseline and of each variant"""
    files: dict[str, dict[str, str]] = {}
    """digests of the files that a command without a revision names, and of Python files next to them; by variant"""
    versions: dict[str, str] = {}
    """versions of Python and of the main libraries"""
    directory: str = ""
    """folder in which the commands run"""

    def list_named_scripts(self, variant: str) -> list[str]:
        """Return the files that a variant's command names, without the Python files next to them."""
        named_paths = set(list_named_paths(self.config.commands[variant].command_words))
        return [file for file in self.files.get(variant, {}) if file in named_paths]


class CommandRun(VersionedRecord):
    """run.json: the outcome of one run of a command"""

    variant: str
    """name of the variant"""
    seed: int
    """seed"""
    is_repeat: bool = False
    """whether it repeats the baseline's first seed; the digest of such a run differs from that of the first one"""
    arguments: list[str]
    """arguments of the process"""
    status: RunStatus
    """how it ended"""
    exit_code: int | None
    """exit code of the process; null if it was terminated after the time limit"""
    seconds: float
    """duration of the run"""
    attempts: int
    """number of times that the command was started"""
    value: NullableFloat
    """the metric; null if the run has none"""
    curve: list[StepScore] = []
    """all reported values of the metric, [step, value]"""
    split: str = ""
    """train, validation or test, if the output states it but the metric's name does not"""
    log_digest: str
    """SHA-256 of output.log"""
    start_digest: str = ""
    """SHA-256 of the initial weights, if the script recorded them"""
    batch_digest: str = ""
    """SHA-256 of all recorded batches"""
    audits: list[CheckResult] = []
    """checks of the trained model, if the script recorded them"""
    changed_files: list[str] = []
    """files of the script that were not the same as when the comparison began"""
    written_files: dict[str, int] = {}
    """files in the working directory that were written during the run: modification time in nanoseconds"""
    read_files: list[str] = []
    """files in the working directory that an earlier run wrote and that were read during this one"""
    message: str = ""
    """why there is no value"""

    @property
    def has_finite_value(self) -> bool:
        """Whether the run can be compared: it finished with a finite value of the metric."""
        return self.status == "finished"

    @property
    def has_value(self) -> bool:
        """Whether the run has a value, finite or not. Other runs are repeated by --resume."""
        return self.status in ("finished", "not finite")


RunsByVariant = Mapping[str, Mapping[int, CommandRun]]
"""runs by variant and seed"""
