"""Measure the overhead of a Ray cluster compared with local workers: the best of several alternating rounds.

    python tools/cluster.py [--rounds 3] [--steps 300]

Uses two Ray nodes of one core each on this machine, with separate caches, and two local workers. All runs must give
equal results; time is measured from the start of the command's work to its findings.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import argparse
import tempfile
import time
from pathlib import Path

from headtohead.config import experiment
from headtohead.experiment import loading
from headtohead.experiment.run_folder import ExperimentRuns
from headtohead.runner import run_experiment

RECIPE = "speeches-decoder"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    from ray.cluster_utils import Cluster

    experiment = loading.load_experiment(
        RECIPE, [f"training.budget={arguments.steps} steps", f"seeds={arguments.seeds}"]
    )
    with tempfile.TemporaryDirectory() as scratch:
        scratch_folder = Path(scratch)
        cluster = Cluster()
        for name in ("first", "second"):
            cluster.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(scratch_folder / name)})
        backends = {"local workers": None, "ray": f"ray:{cluster.address}"}
        seconds_by_backend: dict[str, list[float]] = {name: [] for name in backends}
        scores_by_run = []
        for round_index in range(arguments.rounds):
            for name, backend in backends.items():
                folder = scratch_folder / f"{name}-{round_index}"
                start_time = time.perf_counter()
                run_experiment.run_experiment(experiment, folder, num_workers=2, backend=backend)
                seconds_by_backend[name].append(time.perf_counter() - start_time)
                scores_by_run.append(read_scores(experiment, folder))
                print(f"{name}: {seconds_by_backend[name][-1]:.1f} s", flush=True)
        assert all(scores == scores_by_run[0] for scores in scores_by_run), "cluster and local workers must agree"
        num_trials = arguments.seeds * len(experiment.names)
        best_seconds = {name: min(seconds) for name, seconds in seconds_by_backend.items()}
        print(f"{num_trials} trials of {arguments.steps} steps, best of {arguments.rounds}, all scores equal")
        for name, seconds in best_seconds.items():
            print(f"{name:14} {seconds:6.1f} s   {seconds / best_seconds['local workers']:.2f} times local workers")


def read_scores(experiment: experiment.Experiment, folder: Path) -> dict[str, object]:
    """Return the scores of every run of an experiment."""
    runs = ExperimentRuns(folder)
    return {
        f"{variant} {seed}": run.result.to_json()["scores"]
        for variant in experiment.names
        for seed, run in runs.finished(variant).items()
    }


if __name__ == "__main__":
    main()
