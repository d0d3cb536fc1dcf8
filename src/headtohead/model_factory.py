"""Build any model that an experiment file describes: a transformer of parts, a custom network or a pretrained model."""

from pathlib import Path

import psutil
import torch
from torch import Tensor

from headtohead.config import model as config_model
from headtohead.config import pretrained
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.init import init_parameters
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
    """The model of this spec at step 0 of this seed. `base` is where a file of the user's own is looked for;
    `frequencies`, how often train shows each word, is where an output bias may start (without it, as all others do)."""
    if isinstance(model, pretrained.PretrainedModelConfig):
        return (
            layer_dropping.build_student(model)
            if num_classes is None
            else classifier.build_classifier(model, num_classes, seed=seed)
        )
    _check_memory(model, vocab_size)
    if isinstance(model, config_model.CustomModelConfig):
        with fork_seeded_rng(seed, "initial"):
            return CustomModel(model, vocab_size, num_classes, base_folder=base_folder)
    with fork_seeded_rng(seed, "initial"):
        built = Transformer(model, vocab_size, num_classes, is_causal=is_causal)
    init_parameters(built, seed)
    _scale_embeddings(built)
    if num_classes is None:
        _init_output_layer(built, token_counts)
    return built


def _check_memory(model: config_model.TransformerConfig | config_model.CustomModelConfig, vocab_size: int) -> None:
    """An error where not even the words' vectors and the layers' projections would fit into memory. On the meta device
    nothing is kept."""
    if isinstance(model, config_model.CustomModelConfig) or torch.empty(0).device.type == "meta":
        return
    projections = 4 * model.width * model.heads * model.resolved_head_dim
    needed = BYTES_PER_PARAMETER * (vocab_size * model.width + model.layers * projections)
    free = psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"no room for a model of width {model.width:,}, {model.layers:,} layers and {vocab_size:,} words in memory: it "  # noqa: E501
            f"needs at least {needed / 2**30:.1f} GB, and {free / 2**30:.1f} GB are free"
        )


@torch.no_grad()
def _scale_embeddings(model: Transformer) -> None:
    """torch draws words' vectors with a standard deviation of 1; the spec may want less."""
    model.embedding.weight.mul_(model.model_config.embedding_start)


@torch.no_grad()
def _init_output_layer(model: Transformer, token_counts: Tensor | None) -> None:
    """The output layer as the spec wants it at step 0: what is not drawn at random."""
    if model.model_config.output_start == "zero":
        model.output.weight.zero_()
    if model.model_config.output_bias == "frequencies" and token_counts is not None:
        # Half a showing for a word that was never shown, so that its logarithm exists.
        shown = token_counts.double().clamp_min(0.5)
        model.output.bias.copy_((shown / shown.sum()).log())
