"""What a Ray cluster costs beside local workers: the same experiment on both in turn, best of each.

    python tools/cluster.py [--rounds 3] [--steps 300]

Two Ray nodes of one core each on this machine, with caches of their own, against two local workers. The figures of all
runs must be equal; time is from the start of the command's work to its findings.
"""

from __future__ import annotations

import os

for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
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
    asked = parser.parse_args()
    from ray.cluster_utils import Cluster

    experiment = loading.load_experiment(RECIPE, [f"training.steps={asked.steps}", f"seeds={asked.seeds}"])
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        machines = Cluster()
        for name in ("first", "second"):
            machines.add_node(num_cpus=1, env_vars={"XDG_CACHE_HOME": str(root / name)})
        places = {"local workers": None, "ray": f"ray:{machines.address}"}
        seconds: dict[str, list[float]] = {name: [] for name in places}
        scores = []
        for turn in range(asked.rounds):
            for name, on in places.items():
                folder = root / f"{name}-{turn}"
                began = time.perf_counter()
                run_experiment.run_experiment(experiment, folder, num_workers=2, backend=on)
                seconds[name].append(time.perf_counter() - began)
                scores.append(figures(experiment, folder))
                print(f"{name}: {seconds[name][-1]:.1f} s", flush=True)
        assert all(run_scores == scores[0] for run_scores in scores), "a cluster must give the numbers of local workers"
        trials = asked.seeds * len(experiment.names)
        best = {name: min(values) for name, values in seconds.items()}
        print(f"{trials} trials of {asked.steps} steps, best of {asked.rounds}, all figures equal")
        for name, value in best.items():
            print(f"{name:14} {value:6.1f} s   {value / best['local workers']:.2f} times local workers")


def figures(experiment: experiment.Experiment, folder: Path) -> dict[str, object]:
    runs = ExperimentRuns(folder)
    return {
        f"{variant} {seed}": run.result.to_json()["scores"]
        for variant in experiment.names
        for seed, run in runs.finished(variant).items()
    }


if __name__ == "__main__":
    main()
