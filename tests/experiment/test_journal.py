"""The experiment journal: recorded events, and messages about edited or truncated lines."""

import hashlib
import json
import os

import pytest

from headtohead.errors import RunFolderError
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.schemas import AnalysisEvent, RunEvent


def fill(journal: Journal, num_runs: int = 3) -> None:
    for seed in range(num_runs):
        journal.append(RunEvent(status="started", variant="baseline", seed=seed))


def test_half_a_line_at_the_end_is_ignored_and_removed(tmp_path):
    fill(Journal(tmp_path))
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(path.read_bytes() + b'{"event": "run", "sta')
    assert len(Journal(tmp_path).read()) == 3
    Journal(tmp_path).append(AnalysisEvent(seeds={"alibi": 3}, planned_seeds=0, confidence={"alibi": 0.95}))
    assert len(Journal(tmp_path).read()) == 4


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (lambda lines: [lines[0], lines[1].replace(b'"seed": 1', b'"seed": 7'), *lines[2:]], 2),
        (lambda lines: [lines[0], *lines[2:]], 2),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], 2),
        (lambda lines: [*lines[:2], lines[1], *lines[2:]], 3),
        (lambda lines: [lines[1], *lines[2:]], 1),
    ],
    ids=["edited", "removed", "reordered", "repeated", "without the first"],
)
def test_a_line_that_was_tampered_with_is_reported(tmp_path, edit, line):
    fill(Journal(tmp_path), 5)
    path = tmp_path / JOURNAL_FILE
    path.write_bytes(b"".join(edit(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(RunFolderError, match=rf"journal\.jsonl, line {line} is corrupted: checksum mismatch"):
        Journal(tmp_path).read()
    with pytest.raises(RunFolderError, match=f"line {line}"):
        Journal(tmp_path).append(RunEvent(status="started", variant="baseline", seed=9))


def test_a_line_without_a_checksum_is_not_accepted(tmp_path):
    fill(Journal(tmp_path))
    path = tmp_path / JOURNAL_FILE
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    del lines[-1]["checksum"]
    path.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    with pytest.raises(RunFolderError, match="line 3 is corrupted"):
        Journal(tmp_path).read()


def test_two_writers_in_turn_continue_one_chain(tmp_path):
    first, second = Journal(tmp_path), Journal(tmp_path)
    for journal in (first, second, first):
        fill(journal, 1)
    assert len(first.read()) == 3


def test_an_event_is_recorded_again_only_if_it_differs_from_the_last_of_its_type(tmp_path):
    journal = Journal(tmp_path / "new" / "experiment")
    first, second = (AnalysisEvent(seeds={"alibi": n}, planned_seeds=0, confidence={"alibi": 0.95}) for n in (3, 5))
    started = RunEvent(status="started", variant="baseline", seed=0)
    for event in (first, started, first.model_copy(), second, started.model_copy(), first, first.model_copy()):
        journal.append_new(event)
    assert journal.read() == [first, started, second, first]
    assert Journal(journal.folder).read() == [first, started, second, first]


def test_a_finished_run_is_recorded_with_the_digest_of_its_result(tmp_path):
    run = tmp_path / "alibi" / "seed-1"
    run.mkdir(parents=True)
    (run / "result.json").write_bytes(b"{}")
    Journal(tmp_path).record_finished("alibi", 1, run)
    digest = hashlib.sha256(b"{}").hexdigest()
    assert Journal(tmp_path).read() == [RunEvent(status="finished", variant="alibi", seed=1, digest=digest)]


def test_an_event_is_on_the_disk_before_append_returns(tmp_path, monkeypatch):
    path, synced = tmp_path / JOURNAL_FILE, []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_bytes()))
    fill(Journal(tmp_path), 2)
    assert synced[-1] == path.read_bytes()
    assert [content.count(b"\n") for content in synced] == [1, 2]


def test_the_file_is_checked_again_only_if_another_process_changed_its_size(tmp_path):
    journal = Journal(tmp_path)
    fill(journal, 1)
    path = tmp_path / JOURNAL_FILE
    content = path.read_bytes()
    path.write_bytes(content[:-20])  # shorter: the line was cut off
    fill(journal, 1)
    assert len(Journal(tmp_path).read()) == 1, "the incomplete line is replaced"
    fill(journal, 2)
    path.write_bytes(path.read_bytes().replace(b"started", b"STARTED"))
    journal.append(RunEvent(status="started", variant="baseline", seed=5))
    with pytest.raises(RunFolderError, match="line 1"):
        journal.read()
    path.unlink()
    fill(journal, 2)
    assert len(Journal(tmp_path).read()) == 2, "a removed file begins a new chain"
