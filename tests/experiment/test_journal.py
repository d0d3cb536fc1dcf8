"""The journal of an experiment: what it records, and what it says about lines that were edited or cut off."""

import json

import pytest

from headtohead.errors import RunFolderError
from headtohead.experiment.journal import JOURNAL_FILE, Journal
from headtohead.experiment.schemas import AnalysisEvent, RunEvent, SettingsEvent
from headtohead.runner.run_experiment import run_experiment
from headtohead.runner.verify import verify_experiment


def fill(journal: Journal, num_runs: int = 3) -> None:
    for seed in range(num_runs):
        journal.append(RunEvent(status="started", variant="baseline", seed=seed))


def test_an_experiment_records_settings_and_runs_once(small, tmp_path):
    folder = tmp_path / "runs"
    run_experiment(small(), folder, num_workers=1)
    settings, *runs = [event for event in Journal(folder).read() if isinstance(event, SettingsEvent | RunEvent)]
    assert isinstance(settings, SettingsEvent) and settings.seeds == 2 and settings.variants == ["alibi"]
    expected = {(variant, seed) for variant in ("baseline", "alibi") for seed in range(2)}
    for status in ("started", "finished"):
        assert {(run.variant, run.seed) for run in runs if run.status == status} == expected
    assert all(len(run.digest) == 64 for run in runs if run.status == "finished")
    before = (folder / JOURNAL_FILE).read_bytes()
    run_experiment(small(), folder, num_workers=1, resume=True)
    assert (folder / JOURNAL_FILE).read_bytes() == before, "nothing new happened"
    run_experiment(small(seeds=3), folder, num_workers=1, resume=True)
    assert (folder / JOURNAL_FILE).read_bytes().startswith(before)
    assert [event.seeds for event in Journal(folder).read() if isinstance(event, SettingsEvent)] == [2, 3]
    assert any(check.location == JOURNAL_FILE and check.passed for check in verify_experiment(folder))


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
def test_a_line_that_was_tampered_with_is_named(tmp_path, edit, line):
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
