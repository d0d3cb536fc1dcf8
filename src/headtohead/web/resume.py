"""A training that goes on: `python -m headtohead.web.resume RUNS/NAME [SEEDS]`.

All that it needs lies in the experiment's folder, so it does not matter from which file and where it was started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headtohead.errors import HeadToHeadError, TrialError


def main(experiment_folder: Path, num_seeds: int | None) -> None:
    from headtohead.experiment.run_folder import open_runs
    from headtohead.nn.parts import registry
    from headtohead.report import write
    from headtohead.runner import run_search

    runs = open_runs(experiment_folder)
    experiment, command = runs.experiment, list(runs.metadata.command)
    for file in experiment.use:
        registry.load_part_file(file)
    if num_seeds is not None:
        experiment = experiment.model_copy(update={"seeds": num_seeds})
        command += ["--seeds", str(num_seeds)]
    outcome = run_search.run_with_search(experiment, experiment_folder, resume=True, command=command)
    if outcome.findings is not None:
        write(experiment_folder, ["html"])
    if outcome.failed_jobs:
        raise TrialError("; ".join(f"{j.trial.variant}, seed {j.trial.seed}: {j.message}" for j in outcome.failed_jobs))


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    where, *more = sys.argv[1:]
    try:
        main(Path(where), int(more[0]) if more else None)
    except KeyboardInterrupt:
        sys.stderr.write("stopped; nothing is lost\n")
        sys.exit(130)
    except HeadToHeadError as error:
        sys.stderr.write(f"h2h: {error}\n")
        sys.exit(error.exit_code)
