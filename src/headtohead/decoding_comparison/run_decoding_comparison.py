"""Compare one model's decoding strategies on many prompts, and write the results to a folder.

FOLDER/
  samples.jsonl     every continuation, appended as it is generated; its key is a hash of everything that the text
                    depends on: weights, strategy, prompt, sample index, seed and maximum length
  scores.jsonl      the loss of the second model on each text, with a hash of its weights and the text as key
  decoding.json     estimates, intervals, tests, the sweep, limit checks and token-by-token traces
  report.html       the page, rendered from these files by `decoding_comparison.page`

With `resume`, only missing samples and scores are computed, so an interrupted comparison loses no finished work.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from headtohead.decoding_comparison.prompts import read_prompts
from headtohead.decoding_comparison.request import DecodingRequest
from headtohead.decoding_comparison.results import RESULTS_FILE, DecodingResults
from headtohead.decoding_comparison.sample_store import SAMPLES_FILE
from headtohead.decoding_comparison.sampling_job import SamplingJob
from headtohead.errors import RequestError, RunFolderError
from headtohead.experiment.provenance.environment import collect_versions
from headtohead.experiment.run_folder import lock_folder
from headtohead.experiment.schemas import write_record
from headtohead.generation.prompt_encoding import encode_prompt
from headtohead.generation.strategy_parsing import DEFAULT_STRATEGIES, parse_strategies
from headtohead.progress import ProgressCallback, ProgressUpdate, ignore_progress
from headtohead.saved_models.fingerprint import load_fingerprinted_model
from headtohead.text_metrics import ngram_metrics


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
    on_progress: ProgressCallback = ignore_progress,
    command: Sequence[str] = (),
) -> DecodingResults:
    """Compare decoding strategies and return the results, which are also written to `folder`/decoding.json.

    Args:
        model: Run folder or name of the model that generates the texts.
        prompts: A text, a file or a folder, as `read_prompts` accepts it.
        folder: Output folder. It must be empty or missing, unless `resume` is set.
        strategies: Comma-separated strategies, as `parse_strategies` accepts them.
        num_samples: Continuations of each prompt.
        scoring_model: A second model that scores the generated texts.
        sweep: Also compute the metrics along temperature, k and p.
        resume: Continue in a folder that already contains a decoding comparison.
        on_progress: Receives progress updates.
        command: The command to record; `sys.argv` by default.
    """
    ngram_metrics.check_sacrebleu_installed()
    request = DecodingRequest(
        parse_strategies(strategies), read_prompts(prompts, max_prompts), num_samples, max_new_tokens, seed, sweep
    )
    for option, number in (("samples", num_samples), ("max_new_tokens", max_new_tokens)):
        if number < 1:
            raise RequestError(f"{option} must be at least 1, not {number!r}")
    folder_existed = folder.exists()
    _check_output_folder(folder, resume=resume)
    on_progress(ProgressUpdate("opening the model", 0, 0))
    generator = load_fingerprinted_model(model)
    scorer = None if scoring_model is None else load_fingerprinted_model(scoring_model)
    for prompt in request.prompts:  # fail early: models without a start token reject an empty prompt
        encode_prompt(generator.tokenizer, prompt.text)
    with lock_folder(folder):
        try:
            program, *arguments = command or sys.argv
            recorded_command = [Path(program).name, *arguments]  # without the local installation path
            sampling_job = SamplingJob(generator, scorer, request, folder, on_progress)
            results = sampling_job.run(command=recorded_command, versions=collect_versions())
            write_record(folder / RESULTS_FILE, results)
        except BaseException:
            if not folder_existed and not any(folder.iterdir()):
                folder.rmdir()
            raise
    return results


def _check_output_folder(folder: Path, *, resume: bool) -> None:
    """Raise `RunFolderError` if the folder cannot receive the results of a decoding comparison."""
    if (folder / SAMPLES_FILE).is_file():
        if not resume:
            raise RunFolderError(
                f"{folder} already contains a comparison; continue it with --resume, or choose another --out"
            )
    elif folder.is_dir() and any(folder.iterdir()):
        raise RunFolderError(f"{folder} is not empty and is not a comparison's folder; choose another --out")
    elif folder.is_file():
        raise RunFolderError(f"{folder}: is a file; --out names a folder")
