"""Find each optimizer's own rate for the recipe `optimizers`, on validation rows only.

    python tools/rates.py --data FOLDER                  every optimizer, every rate of its grid, one seed
    python tools/rates.py --data FOLDER --only sgd       one of them
    python tools/rates.py --data FOLDER --rates 0.05 0.2 --only sgd    other rates

Each trial is the recipe's own with another rate; test rows are not read. Prints the validation loss and accuracy of
each and, for each optimizer, the rate with the lowest loss: the lines that belong into the recipe. A trial that is
finished is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from headtohead import spec
from headtohead.files import read_json
from headtohead.lab import loading
from headtohead.lab.workers import Job, default_workers, run_jobs

GRIDS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "adamw-own": ({"kind": "adamw"}, (5e-5, 1e-4, 2e-4, 4e-4)),
    "adam-own": ({"kind": "adam"}, (5e-5, 1e-4, 2e-4, 4e-4)),
    "sgd-own": ({"kind": "sgd"}, (0.02, 0.05, 0.1, 0.2)),
    "momentum-own": ({"kind": "sgd", "momentum": 0.9}, (0.002, 0.005, 0.01, 0.02)),
    "adagrad-own": ({"kind": "adagrad"}, (3e-4, 1e-3, 2e-3, 4e-3)),
    "muon-own": ({"kind": "muon", "adamw_rate": 2e-4}, (3e-4, 1e-3, 3e-3, 1e-2)),
}
SEED = 1000
"""no seed of the recipe: its runs begin elsewhere"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a folder with the recipe's original data, or sotu")
    parser.add_argument("--only", nargs="*", default=list(GRIDS), help="variants of the recipe, as sgd-own")
    parser.add_argument("--rates", nargs="*", type=float, help="instead of the grid")
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    parser.add_argument("--workers", type=int, default=default_workers())
    given = parser.parse_args()
    experiment = loading.load("optimizers", data=given.data)
    jobs = []
    for name in [one if one.endswith("-own") else f"{one}-own" for one in given.only]:
        settings, grid = GRIDS[name]
        for rate in given.rates or grid:
            trial = _trial(experiment, {**settings, "rate": rate})
            folder = given.out / name / f"{rate:g}"
            jobs.append(Job(trial, folder, "kept" if (folder / "result.json").is_file() else "waiting"))
    given.out.mkdir(parents=True, exist_ok=True)
    run_jobs(jobs, workers=given.workers, log=given.out / "workers.log")
    _show(jobs)


def _trial(experiment: spec.Experiment, optimizer: dict[str, Any]) -> spec.Trial:
    """The recipe's baseline with another optimizer, scored on validation rows only."""
    trial = spec.trial(experiment, spec.BASELINE, SEED)
    training = trial.training.model_copy(update={"optimizer": spec.Choice.model_validate(optimizer)})
    return trial.model_copy(update={"training": training, "probe": spec.Probe(), "choosing": True})


def _show(jobs: list[Job]) -> None:
    best: dict[str, tuple[float, str]] = {}
    for job in jobs:
        name, optimizer = job.folder.parent.name, job.trial.training.optimizer
        path = job.folder / "result.json"
        if not path.is_file():
            print(f"{name:14} {job.folder.name:>8}  {job.state}: {job.message}")
            continue
        scores = read_json(path)["scores"]["validation"]
        print(f"{name:14} {job.folder.name:>8}  loss {scores['loss']:.4f}  accuracy {scores['accuracy']:.2%}")
        best[name] = min(best.get(name, (float("inf"), "")), (scores["loss"], str(optimizer)))
    for name, (loss, optimizer) in best.items():
        print(f"best: {name:14} {optimizer}  (validation loss {loss:.4f})")


if __name__ == "__main__":
    main()
