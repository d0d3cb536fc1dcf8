"""The command line of the calibration: train what is missing, run all studies, write the page."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path

import torch

from . import __doc__ as package_doc
from . import coverage_page, page
from .aa_training import AA_EXPERIMENTS, train_experiments
from .advice import study_advice
from .cli_runs import run_cli_experiments
from .collapse import study_collapsing_runs
from .comparison_training import train_comparisons
from .coverage import list_synthetic_groups, measure_group_coverage
from .document_advice import study_document_advice
from .false_verdicts import MARGINS, study_false_verdicts, study_families
from .power import study_pairing, study_shared_variance
from .results import ResultStore
from .rule_version import compute_interval_version
from .simulations import load_comparisons

PROJECT_ROOT = Path(__file__).parents[2]
STAGES = ("train", "commands", "studies")


def main() -> None:
    parser = argparse.ArgumentParser(prog="make calibration", description=package_doc)
    parser.add_argument("--cache", type=Path, default=PROJECT_ROOT / ".calibration")
    parser.add_argument("--out", type=Path, default=PROJECT_ROOT / "docs" / "calibration.md")
    parser.add_argument("--stage", choices=STAGES, help="run only this stage")
    parser.add_argument("--stale", action="store_true", help="also use results of other versions of the verdict rule")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = ResultStore(arguments.cache / "results", accepts_stale=arguments.stale)
    if arguments.stage in (None, "train"):
        for kind in AA_EXPERIMENTS:
            train_experiments(kind, arguments.cache)
        train_comparisons(arguments.cache)
    if arguments.stage in (None, "commands"):
        run_cli_experiments(store, arguments.cache)
    if arguments.stage in (None, "studies"):
        write_page(store, arguments.cache, arguments.out)


def write_page(store: ResultStore, cache: Path, out: Path) -> None:
    """Run the studies that are not stored yet and write the page."""
    sections: dict[str, str] = {}
    kinds = list(AA_EXPERIMENTS)
    false_verdicts = [
        row for kind in kinds for margin in MARGINS for row in study_false_verdicts(store, kind, cache, margin)
    ]
    sections["False verdicts in real A/A experiments"] = page.format_false_verdicts(false_verdicts)
    sections["Several variants"] = page.format_families(
        [row for kind in kinds for row in study_families(store, kind, cache)]
    )
    sections["A/A experiments through the command line"] = page.format_commands(store.list_rows("commands"))
    sections["Collapsing runs"] = page.format_collapse(study_collapsing_runs(store))
    comparisons = load_comparisons(cache)
    simulations_by_group = {"real addresses": comparisons, **list_synthetic_groups()}
    for name, simulations in simulations_by_group.items():
        sections[f"Coverage: {name}"] = coverage_page.format_coverage(
            name, measure_group_coverage(store.with_version(compute_interval_version()), simulations)
        )
        print(f"coverage of {name} measured", flush=True)
    sections["Is advice true?"] = page.format_advice(study_advice(store))
    sections["Advice on documents followed"] = page.format_document_advice(
        study_document_advice(store, [simulation for simulation in comparisons if "1790" in simulation.name])
    )
    sections["A variance shared by variants"] = page.format_shared_variance(study_shared_variance(store))
    sections["Paired or unpaired"] = page.format_pairing(study_pairing(store.with_version("")))
    sections["Limits"] = page.LIMITS
    sections["Versions"] = page.format_versions(
        {
            "false verdicts": store.count_stale("false-verdicts"),
            "several variants": store.count_stale("families"),
            "command line": store.count_stale("commands"),
            "collapsing runs": store.count_stale("collapse"),
            "coverage": store.with_version(compute_interval_version()).count_stale("coverage"),
            "advice": store.count_stale("advice"),
            "advice on documents": store.count_stale("document-advice"),
        }
    )
    page_text = "\n".join([page.INTRODUCTION, *(f"## {title}\n{page_text}" for title, page_text in sections.items())])
    out.write_text(page.wrap_prose(page_text).rstrip() + "\n")
    print(out)


if __name__ == "__main__":
    main()
