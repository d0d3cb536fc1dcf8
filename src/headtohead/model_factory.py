"""Build the model that an experiment file describes: a transformer of parts, a custom model or a pretrained one."""

from pathlib import Path

import psutil
import torch
from torch import Tensor

from headtohead.config import model as config_model
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.init import WriteRecorder, init_parameters
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, layer_dropping
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.layer_dropping import StudentModel

BYTES_PER_PARAMETER = 4


def build_model(
    model: config_model.ModelConfig,
    vocab_size: int,
    num_classes: int | None = None,
    *,
    is_causal: bool | None = None,
    seed: int = 0,
    base_folder: Path = Path("."),
    token_counts: Tensor | None = None,
) -> Transformer | CustomModel | EncoderClassifier | StudentModel:
    """Build a model with its initial weights.

    Args:
        model: Settings of the model.
        vocab_size: Size of the vocabulary.
        num_classes: Number of classes, for classifiers.
        is_causal: Whether the model is a decoder; by default, models without classes are.
        seed: Seed of the initial weights.
        base_folder: Folder that the files of custom models are relative to.
        token_counts: Token counts of the training data, which initialise the bias of the output layer with
            `output_bias = "frequencies"`.
    """
    if isinstance(model, config_model.PretrainedModelConfig):
        if num_classes is None:
            return layer_dropping.build_student(model)
        return classifier.build_classifier(model, num_classes, seed=seed)
    _check_memory(model, vocab_size)
    if isinstance(model, config_model.CustomModelConfig):
        with fork_seeded_rng(seed, "initial"):
            return CustomModel(model, vocab_size, num_classes, base_folder=base_folder)
    with fork_seeded_rng(seed, "initial"), WriteRecorder() as construction:
        transformer = Transformer(model, vocab_size, num_classes, is_causal=is_causal)
    init_parameters(transformer, seed, construction)
    _scale_embeddings(transformer)
    if num_classes is None:
        _init_output_layer(transformer, token_counts)
    return transformer


def _check_memory(model: config_model.TransformerConfig | config_model.CustomModelConfig, vocab_size: int) -> None:
    """Raise ModelError if not even embeddings and projections fit into free memory. Skipped on the meta device."""
    if isinstance(model, config_model.CustomModelConfig) or torch.empty(0).device.type == "meta":
        return
    projections = 4 * model.width * model.heads * model.resolved_head_dim
    needed = BYTES_PER_PARAMETER * (vocab_size * model.width + model.layers * projections)
    free = psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"not enough memory for {model.layers:,} layers of width {model.width:,} and vocabulary of {vocab_size:,}: "
            f"at least {needed / 2**30:.1f} GB needed, {free / 2**30:.1f} GB free"
        )


@torch.no_grad()
def _scale_embeddings(model: Transformer) -> None:
    """Scale the token embeddings, which PyTorch initialises with standard deviation 1, to `embedding_init_std`."""
    model.embedding.weight.mul_(model.model_config.resolved_embedding_init_std)


@torch.no_grad()
def _init_output_layer(model: Transformer, token_counts: Tensor | None) -> None:
    """Apply `output_init` and `output_bias` to the output layer."""
    if model.model_config.output_init == "zero":
        model.output.weight.zero_()
    if model.model_config.output_bias == "frequencies" and token_counts is not None:
        counts = token_counts.double().clamp_min(0.5)  # the logarithm must be finite for tokens that never occur
        model.output.bias.copy_((counts / counts.sum()).log())
