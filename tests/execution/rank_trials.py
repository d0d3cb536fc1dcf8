"""Started by torchrun: trains the trials of a JSON file with all processes together. See test_together.py."""

import json
import os
import sys
from pathlib import Path

from headtohead.config import experiment
from headtohead.execution import torchrun
from headtohead.training.distributed import join_process_group, leave_process_group
from headtohead.training.loop import TrainingProgress
from headtohead.trials.trial import run_trial


class HaltError(Exception):
    """Ends a training in the middle, on all processes at once."""


def main() -> None:
    ranks = join_process_group(*torchrun.read_ranks(os.environ))
    for asked in json.loads(Path(sys.argv[1]).read_text()):

        def tell(progress: TrainingProgress, stop: int = asked["stop"]) -> None:
            if progress.step == stop:
                raise HaltError

        try:
            run_trial(
                experiment.Trial.model_validate(asked["trial"]), Path(asked["folder"]), on_progress=tell, ranks=ranks
            )
        except HaltError:
            pass
    leave_process_group()


main()
