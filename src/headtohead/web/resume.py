"""Resume an experiment from its folder alone: `python -m headtohead.web.resume RUNS/NAME [SEEDS]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headtohead.errors import HeadToHeadError, TrialError


def main(experiment_folder: Path, num_seeds: int | None) -> None:
    """Resume an experiment, optionally with more seeds, and write its report."""
    from headtohead.experiment import trust
    from headtohead.experiment.run_folder import open_runs
    from headtohead.nn.parts import registry
    from headtohead.report import write
    from headtohead.runner.run_experiment import run_experiment

    runs = open_runs(experiment_folder)
    experiment, command = runs.experiment, list(runs.metadata.command)
    trust.check_experiment_trusted(experiment_folder)
    for file in experiment.plugins:
        registry.load_plugin(file)
    if num_seeds is not None:
        experiment = experiment.model_copy(update={"seeds": num_seeds})
        command += ["--seeds", str(num_seeds)]
    outcome = run_experiment(experiment, experiment_folder, resume=True, command=command)
    if outcome.findings is not None:
        write(experiment_folder, ["html"])
    if outcome.failed_jobs:
        raise TrialError(outcome.failure_message)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder, *num_seeds = sys.argv[1:]
    try:
        main(Path(folder), int(num_seeds[0]) if num_seeds else None)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; finished work is kept\n")
        sys.exit(130)
    except HeadToHeadError as error:
        sys.stderr.write(f"h2h: {error}\n")
        sys.exit(error.exit_code)
