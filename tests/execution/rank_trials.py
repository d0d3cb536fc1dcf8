"""Script started by torchrun: trains the trials of a JSON file on all processes. See test_torchrun.py."""

import json
import os
import sys
from pathlib import Path

from headtohead.config import experiment
from headtohead.execution import torchrun
from headtohead.training.parallel.data_parallel import join_process_group, leave_process_group
from headtohead.training.training_progress import TrainingProgress
from headtohead.trials.trial import run_trial


class HaltError(Exception):
    """Raised on all processes at once to interrupt training."""


def main() -> None:
    ranks = join_process_group(*torchrun.read_ranks(os.environ))
    for request in json.loads(Path(sys.argv[1]).read_text()):

        def halt_at_step(progress: TrainingProgress, stop_step: int = request["stop_step"]) -> None:
            if progress.step == stop_step:
                raise HaltError

        try:
            run_trial(
                experiment.Trial.model_validate(request["trial"]),
                Path(request["folder"]),
                on_progress=halt_at_step,
                ranks=ranks,
            )
        except HaltError:
            pass
    leave_process_group()


main()
