"""Command line of fault injection: run faults, print outcomes as they occur, and write the files."""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import argparse
import json
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tools.bench import machine

from headtohead.training.hardware.devices import count_available_cores

from . import __doc__ as package_doc
from . import page
from .fault_list import FAULTS, FULL_RUN_ONLY_FAULTS
from .outcome import FaultOutcome, FaultSettings
from .workspace import PROJECT_ROOT

DEFAULT_KILLS = 100
SHORT_KILLS = 3
"""number of kills in a short run"""
DOCS_FOLDER = PROJECT_ROOT / "docs"
Outcomes = dict[str, list[FaultOutcome]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make faults", description=package_doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kills_help = f"number of kills (default {DEFAULT_KILLS}, or {SHORT_KILLS} with --short)"
    parser.add_argument("--kills", type=int, help=kills_help)
    parser.add_argument("--only", action="append", metavar="NAME", choices=FAULTS, help=f"one of {', '.join(FAULTS)}")
    parser.add_argument("--short", action="store_true", help="fewer and smaller experiments, as in the tests")
    parser.add_argument("--seed", type=int, default=0, help="seed of moments and victims")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "runs" / "faults", help="folder of results.json")
    parser.add_argument("--docs", action="store_true", help="write the table of docs/faults.md and its numbers")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(1)
    start_time = time.monotonic()
    outcomes: Outcomes = {}
    print_progress = partial(print, flush=True)
    default_kills = SHORT_KILLS if arguments.short else DEFAULT_KILLS
    num_kills = default_kills if arguments.kills is None else arguments.kills
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as scratch:
        settings = FaultSettings(Path(scratch), num_kills, arguments.seed, arguments.short, print_progress)
        for name in arguments.only or [
            name for name in FAULTS if not (arguments.short and name in FULL_RUN_ONLY_FAULTS)
        ]:
            print_progress(f"\n{name}")
            outcomes[name] = []
            for outcome in FAULTS[name](settings):
                outcomes[name].append(remove_scratch_path(scratch, outcome))
                print_outcome(outcomes[name][-1])
    minutes = round((time.monotonic() - start_time) / 60, 1)
    environment = machine.describe_machine(count_available_cores()) | {"short": arguments.short, "minutes": minutes}
    write_outcomes(outcomes, environment, arguments.out / "results.json")
    print(f"\n{page.format_total(outcomes)}\nresults: {arguments.out / 'results.json'}")
    if arguments.docs:
        write_outcomes(outcomes, environment, DOCS_FOLDER / "figures" / "faults.json")
        page.update_page(DOCS_FOLDER / "faults.md", outcomes, environment)
        print(f"page: {DOCS_FOLDER / 'faults.md'}")
    sys.exit(0 if all(outcome.is_ok for fault_outcomes in outcomes.values() for outcome in fault_outcomes) else 1)


def remove_scratch_path(scratch: str, outcome: FaultOutcome) -> FaultOutcome:
    """Return the outcome without the path of the temporary folder."""
    text = json.dumps(outcome.to_dict()).replace(json.dumps(f"{scratch}/")[1:-1], "")
    return FaultOutcome.from_dict(json.loads(text))


def print_outcome(outcome: FaultOutcome) -> None:
    state = "skipped" if outcome.skipped else "ok" if outcome.is_ok else "FAILED"
    observation = outcome.skipped or outcome.observation
    print(f"  {state:8}{outcome.fault}, {outcome.times} times: {observation}", flush=True)
    for problem in (*outcome.lost, *outcome.errors):
        print(f"          ! {problem}", flush=True)


def write_outcomes(outcomes: Outcomes, environment: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    raw_outcomes = {
        name: [outcome.to_dict() for outcome in fault_outcomes] for name, fault_outcomes in outcomes.items()
    }
    path.write_text(json.dumps({"environment": environment, "faults": raw_outcomes}, indent=1) + "\n", encoding="utf-8")


def read_outcomes(path: Path) -> tuple[Outcomes, dict[str, Any]]:
    """Return the outcomes and the environment of an earlier run."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    outcomes = {
        name: [FaultOutcome.from_dict(raw_outcome) for raw_outcome in raw_outcomes]
        for name, raw_outcomes in raw["faults"].items()
    }
    return outcomes, raw["environment"]


if __name__ == "__main__":
    main()
