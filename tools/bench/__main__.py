"""The command line: families in turn, what they find as it is found, and the files at the end."""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from headtohead.training.devices import count_available_cores

from . import __doc__ as about
from . import machine, page, picture, words
from .children import ROOT
from .families import FAMILIES
from .findings import How, Results, results_of

BESIDE = ROOT.parent / "shared" / "data" / "speeches" / "speechesdataset"
"""where the speeches of the course lie, if they do: with them the vocabulary has 5,755 words"""
DOCS = ROOT / "docs"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="make bench", description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="*", metavar="FAMILY", help=f"all when none is named: {', '.join(FAMILIES)}")
    parser.add_argument("--rounds", type=int, help="turns of each contestant")
    parser.add_argument("--short", action="store_true", help="few steps and seeds, to see that it works")
    parser.add_argument("--data", default=str(BESIDE) if BESIDE.is_dir() else "sotu", help="a corpus, as in h2h run")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "bench", help="where results.json and picture go")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md, its figures and its picture")
    asked = parser.parse_args()
    if unknown := [family for family in asked.family if family not in FAMILIES]:
        parser.error(f"no family named {unknown[0]!r} (there are: {', '.join(FAMILIES)})")
    return asked


def main() -> None:
    asked = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    place = asked.out / "results.json"
    found = read(place)
    for family in asked.family or FAMILIES:
        print(f"\n{family}", flush=True)
        with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
            how = How(Path(scratch), asked.data, count_available_cores(), asked.short, asked.rounds)
            found[family] = measure(family, how)
        found = {name: found[name] for name in FAMILIES if name in found}
        write(found, place)
    print("\n" + summary(found, asked.family or list(FAMILIES)))
    picture.write(found, asked.out / "performance.svg")
    print(f"\nfigures: {place}\npicture: {asked.out / 'performance.svg'}")
    if asked.docs:
        write_docs(found)


def measure(family: str, how: How) -> Results:
    """One family, shown while it is measured."""
    facts = {"short": how.short, "rounds": how.asked_rounds, "corpus": Path(how.data).name}
    results = Results(machine.facts(how.cores) | facts)
    for one in FAMILIES[family](how):
        results.add(one)
        print(words.said(one), flush=True)
    return results


def summary(found: dict[str, Results], families: list[str]) -> str:
    """Every promise, and whether it holds."""
    promises = [one for family in families for one in found[family].findings if one.holds is not None]
    return words.plain(words.COLUMNS, [words.cells(one) for one in promises])


def read(place: Path) -> dict[str, Results]:
    """What earlier runs found: a family that is not measured now keeps its figures."""
    if not place.is_file():
        return {}
    raw: dict[str, Any] = json.loads(place.read_text(encoding="utf-8"))
    return {family: results_of(row) for family, row in raw.items() if family in FAMILIES}


def write(found: dict[str, Results], place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    rows = {family: results.to_dict() for family, results in found.items()}
    place.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def write_docs(found: dict[str, Results]) -> None:
    """The page from its figures, so that the three belong together."""
    write(found, DOCS / "figures" / "performance.json")
    picture.write(found, DOCS / page.PICTURE)
    (DOCS / "performance.md").write_text(page.page(found), encoding="utf-8")
    print(f"page: {DOCS / 'performance.md'}")


if __name__ == "__main__":
    main()
