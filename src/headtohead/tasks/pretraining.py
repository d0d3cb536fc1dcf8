"""Pre-training: initialize a classifier's encoder from a masked language model."""

from __future__ import annotations

from pathlib import Path

import torch

from headtohead.cache_folders import get_cache_folder, lock_cache_folder
from headtohead.config.experiment import Trial
from headtohead.config.tables.model import PretrainingConfig, TransformerConfig
from headtohead.distillation.teacher import RunTrial
from headtohead.errors import ModelError
from headtohead.experiment.provenance.run_identity import compute_run_identity
from headtohead.nn.transformer import Transformer
from headtohead.progress import ProgressCallback, ProgressUpdate, ignore_progress
from headtohead.saved_models import model_io
from headtohead.tasks.dataset import Dataset
from headtohead.training.training_progress import TrainingProgress

HEAD_TENSOR_PREFIXES = ("output.", "pool.", "classifier.")
"""name prefixes of head tensors, which are not copied into a classifier"""


def build_pretraining_trial(trial: Trial) -> Trial:
    """Return the masked-lm trial that trains a classifier's encoder on the same rows, without their labels."""
    assert isinstance(trial.model, TransformerConfig)
    pretraining = trial.model.init_from
    assert isinstance(pretraining, PretrainingConfig)
    training = (pretraining.training or trial.training).model_copy(update={"masking": pretraining.masking})
    return Trial(
        task="masked-lm",
        variant="encoder",
        seed=pretraining.seed,
        data=trial.data.model_copy(update={"rows": "labelled"}),
        model=trial.model.model_copy(update={"init_from": None}),
        training=training,
        plugins=trial.plugins,
    )


def train_encoder(
    trial: Trial, corpus_digest: str, run_trial: RunTrial, on_progress: ProgressCallback = ignore_progress
) -> Path:
    """Return the run folder of a classifier's pre-trained encoder, training the encoder unless it is cached."""
    encoder_trial = build_pretraining_trial(trial)
    folder = get_cache_folder("encoders") / compute_run_identity(encoder_trial, corpus_digest)
    with lock_cache_folder(folder):
        if not (folder / "result.json").is_file():

            def report_progress(progress: TrainingProgress) -> None:
                on_progress(
                    ProgressUpdate(
                        "pre-training the encoder", progress.step, progress.total_steps, progress.seconds_left
                    )
                )

            run_trial(encoder_trial, folder, on_progress=report_progress)
    return folder


def load_encoder(model: Transformer, trial: Trial, dataset: Dataset, run_trial: RunTrial) -> None:
    """Copy pre-trained encoder weights, which model.init_from names, into a classifier, except for the head."""
    assert isinstance(trial.model, TransformerConfig)
    init_from = trial.model.init_from
    if init_from is None:
        return
    folder = Path(init_from) if isinstance(init_from, str) else train_encoder(trial, dataset.corpus.digest, run_trial)
    encoder = model_io.load_saved_model(folder)
    if encoder.tokenizer != dataset.tokenizer:
        raise ModelError(f"model.init_from: {encoder.name} was trained with a different vocabulary")
    encoder_weights = {name: tensor for name, tensor in encoder.model.state_dict().items() if not is_head_tensor(name)}
    model_weights = {name: tensor for name, tensor in model.state_dict().items() if not is_head_tensor(name)}
    mismatched_names = [
        name
        for name in {**model_weights, **encoder_weights}
        if _get_shape(model_weights, name) != _get_shape(encoder_weights, name)
    ]
    if mismatched_names:
        raise ModelError(
            f"model.init_from: {encoder.name} has a different architecture: tensor {mismatched_names[0]} has shape "
            f"{_get_shape(encoder_weights, mismatched_names[0])}, "
            f"expected {_get_shape(model_weights, mismatched_names[0])}"
        )
    model.load_state_dict(encoder_weights, strict=False)


def is_head_tensor(name: str) -> bool:
    """Return whether a tensor belongs to the head of a classifier or of a masked language model."""
    return name.startswith(HEAD_TENSOR_PREFIXES)


def _get_shape(tensors: dict[str, torch.Tensor], name: str) -> tuple[int, ...] | None:
    return tuple(tensors[name].shape) if name in tensors else None
