"""The example script of the documentation: a bug fix gets a verdict with one command, also after interruptions."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "train_gpt.py"
FIXED_LINE = "progress = (step - arguments.warmup_steps) / (arguments.steps - arguments.warmup_steps)"
BUGGY_LINE = "progress = (step - arguments.warmup_steps) / arguments.warmup_steps"
"""the learning rate falls to its minimum right after warm-up"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Create a repository whose branch `fix` corrects the learning rate schedule of `main`."""
    folder = tmp_path / "repository"
    folder.mkdir()
    source = SCRIPT.read_text()
    assert source.count(FIXED_LINE) == 1
    names = {f"GIT_{name}_{value}": "a@b" for name in ("AUTHOR", "COMMITTER") for value in ("NAME", "EMAIL")}

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, env=os.environ | names)

    git("init", "-q", "-b", "main")
    (folder / "input.txt").write_text(Path(argparse.__file__).read_text())
    for branch, text in (("main", source.replace(FIXED_LINE, BUGGY_LINE)), ("fix", source)):
        if branch != "main":
            git("checkout", "-q", "-b", branch)
        (folder / "train.py").write_text(text)
        git("add", ".")
        git("commit", "-q", "-m", branch)
    return folder


def build_command(out: Path, seeds: int) -> list[str]:
    options = ["--metric", "val_loss", "--seeds", str(seeds), "--no-check-determinism", "--out", str(out), "--json"]
    script = [sys.executable, "train.py", "--data", "input.txt", "--seed", "{seed}", "--steps", "60"]
    return [
        *(sys.executable, "-m", "headtohead.cli", "versus", "--revisions", "main", "fix"),
        *(*options, "--resume", "--", *script),
    ]


def run_versus(repository: Path, out: Path, seeds: int) -> dict[str, Any]:
    result = subprocess.run(build_command(out, seeds), cwd=repository, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    findings: dict[str, Any] = json.loads(result.stdout)
    return findings


def test_a_fixed_bug_gets_its_verdict_with_one_command(repository: Path, tmp_path: Path) -> None:
    findings = run_versus(repository, tmp_path / "out", seeds=5)
    assert findings["verdicts"][0]["outcome"] == "helped"
    assert f"+    {FIXED_LINE}" in findings["versus"]["diffs"]["fix"]
    curve = findings["curves"]["fix"]["val_loss"]["0"]
    assert [step for step, _ in curve] == [0, 20, 40, 60]
    first = next(item for item in findings["versus"]["observations"] if "first value" in item["question"])
    assert first["answer"] == "5 of 5 seeds"


@pytest.mark.slow
def test_ten_kills_do_not_change_the_numbers(repository: Path, tmp_path: Path) -> None:
    expected = run_versus(repository, tmp_path / "whole", seeds=5)
    out = tmp_path / "killed"
    for kill in range(10):
        process = subprocess.Popen(
            build_command(out, 5), cwd=repository, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 300
        while len(list(out.glob("*/seed-*/run.json"))) < kill and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3 * (kill % 4))  # in the middle of the next run
        process.send_signal(signal.SIGKILL)
        process.wait()
    findings = run_versus(repository, out, seeds=5)
    for key in ("primary_scores", "curves", "verdicts"):
        assert findings[key] == expected[key], key
