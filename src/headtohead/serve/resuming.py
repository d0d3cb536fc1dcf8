"""A training that goes on: `python -m headtohead.serve.resuming RUNS/NAME [SEEDS]`.

All that it needs lies in the experiment's folder, so it does not matter from which file and where it was started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ..errors import HeadToHeadError, TrialError


def main(folder: Path, seeds: int | None) -> None:
    from .. import parts
    from ..lab import searching
    from ..lab.folders import open_runs
    from ..report import write

    runs = open_runs(folder)
    experiment, command = runs.experiment, list(runs.about["command"])
    for file in experiment.use:
        parts.use(file)
    if seeds is not None:
        experiment = experiment.model_copy(update={"seeds": seeds})
        command += ["--seeds", str(seeds)]
    outcome = searching.run(experiment, folder, resume=True, command=command)
    if outcome.findings is not None:
        write(folder, ["html"])
    if outcome.failures:
        raise TrialError("; ".join(f"{j.trial.variant}, seed {j.trial.seed}: {j.message}" for j in outcome.failures))


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
