"""Find each optimizer's own rate for the recipe `optimizers`, on validation rows only.

    python tools/rates.py --data FOLDER                  every optimizer, every rate of its grid, one seed
    python tools/rates.py --data FOLDER --only sgd       one of them
    python tools/rates.py --data FOLDER --rates 0.05 0.2 --only sgd    other rates
    python tools/rates.py --data FOLDER --seeds 2        two seeds: the best rate may stand beside one that diverges

Each trial is the recipe's own with another rate; test rows are not read. Prints the validation loss and accuracy of
each rate, means over its seeds, and for each optimizer the rate with the lowest loss: the lines that belong into the
recipe. A trial that is finished is not run again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from headtohead.atomic_io import read_json
from headtohead.config import base
from headtohead.config import experiment as config_experiment
from headtohead.config import loading as config_loading
from headtohead.execution.local_worker import build_local_pool, default_num_workers
from headtohead.execution.worker_pool import Job, run_jobs
from headtohead.experiment import loading

GRIDS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "adamw-own": ({"kind": "adamw"}, (5e-5, 1e-4, 2e-4, 4e-4)),
    "adam-own": ({"kind": "adam"}, (5e-5, 1e-4, 2e-4, 4e-4)),
    "sgd-own": ({"kind": "sgd"}, (0.02, 0.05, 0.1, 0.2)),
    "momentum-own": ({"kind": "sgd", "momentum": 0.9}, (0.002, 0.005, 0.01, 0.02, 0.04)),
    "adagrad-own": ({"kind": "adagrad"}, (3e-4, 5e-4, 1e-3, 2e-3, 4e-3)),
    "muon-own": ({"kind": "muon", "adamw_lr": 2e-4}, (3e-4, 1e-3, 3e-3, 1e-2)),
}
SEED = 1000
"""the first one; none of the recipe's, whose runs begin elsewhere"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a folder with the recipe's original data, or sotu")
    parser.add_argument("--only", nargs="*", default=list(GRIDS), help="variants of the recipe, as sgd-own")
    parser.add_argument("--rates", nargs="*", type=float, help="instead of the grid")
    parser.add_argument("--seeds", type=int, default=1, help="for each rate")
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    parser.add_argument("--workers", type=int, default=default_num_workers())
    arguments = parser.parse_args()
    experiment = loading.load_experiment("optimizers", data_source=arguments.data)
    jobs = []
    for name in [score if score.endswith("-own") else f"{score}-own" for score in arguments.only]:
        settings, grid = GRIDS[name]
        for rate in arguments.rates or grid:
            for seed in range(SEED, SEED + arguments.seeds):
                trial = _trial(experiment, {**settings, "lr": rate}, seed)
                folder = arguments.out / name / f"{rate:g}" / f"seed-{seed}"
                jobs.append(Job(trial, folder, "kept" if (folder / "result.json").is_file() else "waiting"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    run_jobs(jobs, pool=build_local_pool(arguments.workers), log_path=arguments.out / "workers.log")
    _show(jobs)


def _trial(experiment: config_experiment.Experiment, optimizer: dict[str, Any], seed: int) -> config_experiment.Trial:
    """The recipe's baseline with another optimizer, scored on validation rows only."""
    trial = config_loading.build_trial(experiment, config_experiment.BASELINE, seed)
    training = trial.training.model_copy(update={"optimizer": base.ComponentConfig.model_validate(optimizer)})
    return trial.model_copy(update={"training": training, "probe": config_experiment.ProbeConfig(), "is_search": True})


def _show(jobs: list[Job]) -> None:
    best: dict[str, tuple[float, str]] = {}
    by_rate = {job.folder.parent: [score for score in jobs if score.folder.parent == job.folder.parent] for job in jobs}
    for folder, several in by_rate.items():
        name = folder.parent.name
        for job in several:
            if not (job.folder / "result.json").is_file():
                print(f"{name:14} {folder.name:>8}  {job.state}: {job.message}")
        done = [job for job in several if (job.folder / "result.json").is_file()]
        if len(done) < len(several):
            continue
        scores = [read_json(job.folder / "result.json")["scores"]["validation"] for job in done]
        loss, accuracy = (mean(score[key] for score in scores) for key in ("loss", "accuracy"))
        losses = ", ".join(f"{score['loss']:.4f}" for score in scores)
        print(f"{name:14} {folder.name:>8}  loss {loss:.4f}  accuracy {accuracy:.2%}  (losses {losses})")
        best[name] = min(best.get(name, (float("inf"), "")), (loss, str(done[0].trial.training.optimizer)))
    for name, (loss, optimizer) in best.items():
        print(f"best: {name:14} {optimizer}  (validation loss {loss:.4f})")


if __name__ == "__main__":
    main()
