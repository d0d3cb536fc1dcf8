"""The command line: faults in turn, what is seen as it is seen, and the files at the end."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
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

from headtohead.training.devices import count_available_cores

from . import __doc__ as about
from . import page
from .families import FAULTS, FULL_ONLY
from .seen import How, Seen, seen_of
from .world import ROOT

KILLS, FEW = 100, 4
DOCS = ROOT / "docs"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make faults", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, help=f"processes to be killed (default {KILLS}, or {FEW} with --short)")
    parser.add_argument("--only", action="append", metavar="NAME", choices=FAULTS, help=f"one of {', '.join(FAULTS)}")
    parser.add_argument("--short", action="store_true", help="small experiments and few of them, as in the tests")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and the victims")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "faults", help="where results.json goes")
    parser.add_argument("--docs", action="store_true", help="write the table of docs/faults.md and its figures")
    return parser.parse_args()


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    began = time.monotonic()
    found: dict[str, list[Seen]] = {}
    say = partial(print, flush=True)
    with tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as scratch:
        kills = asked.kills if asked.kills is not None else FEW if asked.short else KILLS
        how = How(Path(scratch), kills, asked.seed, asked.short, say)
        for name in asked.only or [name for name in FAULTS if not (asked.short and name in FULL_ONLY)]:
            say(f"\n{name}")
            found[name] = []
            for seen in FAULTS[name](how):
                found[name].append(without(scratch, seen))
                show(found[name][-1])
    facts = machine.facts(count_available_cores()) | {
        "short": asked.short,
        "minutes": round((time.monotonic() - began) / 60, 1),
    }
    write(found, facts, asked.out / "results.json")
    print(f"\n{page.total(found)}\nfigures: {asked.out / 'results.json'}")
    if asked.docs:
        write(found, facts, DOCS / "figures" / "faults.json")
        page.write(DOCS / "faults.md", found, facts)
        print(f"page: {DOCS / 'faults.md'}")
    sys.exit(0 if all(seen.is_fine for rows in found.values() for seen in rows) else 1)


def without(scratch: str, seen: Seen) -> Seen:
    """Where it was done is nobody's concern."""
    row = json.loads(json.dumps(seen.to_dict()).replace(json.dumps(f"{scratch}/")[1:-1], ""))
    return seen_of(row)


def show(seen: Seen) -> None:
    state = "skipped" if seen.skipped else "fine" if seen.is_fine else "WRONG"
    print(f"  {state:8}{seen.what}, {seen.times} times: {seen.skipped or seen.seen}", flush=True)
    for one in (*seen.lost, *seen.wrong):
        print(f"          ! {one}", flush=True)


def write(found: dict[str, list[Seen]], facts: dict[str, Any], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    rows = {name: [seen.to_dict() for seen in rows] for name, rows in found.items()}
    place.write_text(json.dumps({"about": facts, "faults": rows}, indent=1) + "\n", encoding="utf-8")


def read(place: Path) -> tuple[dict[str, list[Seen]], dict[str, Any]]:
    """What an earlier run wrote."""
    raw = json.loads(place.read_text(encoding="utf-8"))
    return {name: [seen_of(row) for row in rows] for name, rows in raw["faults"].items()}, raw["about"]


if __name__ == "__main__":
    main()
