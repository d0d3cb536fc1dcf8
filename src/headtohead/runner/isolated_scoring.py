"""Score rows with a saved model in a separate process that receives one token at a time.

The scoring audits run in the model's own process and trust its code to behave the same with and without them. Here the
model predicts each token before it receives it, from a copy of its weights and code in an empty folder, without this
process's environment variables. This process checks that the answers are probabilities and computes the losses itself.
"""

from __future__ import annotations

import base64
import json
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from headtohead.atomic_io import compute_sha256, read_json_object, write_text
from headtohead.data.batches import IGNORE_INDEX
from headtohead.errors import ModelError
from headtohead.experiment import trust
from headtohead.experiment.run_folder import WEIGHT_FILES, Run
from headtohead.json_channel import SINGLE_THREAD_ENVIRONMENT, ChildProcess
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.loop import EVALUATION_BATCH_SIZE

NUM_ROWS = 8
"""rows per run; every token needs a forward pass"""
TOLERANCE = 1e-3
"""largest difference from the recorded loss, in nats per prediction"""
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", *WEIGHT_FILES)
CHILD_MODULE = "headtohead.runner.isolated_model"

TokenIds = Sequence[int]


def compare_isolated(run: Run) -> str:
    """Return how the recorded losses of random test rows differ from those computed by an isolated process.

    Return an empty string if they agree, or if the model is not causal.
    """
    trial = run.trial
    if not trial.spec.target.is_causal:
        return ""
    task, dataset = get_task(trial.task), prepare_dataset(trial.data, trial.task)
    split = next(split.name for split in dataset.corpus.get_test_splits())
    examples = task.build_split_examples(trial, dataset, split)
    recorded = torch.as_tensor(run.scores[f"{split}.losses"])
    if len(recorded) != examples.count:
        recorded = examples.sum_by_example(recorded)
    unsegmented = replace(examples, has_segments=False)
    sampled_indices = {*random.SystemRandom().sample(range(examples.count), min(NUM_ROWS, examples.count))}
    with isolate_model(run.folder) as child:
        for batch in unsegmented.batches(EVALUATION_BATCH_SIZE):
            indices = range(len(batch.input_ids)) if batch.example_indices is None else batch.example_indices.tolist()
            for row, index in enumerate(indices):
                if index not in sampled_indices:
                    continue
                loss, count = score_row(child, batch.input_ids[row].tolist(), batch.labels[row].tolist())
                if not abs(loss - float(recorded[index])) <= TOLERANCE * max(1, count):
                    return (
                        f"{split}, example {index}: loss is {float(recorded[index]):.6g} in the file and {loss:.6g} if "
                        "each token is predicted before the model receives it"
                    )
    return ""


def score_row(child: ChildProcess, input_ids: TokenIds, labels: TokenIds) -> tuple[float, int]:
    """Return the summed loss over a row's labels, and the label count. Tokens after the last label are not sent."""
    last = max((position for position, label in enumerate(labels) if label != IGNORE_INDEX), default=-1)
    loss, count = 0.0, 0
    for position in range(last + 1):
        log_probs = _predict(child, input_ids[position], starts_text=position == 0)
        if labels[position] != IGNORE_INDEX:
            loss, count = loss - float(log_probs[labels[position]]), count + 1
    return loss, count


def _predict(child: ChildProcess, token_id: int, *, starts_text: bool) -> NDArray[np.float64]:
    """Ask the isolated process for the next token; return its log-probabilities, (vocab,).

    Raise ModelError if they are not a probability distribution.
    """
    child.request({"token": token_id, "starts_text": starts_text})
    answer = next(child.messages(), None)
    if answer is None:
        raise ModelError(f"the isolated process {child.exit_reason}")
    log_probs = np.frombuffer(base64.b64decode(answer["log_probs"]), np.float32).astype(np.float64)
    if not abs(np.exp(log_probs).sum() - 1) < 1e-3:
        raise ModelError("the answers of the isolated process are not probabilities: they do not sum to 1")
    return log_probs


@contextmanager
def isolate_model(run_folder: Path) -> Iterator[ChildProcess]:
    """Start the child process with a copy of a run's weights and code, and terminate it afterwards.

    As with every use of the model, its code must be trusted. The copy contains no path to the corpus.
    """
    with tempfile.TemporaryDirectory() as scratch:
        copy, cache = Path(scratch) / "model", Path(scratch) / "cache"
        copy.mkdir()
        for name in MODEL_FILES:
            if (run_folder / name).is_file():
                shutil.copyfile(run_folder / name, copy / name)
        write_text(copy / "config.json", json.dumps(_hide_sources(read_json_object(run_folder / "config.json"))))
        code = run_folder / trust.CUSTOM_CODE_FOLDER
        files = sorted(code.rglob("*.py")) if code.is_dir() else []
        trust.check_trusted(run_folder, files)
        for file in files:
            (copy / file.relative_to(run_folder)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy / file.relative_to(run_folder))
            (cache / "headtohead" / "allowed").mkdir(parents=True, exist_ok=True)
            write_text(cache / "headtohead" / "allowed" / compute_sha256(file), "")
        package_root = str(Path(__file__).parents[2])
        environment = {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": package_root, **SINGLE_THREAD_ENVIRONMENT}
        child = ChildProcess(
            CHILD_MODULE, str(copy), environment=environment, log_path=Path(scratch) / "log", clean_folder=copy
        )
        try:
            yield child
        finally:
            child.terminate()
            child.close_pipes()


def _hide_sources(value: Any) -> Any:
    """Return a JSON value with the corpus paths removed."""
    if isinstance(value, dict):
        return {key: "sotu" if key == "source" else _hide_sources(item) for key, item in value.items()}
    return [_hide_sources(item) for item in value] if isinstance(value, list) else value
