"""make faults in its short form: a few kills and the cheap faults with the same code; and that it would see a loss."""

import itertools
import json
import random
from pathlib import Path

import pytest
from tools.faults import __main__ as command
from tools.faults import flips, page
from tools.faults.families import FAULTS, FULL_ONLY
from tools.faults.ledger import Ledger, compare, rests
from tools.faults.seen import How, Seen

from headtohead.atomic_io import write_json


@pytest.fixture(scope="module")
def how(tmp_path_factory: pytest.TempPathFactory) -> How:
    """All faults share one undisturbed experiment."""
    return How(tmp_path_factory.mktemp("faults"), command.FEW, 0, True, print)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.timeout(900)  # a busy machine is many times slower
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in FULL_ONLY])
def test_nothing_is_lost_and_nothing_is_wrong(name: str, how: How):
    rows = list(FAULTS[name](how))
    if all(seen.skipped for seen in rows):
        pytest.skip(str(rows[0].skipped))
    assert [(*seen.lost, *seen.wrong) for seen in rows] == [()] * len(rows)
    assert all(seen.times for seen in rows)
    if name == "kills":
        assert sum(seen.kills for seen in rows) == how.kills


def result(folder: Path, value: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "result.json", {"value": value})
    return folder


def test_the_ledger_sees_a_result_that_is_gone_or_was_written_again(tmp_path: Path):
    for name in ("same", "changed", "gone"):
        result(tmp_path / name / "seed-0", 1)
    ledger = Ledger(tmp_path)
    ledger.look()
    result(tmp_path / "changed" / "seed-0", 2)
    (tmp_path / "gone" / "seed-0" / "result.json").unlink()
    ledger.look()
    ledger.close()
    assert ledger.lost == [
        "changed/seed-0: was finished, and its result was written again",
        "gone/seed-0: was finished, and its result is gone",
    ]


def test_the_ledger_sees_a_training_that_went_back(tmp_path: Path):
    ledger = Ledger(tmp_path)
    for step in (100, 200):
        (tmp_path / "a" / "seed-0" / f"checkpoint-{step:06d}").mkdir(parents=True)
        ledger.look()
    (tmp_path / "a" / "seed-0" / "checkpoint-000200").rmdir()
    ledger.look()
    assert ledger.lost == ["a/seed-0: went back from step 200 to 100"]


def test_a_ledger_lets_checkpoints_go_once_the_result_is_there(tmp_path: Path):
    ledger = Ledger(tmp_path)
    for step in (100, 200):
        (tmp_path / "a" / "seed-0" / f"checkpoint-{step:06d}").mkdir(parents=True)
    ledger.look()
    result(tmp_path / "a" / "seed-0", 1)
    (tmp_path / "a" / "seed-0" / "checkpoint-000200").rmdir()
    ledger.look()
    ledger.close()
    assert ledger.lost == []


def test_halves_of_files_are_seen(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".result.json.12.part").write_text("{")
    assert [path.name for path in rests(tmp_path)] == [".result.json.12.part"]
    assert compare(tmp_path, {"b/seed-0": {}}) == [
        "b/seed-0: is missing",
        "a/.result.json.12.part: was left behind",
    ]


@pytest.mark.parametrize("damage", list(flips.DAMAGES))
def test_damage_is_done(tmp_path: Path, damage: str):
    content = bytes(range(256))
    for seed in range(20):
        path = tmp_path / "file"
        path.write_bytes(content)
        flips.DAMAGES[damage](path, random.Random(seed))
        there = path.read_bytes()
        assert there != content
        if damage == "flipped":
            assert len(there) == 256
            assert sum((a ^ b).bit_count() for a, b in zip(there, content, strict=True)) == 1
        else:
            assert content.startswith(there)


def test_files_that_differ_in_seed_or_step_are_of_one_kind(tmp_path: Path):
    for name, seed in itertools.product(("baseline", "alibi"), (0, 1)):
        run = tmp_path / name / f"seed-{seed}"
        (run / "checkpoint-000100").mkdir(parents=True)
        (run / "result.json").write_text("{}")
        (run / "checkpoint-000100" / "state.json").write_text("{}")
    assert {kind: len(paths) for kind, paths in flips.kinds_in(tmp_path).items()} == {
        "N/result.json": 4,
        "N/checkpoint-N/state.json": 4,
    }


ABOUT = {
    "processor": "a processor",
    "cores": 2,
    "system": "Linux",
    "python": "3.11",
    "versions": {"torch": "2"},
    "day": "2026-11-16",
    "short": False,
    "minutes": 12.5,
}
FOUND = {
    "kills": [Seen("killed", "came through", 100, 100)],
    "disk": [Seen("disk full", "", skipped="not root")],
    "bytes": [Seen("bytes", "read", 3, lost=("a/seed-0",), wrong=("b | c",))],
}


def test_the_page_keeps_its_words_and_says_what_was_lost(tmp_path: Path):
    place = tmp_path / "faults.md"
    place.write_text(f"# Faults\nbefore\n{page.BEGIN}\nold\n{page.END}\nafter\n")
    page.write(place, FOUND, ABOUT)
    text = place.read_text()
    assert text.startswith("# Faults\nbefore\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "**100 kills, 1 lost, 1 wrong.**" in text
    assert "| disk full |  | not done: not root |" in text
    assert "LOST a/seed-0; WRONG b \\| c" in text


def test_results_can_be_read_again(tmp_path: Path):
    command.write(FOUND, ABOUT, tmp_path / "results.json")
    assert command.read(tmp_path / "results.json") == (FOUND, ABOUT)
    assert json.loads((tmp_path / "results.json").read_text())["faults"]["kills"][0]["kills"] == 100


def test_the_page_in_the_documentation_has_a_place_for_the_table():
    text = (command.DOCS / "faults.md").read_text()
    assert text.count(page.BEGIN) == text.count(page.END) == 1
