"""The command line of the calibration: train what is missing, run all studies, write the page."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path

import torch

from . import __doc__ as about
from . import page
from .aa_training import KINDS, train_experiments
from .comparison_training import train_comparisons
from .coverage import list_synthetic_groups, measure_group
from .power import study_pairing, study_shared_variance
from .results import ResultStore
from .simulations import load_comparisons

ROOT = Path(__file__).parents[2]
STAGES = ("train", "studies")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make calibration", description=about)
    parser.add_argument("--cache", type=Path, default=ROOT / ".calibration")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "calibration.md")
    parser.add_argument("--stage", choices=STAGES, help="run only this stage")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.stage in (None, "train"):
        train_comparisons(arguments.cache)
        for kind in KINDS:
            train_experiments(kind, arguments.cache)
    if arguments.stage in (None, "studies"):
        write_page(arguments.cache, arguments.out)


def write_page(cache: Path, out: Path) -> None:
    """Run the studies one after the other and write the page after each."""
    store = ResultStore(cache / "results")
    sections: list[str] = [page.INTRODUCTION]

    def add(title: str, text: str) -> None:
        sections.append(f"## {title}\n{text}")
        out.write_text("\n".join(sections))
        print(f"{out}: {title}", flush=True)

    measured = load_comparisons(cache)
    groups = {"real addresses": measured, **list_synthetic_groups()}
    for name, simulations in groups.items():
        cells = measure_group(store, simulations)
        add(f"Coverage: {name}", page.format_coverage_table(cells) + "\n" + page.format_misses(cells))
    add("Shared variance", page.format_shared_variance(study_shared_variance(store)))
    add("Pairing", page.format_pairing(study_pairing(store)))


if __name__ == "__main__":
    main()
