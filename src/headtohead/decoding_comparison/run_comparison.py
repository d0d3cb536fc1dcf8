"""The comparison of strategies on one model and many prompts, from the models' doors to a folder on disk.

FOLDER/
  samples.jsonl     every continuation, written as it is made; a line is found again by its key, a hash of all that the
                    text depends on (weights, strategy, prompt, number of the sample, seed, length)
  scores.jsonl      what a second model thinks of them, by a key of weights and text
  decoding.json     the figures, intervals, tests, sweep, laws and token-by-token accounts
  report.html       the page, made from these files by headtohead.report

With `resume` only what is missing is written; nothing is lost when it is stopped in between.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headtohead.atomic_io import write_json
from headtohead.decoding_comparison.prompts import read_prompts
from headtohead.decoding_comparison.request import Asked, open_writer
from headtohead.decoding_comparison.sampling_job import SAMPLES, Watch, Work
from headtohead.errors import RequestError, RunFolderError
from headtohead.experiment.run_folder import locked
from headtohead.experiment.trial import versions
from headtohead.generation.detokenizer import prompt_ids
from headtohead.generation.strategy_parsing import STRATEGIES, read_strategies
from headtohead.text_metrics import diversity

FILE = "decoding.json"


def run(
    model: str,
    prompts: str,
    out: Path,
    *,
    strategies: str = STRATEGIES,
    samples: int = 10,
    max_new_tokens: int = 20,
    second: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    sweep: bool = True,
    resume: bool = False,
    watch: Watch = lambda what, done, of: None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Compare the strategies and leave the folder `out`; what was found is also in its decoding.json."""
    diversity.check_scorers()
    asked = Asked(read_strategies(strategies), read_prompts(prompts, limit), samples, max_new_tokens, seed, sweep)
    for name, value in (("samples", samples), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise RequestError(f"{name} is a whole number, at least 1, not {value!r}")
    existed = out.exists()
    _check_folder(out, resume=resume)
    watch("opening the model", 0, 0)
    writer = open_writer(model)
    judge = None if second is None else open_writer(second)
    for prompt in asked.prompts:
        prompt_ids(writer.tokenizer, prompt.text)  # an empty one may be no prompt for this model
    with locked(out):
        try:
            work = Work(writer, judge, asked, out, watch)
            called = list(command or sys.argv)
            called[:1] = [Path(one).name for one in called[:1]]  # where it is installed is nobody's business
            found = {"command": called, "versions": versions(), **work.found()}
            write_json(out / FILE, found)
        except BaseException:
            if not existed and not any(out.iterdir()):
                out.rmdir()
            raise
    return found


def _check_folder(out: Path, *, resume: bool) -> None:
    if (out / SAMPLES).is_file():
        if not resume:
            raise RunFolderError(f"{out}: strategies have been compared here; --resume goes on, or give another --out")
    elif out.is_dir() and any(out.iterdir()):
        raise RunFolderError(f"{out}: is not empty and holds no comparison; give another --out")
    elif out.is_file():
        raise RunFolderError(f"{out}: is a file; --out names a folder")
