"""The events in journal.jsonl, the record of all actions in the folder of an experiment."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.experiment import SeedCount
from headtohead.experiment.schemas.base import NonNegativeInt, Record
from headtohead.experiment.schemas.search import PointEvent, PrunedEvent, SearchStartEvent, TrialEvent, WinnerEvent


class SettingsEvent(Record):
    """The experiment was started, or continued with different settings"""

    event: Literal["settings"] = "settings"
    digest: str
    """SHA-256 of the resolved experiment, its corpora and its code"""
    trials: dict[str, str] = {}
    """SHA-256 of the settings, the corpus and the code of each variant, the baseline included"""
    seeds: SeedCount
    """seeds per variant that were asked for"""
    variants: list[str]
    """names of the variants"""
    versions: dict[str, str]
    """versions of Python and of the main libraries"""


class CorpusEvent(Record):
    """The corpus was audited"""

    event: Literal["corpus"] = "corpus"
    digest: str
    """SHA-256 of corpus.json: audits of the data, unseen rows and repeated rows"""


class RunEvent(Record):
    """A run was started or has ended"""

    event: Literal["run"] = "run"
    status: Literal["started", "finished", "failed", "lost"]
    """lost: the worker exited without an answer"""
    variant: str
    """name of the variant"""
    seed: NonNegativeInt
    """seed of the trial"""
    digest: str = ""
    """SHA-256 of result.json; empty unless the run has finished"""
    message: str = ""
    """error message of a failed or lost run"""


class AnalysisEvent(Record):
    """Verdicts were computed, which is an interim analysis if runs are added afterwards"""

    event: Literal["analysis"] = "analysis"
    seeds: dict[str, NonNegativeInt]
    """seeds by variant that it and the baseline have run, lost runs included"""
    planned_seeds: NonNegativeInt
    """seeds of the last planned analysis"""
    confidence: dict[str, float]
    """confidence of the interval of each variant"""


JournalEvent = Annotated[
    SettingsEvent
    | CorpusEvent
    | RunEvent
    | AnalysisEvent
    | SearchStartEvent
    | PointEvent
    | PrunedEvent
    | TrialEvent
    | WinnerEvent,
    Field(discriminator="event"),
]
"""journal.jsonl: one line; its last key, `checksum`, covers the line and the checksum of the line before"""
