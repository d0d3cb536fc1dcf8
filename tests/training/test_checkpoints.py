"""Checkpoints are sorted by step."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

from headtohead.training import checkpoints
from headtohead.training.checkpoints import TrainingState


def save(folder: Path, step: int) -> None:
    checkpoints.save_checkpoint(folder, nn.Linear(2, 2), {}, TrainingState(step=step))


@pytest.mark.parametrize(("earlier", "later"), [(999_950, 1_000_000), (999_999, 10_000_000), (99_999_999, 100_000_000)])
def test_a_step_with_more_digits_is_newer(tmp_path: Path, earlier: int, later: int) -> None:
    save(tmp_path, earlier)
    save(tmp_path, later)
    latest = checkpoints.find_latest_checkpoint(tmp_path)
    assert latest is not None and latest.name == f"checkpoint-{later}"
    assert [path.name for path in tmp_path.iterdir()] == [latest.name]


def test_names_that_are_no_step_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-7-of-mine").mkdir()
    (tmp_path / "checkpoint-0x10").mkdir()
    save(tmp_path, 3)
    save(tmp_path, 12)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint-000012",
        "checkpoint-0x10",
        "checkpoint-7-of-mine",
    ]
