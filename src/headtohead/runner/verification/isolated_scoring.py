"""Score test examples with a saved model in a separate process that receives one token at a time.

The scoring audits run in the same process as the model and assume that its code behaves the same during audits. Here,
the model predicts each token before it receives it, from a copy of its weights and code in an empty folder, without the
environment variables of this process. This process checks that the outputs are probabilities and computes the losses.
"""

from __future__ import annotations

import base64
import copy
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

from headtohead.atomic_io import compute_sha256, write_text
from headtohead.child_process import SINGLE_THREAD_ENVIRONMENT, ChildProcess
from headtohead.data.batches import IGNORE_INDEX
from headtohead.errors import ModelError
from headtohead.experiment import trust
from headtohead.experiment.run_folder import WEIGHT_FILES, Run
from headtohead.json_files import read_json_object
from headtohead.saved_models.model_io import CONFIG_KEY
from headtohead.tasks.registry import get_task, prepare_dataset
from headtohead.training.loop import EVALUATION_BATCH_SIZE

NUM_SAMPLED_EXAMPLES = 8
"""examples per run; every token needs a forward pass"""
LOSS_TOLERANCE = 1e-3
"""largest difference from the recorded loss, in nats per prediction"""
PROBABILITY_TOLERANCE = 1e-3
"""largest difference of the sum of probabilities from 1"""
MODEL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", *WEIGHT_FILES)
CHILD_MODULE = "headtohead.runner.verification.isolated_model"

TokenIds = Sequence[int]


def compare_isolated_losses(run: Run) -> str:
    """Compare the recorded losses of random test examples with losses computed by an isolated process.

    The model must be causal. Return a description of the first difference, or an empty string if the losses agree.
    """
    trial = run.trial
    task, dataset = get_task(trial.task), prepare_dataset(trial.data, trial.task)
    split = next(split.name for split in dataset.corpus.get_test_splits())
    examples = task.build_split_examples(trial, dataset, split)
    recorded_losses = torch.as_tensor(run.scores[f"{split}.losses"])
    if len(recorded_losses) != examples.num_examples:
        recorded_losses = examples.sum_scores_by_example(recorded_losses)
    # The recorded losses are sums over examples, so segments of a stream need no separate scores.
    unsegmented_examples = replace(examples, has_segments=False)
    sampled_indices = {
        *random.SystemRandom().sample(range(examples.num_examples), min(NUM_SAMPLED_EXAMPLES, examples.num_examples))
    }
    with run_scoring_process(run.folder) as child:
        for batch in unsegmented_examples.iter_batches(EVALUATION_BATCH_SIZE):
            example_indices = (
                range(len(batch.input_ids)) if batch.example_indices is None else batch.example_indices.tolist()
            )
            for batch_index, index in enumerate(example_indices):
                if index not in sampled_indices:
                    continue
                input_ids, labels = batch.input_ids[batch_index].tolist(), batch.labels[batch_index].tolist()
                loss, num_predictions = score_sequence(child, input_ids, labels)
                if not abs(loss - float(recorded_losses[index])) <= LOSS_TOLERANCE * max(1, num_predictions):
                    return (
                        f"{split}, example {index}: loss is {float(recorded_losses[index]):.6g} in the file and "
                        f"{loss:.6g} if each token is predicted before the model receives it"
                    )
    return ""


def score_sequence(child: ChildProcess, input_ids: TokenIds, labels: TokenIds) -> tuple[float, int]:
    """Return the isolated model's summed loss over the labels of a sequence, and the number of labels.

    Tokens after the last label are not sent.
    """
    last_label_position = max((position for position, label in enumerate(labels) if label != IGNORE_INDEX), default=-1)
    loss, num_predictions = 0.0, 0
    for position in range(last_label_position + 1):
        log_probs = _request_log_probs(child, input_ids[position], starts_text=position == 0)
        if labels[position] != IGNORE_INDEX:
            loss, num_predictions = loss - float(log_probs[labels[position]]), num_predictions + 1
    return loss, num_predictions


def _request_log_probs(child: ChildProcess, token_id: int, *, starts_text: bool) -> NDArray[np.float64]:
    """Return the log-probabilities of the next token, (vocab_size,), from the isolated process.

    Raises:
        ModelError: If they are not a probability distribution.
    """
    child.request({"token": token_id, "starts_text": starts_text})
    response = next(child.iter_messages(), None)
    if response is None:
        raise ModelError(f"the isolated process {child.exit_reason}")
    log_probs = np.frombuffer(base64.b64decode(response["log_probs"]), np.float32).astype(np.float64)
    if not abs(np.exp(log_probs).sum() - 1) < PROBABILITY_TOLERANCE:
        raise ModelError("the isolated process returned invalid probabilities: they do not sum to 1")
    return log_probs


@contextmanager
def run_scoring_process(run_folder: Path) -> Iterator[ChildProcess]:
    """Start the isolated process to score with, on a copy of a run's weights and code; terminate it on exit.

    The code must be trusted, as for every use of the model. The copied settings do not identify the corpus.
    """
    with tempfile.TemporaryDirectory() as scratch:
        model_folder, cache_folder = Path(scratch) / "model", Path(scratch) / "cache"
        model_folder.mkdir()
        for name in MODEL_FILES:
            if (run_folder / name).is_file():
                shutil.copyfile(run_folder / name, model_folder / name)
        config = remove_corpus_settings(read_json_object(run_folder / "config.json"))
        write_text(model_folder / "config.json", json.dumps(config))
        code_folder = run_folder / trust.CUSTOM_CODE_FOLDER
        code_files = sorted(code_folder.rglob("*.py")) if code_folder.is_dir() else []
        trust.check_trusted(run_folder, code_files)
        for file in code_files:
            copied_file = model_folder / file.relative_to(run_folder)
            copied_file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copied_file)
            (cache_folder / "headtohead" / "allowed").mkdir(parents=True, exist_ok=True)
            write_text(cache_folder / "headtohead" / "allowed" / compute_sha256(file), "")
        package_root = str(Path(__file__).parents[2])
        environment = {"XDG_CACHE_HOME": str(cache_folder), "PYTHONPATH": package_root, **SINGLE_THREAD_ENVIRONMENT}
        child = ChildProcess(
            CHILD_MODULE,
            str(model_folder),
            environment=environment,
            log_path=Path(scratch) / "log",
            clean_folder=model_folder,
        )
        try:
            yield child
        finally:
            child.terminate()
            child.close_pipes()


def remove_corpus_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a run's config.json from which the isolated process cannot find the corpus.

    The settings of the corpus, the teacher and a pre-trained encoder are removed.
    """
    config = copy.deepcopy(config)
    trial = config.get(CONFIG_KEY, config)["trial"]
    trial |= {"data": {}, "teacher": None}
    if "init_from" in trial["model"]:
        trial["model"]["init_from"] = None
    return config
