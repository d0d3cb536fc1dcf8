"""`make faults` in its short form, and a check that it detects losses."""

import itertools
import json
import random
from pathlib import Path

import pytest
from tools.faults import __main__ as command
from tools.faults import corruption, page
from tools.faults.fault_list import FAULTS, FULL_RUN_ONLY_FAULTS
from tools.faults.outcome import FaultOutcome, FaultSettings
from tools.faults.run_monitor import RunMonitor, compare_with_reference, find_incomplete_files

from headtohead.json_files import write_json


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> FaultSettings:
    """Return settings under which all faults share one reference run."""
    return FaultSettings(tmp_path_factory.mktemp("faults"), command.SHORT_KILLS, 0, True, print)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.timeout(900)  # a busy machine is many times slower
@pytest.mark.parametrize("name", [name for name in FAULTS if name not in FULL_RUN_ONLY_FAULTS])
def test_faults_cause_no_losses_and_no_errors(name: str, settings: FaultSettings):
    outcomes = list(FAULTS[name](settings))
    if all(outcome.skipped for outcome in outcomes):
        pytest.skip(str(outcomes[0].skipped))
    assert [(*outcome.lost, *outcome.errors) for outcome in outcomes] == [()] * len(outcomes)
    assert all(outcome.times for outcome in outcomes)
    if name == "kills":
        assert sum(outcome.kills for outcome in outcomes) == settings.num_kills


def write_result(folder: Path, value: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "result.json", {"value": value})
    return folder


def test_removed_and_rewritten_results_are_reported(tmp_path: Path):
    for name in ("same", "changed", "gone"):
        write_result(tmp_path / name / "seed-0", 1)
    monitor = RunMonitor(tmp_path)
    monitor.update()
    write_result(tmp_path / "changed" / "seed-0", 2)
    (tmp_path / "gone" / "seed-0" / "result.json").unlink()
    monitor.update()
    monitor.verify_results()
    assert monitor.lost == [
        "changed/seed-0: its finished result was written again",
        "gone/seed-0: its finished result is gone",
    ]


def test_lost_checkpoints_are_reported(tmp_path: Path):
    monitor = RunMonitor(tmp_path)
    for step in (100, 200):
        (tmp_path / "a" / "seed-0" / f"checkpoint-{step:06d}").mkdir(parents=True)
        monitor.update()
    (tmp_path / "a" / "seed-0" / "checkpoint-000200").rmdir()
    monitor.update()
    assert monitor.lost == ["a/seed-0: went back from step 200 to 100"]


def test_checkpoints_may_be_removed_after_the_result_is_written(tmp_path: Path):
    monitor = RunMonitor(tmp_path)
    for step in (100, 200):
        (tmp_path / "a" / "seed-0" / f"checkpoint-{step:06d}").mkdir(parents=True)
    monitor.update()
    write_result(tmp_path / "a" / "seed-0", 1)
    (tmp_path / "a" / "seed-0" / "checkpoint-000200").rmdir()
    monitor.update()
    monitor.verify_results()
    assert monitor.lost == []


def test_incomplete_files_are_reported(tmp_path: Path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".result.json.12.part").write_text("{")
    assert [path.name for path in find_incomplete_files(tmp_path)] == [".result.json.12.part"]
    assert compare_with_reference(tmp_path, {"b/seed-0": {}}) == [
        "b/seed-0: is missing",
        "a/.result.json.12.part: was left behind",
    ]


@pytest.mark.parametrize("damage", list(corruption.DAMAGE_FUNCTIONS))
def test_damage_functions_change_the_file(tmp_path: Path, damage: str):
    content = bytes(range(256))
    for seed in range(20):
        path = tmp_path / "file"
        path.write_bytes(content)
        corruption.DAMAGE_FUNCTIONS[damage](path, random.Random(seed))
        damaged = path.read_bytes()
        assert damaged != content
        if damage == "flipped":
            assert len(damaged) == 256
            assert sum((a ^ b).bit_count() for a, b in zip(damaged, content, strict=True)) == 1
        else:
            assert content.startswith(damaged)


def test_files_that_differ_only_in_seed_or_step_are_grouped(tmp_path: Path):
    for name, seed in itertools.product(("baseline", "alibi"), (0, 1)):
        run_folder = tmp_path / name / f"seed-{seed}"
        (run_folder / "checkpoint-000100").mkdir(parents=True)
        (run_folder / "result.json").write_text("{}")
        (run_folder / "checkpoint-000100" / "state.json").write_text("{}")
    assert {kind: len(paths) for kind, paths in corruption.group_files_by_kind(tmp_path).items()} == {
        "N/result.json": 4,
        "N/checkpoint-N/state.json": 4,
    }


ENVIRONMENT = {
    "processor": "a processor",
    "cores": 2,
    "system": "Linux",
    "python": "3.11",
    "versions": {"torch": "2"},
    "day": "2026-11-16",
    "short": False,
    "minutes": 12.5,
}
OUTCOMES = {
    "kills": [FaultOutcome("killed", "came through", 100, 100)],
    "disk": [FaultOutcome("disk full", "", skipped="not root")],
    "bytes": [FaultOutcome("bytes", "read", 3, lost=("a/seed-0",), errors=("b | c",))],
}


def test_update_page_replaces_only_the_table(tmp_path: Path):
    path = tmp_path / "faults.md"
    path.write_text(f"# Faults\nbefore\n{page.TABLE_START}\nold\n{page.TABLE_END}\nafter\n")
    page.update_page(path, OUTCOMES, ENVIRONMENT)
    page_text = path.read_text()
    assert page_text.startswith("# Faults\nbefore\n")
    assert page_text.endswith("\nafter\n")
    assert "old" not in page_text
    assert "**100 kills, 1 lost, 1 wrong.**" in page_text
    assert "| disk full |  | skipped: not root |" in page_text
    assert "LOST a/seed-0; WRONG b \\| c" in page_text


def test_outcomes_are_read_back_from_json(tmp_path: Path):
    command.write_outcomes(OUTCOMES, ENVIRONMENT, tmp_path / "results.json")
    assert command.read_outcomes(tmp_path / "results.json") == (OUTCOMES, ENVIRONMENT)
    assert json.loads((tmp_path / "results.json").read_text())["faults"]["kills"][0]["kills"] == 100


def test_documentation_page_has_table_markers():
    page_text = (command.DOCS_FOLDER / "faults.md").read_text()
    assert page_text.count(page.TABLE_START) == page_text.count(page.TABLE_END) == 1
