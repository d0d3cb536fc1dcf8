"""Started by torchrun: trains the trials of a JSON file with all processes together. See test_together.py."""

import json
import os
import sys
from pathlib import Path

from headtohead import spec
from headtohead.lab import together
from headtohead.lab.trial import run_trial
from headtohead.train.distributed import join, leave
from headtohead.train.loop import Progress


class HaltError(Exception):
    """Ends a training in the middle, on all processes at once."""


def main() -> None:
    ranks = join(*together.place(os.environ))
    for asked in json.loads(Path(sys.argv[1]).read_text()):

        def tell(progress: Progress, stop: int = asked["stop"]) -> None:
            if progress.step == stop:
                raise HaltError

        try:
            run_trial(spec.Trial.model_validate(asked["trial"]), Path(asked["folder"]), tell=tell, ranks=ranks)
        except HaltError:
            pass
    leave()


main()
