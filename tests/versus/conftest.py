"""Small training scripts without torch, so that a comparison takes seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPT = """
import argparse, json, os, random, sys, time
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--gain", type=float, default=0.0)
parser.add_argument("--fail", type=int, default=-1)
parser.add_argument("--nan", type=int, default=-1)
parser.add_argument("--sleep", type=float, default=0.0)
parser.add_argument("--quiet", action="store_true")
parser.add_argument("--json", default="")
arguments = parser.parse_args()
if arguments.seed == arguments.fail:
    sys.exit("the data is missing")
shared, own = random.Random(arguments.seed), random.Random(f"{arguments.seed} {arguments.gain}")
for step in range(0, 60, 20):
    time.sleep(arguments.sleep)
    loss = 3.0 - 0.01 * step + shared.gauss(0, 0.03) + own.gauss(0, 0.005) - arguments.gain * (step > 0)
    if arguments.seed == arguments.nan and step == 40:
        loss = float("nan")
    if not arguments.quiet:
        print(f"step {step}: train loss {loss - 0.1:.4f}, val loss {loss:.4f}")
if arguments.json:
    with open(arguments.json, "w") as file:
        json.dump({"final": {"val_loss": loss}}, file)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """Return a command that runs the script."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return f"{sys.executable} {path}"
