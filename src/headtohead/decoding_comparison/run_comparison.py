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
from headtohead.decoding_comparison.request import DecodingRequest
from headtohead.decoding_comparison.sampling_job import SAMPLES_FILE, DecodingComparison, PhaseProgressCallback
from headtohead.errors import RequestError, RunFolderError
from headtohead.experiment.open_model import load_fingerprinted_model
from headtohead.experiment.run_folder import lock_folder
from headtohead.experiment.versions import collect_versions
from headtohead.generation.detokenizer import encode_prompt
from headtohead.generation.strategy_parsing import DEFAULT_STRATEGIES, parse_strategies
from headtohead.text_metrics import diversity

RESULTS_FILE = "decoding.json"


def run_decoding_comparison(
    model: str,
    prompts: str,
    folder: Path,
    *,
    strategies: str = DEFAULT_STRATEGIES,
    num_samples: int = 10,
    max_new_tokens: int = 20,
    scoring_model: str | None = None,
    max_prompts: int | None = None,
    seed: int = 0,
    sweep: bool = True,
    resume: bool = False,
    on_progress: PhaseProgressCallback = lambda what, done, of: None,
    command: Sequence[str] = (),
) -> dict[str, Any]:
    """Compare the strategies and leave the folder `out`; what was found is also in its decoding.json."""
    diversity.check_sacrebleu_installed()
    asked = DecodingRequest(
        parse_strategies(strategies), read_prompts(prompts, max_prompts), num_samples, max_new_tokens, seed, sweep
    )
    for name, value in (("samples", num_samples), ("max_new_tokens", max_new_tokens)):
        if value < 1:
            raise RequestError(f"{name} is a whole number, at least 1, not {value!r}")
    existed = folder.exists()
    _check_output_folder(folder, resume=resume)
    on_progress("opening the model", 0, 0)
    writer = load_fingerprinted_model(model)
    judge = None if scoring_model is None else load_fingerprinted_model(scoring_model)
    for prompt in asked.prompts:
        encode_prompt(writer.tokenizer, prompt.text)  # an empty one may be no prompt for this model
    with lock_folder(folder):
        try:
            work = DecodingComparison(writer, judge, asked, folder, on_progress)
            called = list(command or sys.argv)
            called[:1] = [Path(one).name for one in called[:1]]  # where it is installed is nobody's business
            found = {"command": called, "versions": collect_versions(), **work.found()}
            write_json(folder / RESULTS_FILE, found)
        except BaseException:
            if not existed and not any(folder.iterdir()):
                folder.rmdir()
            raise
    return found


def _check_output_folder(folder: Path, *, resume: bool) -> None:
    if (folder / SAMPLES_FILE).is_file():
        if not resume:
            raise RunFolderError(
                f"{folder}: strategies have been compared here; --resume goes on, or give another --out"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise RunFolderError(f"{folder}: is not empty and holds no comparison; give another --out")
    elif folder.is_file():
        raise RunFolderError(f"{folder}: is a file; --out names a folder")
