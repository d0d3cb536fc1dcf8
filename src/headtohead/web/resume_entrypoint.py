"""The program of a process that resumes an experiment, which needs only the experiment's folder:

python -m headtohead.web.resume_entrypoint RUNS/NAME [SEEDS]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headtohead.errors import HeadToHeadError, TrialError


def resume_experiment(experiment_folder: Path, num_seeds: int | None) -> None:
    """Train an experiment's unfinished trials in this process, optionally with more seeds, and write its report."""
    from headtohead.experiment import trust
    from headtohead.experiment.run_folder import open_experiment_runs
    from headtohead.nn.parts import registry
    from headtohead.report import write
    from headtohead.runner.run_experiment import run_experiment

    runs = open_experiment_runs(experiment_folder)
    experiment, command = runs.experiment, list(runs.metadata.command)
    trust.check_experiment_is_trusted(experiment_folder)
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
    folder, *seed_arguments = sys.argv[1:]
    try:
        resume_experiment(Path(folder), int(seed_arguments[0]) if seed_arguments else None)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; finished work is kept\n")
        sys.exit(130)
    except HeadToHeadError as error:
        sys.stderr.write(f"h2h: {error}\n")
        sys.exit(error.exit_code)
