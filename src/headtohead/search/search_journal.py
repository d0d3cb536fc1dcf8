"""Read a search's events from its journal: its start, points, pruning decisions, elapsed time and winner."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from headtohead.config import experiment
from headtohead.config.tables.search import SettingValues
from headtohead.errors import RunFolderError
from headtohead.experiment.journal import Journal
from headtohead.experiment.schemas import (
    JournalEvent,
    PointEvent,
    PrunedEvent,
    SearchStartEvent,
    TrialEvent,
    WinnerEvent,
)


def read_search_events(journal: Journal, identity: str | None = None) -> list[JournalEvent]:
    """Return the events of the journal from the start of the search on.

    Points are numbered in order, and no event refers to a later point. With `identity`, raise RunFolderError if the
    events belong to a different search.
    """
    events = journal.read()
    first_search_event = next(
        (index for index, event in enumerate(events) if isinstance(event, SearchStartEvent)), len(events)
    )
    num_points = 0
    for line_number, event in enumerate(events, start=1):
        if isinstance(event, PointEvent) and event.point == num_points:
            num_points += 1
        elif isinstance(event, PointEvent | PrunedEvent | WinnerEvent) and event.point >= num_points:
            raise RunFolderError(
                f"{journal.path}, line {line_number} is corrupted: point {event.point} is used before it was chosen"
            )
        elif isinstance(event, SearchStartEvent) and identity not in (None, event.identity):
            raise RunFolderError(
                f"{journal.folder} contains a different search (its settings differ); choose a different --out"
            )
    return events[first_search_event:]


def open_search_journal(journal: Journal, identity: str) -> list[JournalEvent]:
    """Return the events of the search so far; record its start if there are none."""
    events = read_search_events(journal, identity)
    if not events:
        journal.append(SearchStartEvent(identity=identity))
    return events


def compute_search_identity(experiment: experiment.Experiment) -> str:
    """Return a hash of everything that determines the scores of a search; its budget does not."""
    assert experiment.search is not None
    identity_fields = [experiment.identity(), experiment.search.model_dump(mode="json", exclude={"budget"})]
    return hashlib.sha256(json.dumps(identity_fields, sort_keys=True).encode()).hexdigest()[:16]


def read_winner_settings(experiment: experiment.Experiment, experiment_folder: Path) -> SettingValues | None:
    """Return the settings of the winner that the journal records, or None if the search has not ended."""
    assert experiment.search is not None
    events = read_search_events(Journal(experiment_folder), compute_search_identity(experiment))
    winner_event = find_winner_event(events)
    if winner_event is None:
        return None
    if winner_event.budget != experiment.search.budget:
        raise RunFolderError(
            f"{experiment_folder}: this search ended with the budget {winner_event.budget or 'none'}, and its winner "
            "was tested; choose a different --out for a longer search"
        )
    return next(
        event.settings for event in events if isinstance(event, PointEvent) and event.point == winner_event.point
    )


def find_winner_event(events: Sequence[JournalEvent]) -> WinnerEvent | None:
    """Return the event that names the winner, or None."""
    return next((event for event in events if isinstance(event, WinnerEvent)), None)


def read_elapsed_seconds(events: Sequence[JournalEvent]) -> float:
    """Return the duration of the search so far in seconds, excluding interruptions."""
    return max((event.seconds for event in events if isinstance(event, TrialEvent)), default=0.0)
