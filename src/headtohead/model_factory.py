"""Build the model that an experiment file describes: a transformer of parts, a custom model or a pretrained one."""

from pathlib import Path

import psutil
import torch
from torch import Tensor

from headtohead.config.tables.model import CustomModelConfig, ModelConfig, PretrainedModelConfig, TransformerConfig
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.nn.seeded_init import WriteRecorder
from headtohead.nn.transformer import Transformer
from headtohead.pretrained import classifier, student_model
from headtohead.pretrained.classifier import EncoderClassifier
from headtohead.pretrained.student_model import StudentModel

BYTES_PER_PARAMETER = 4


def build_model(
    model_config: ModelConfig,
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
        model_config: The table `[model]` of an experiment file.
        vocab_size: Size of the vocabulary.
        num_classes: Number of classes, for classifiers.
        is_causal: Whether the model is a decoder; by default, models without classes are.
        seed: Seed of the initial weights.
        base_folder: Folder that the files of custom models are relative to.
        token_counts: Token counts of the training data, which initialize the bias of the output layer with
            `output.bias = "frequencies"`.
    """
    if isinstance(model_config, PretrainedModelConfig):
        if num_classes is None:
            return student_model.build_student(model_config)
        return classifier.build_classifier(model_config, num_classes, seed=seed)
    _check_weights_fit_memory(model_config, vocab_size)
    if isinstance(model_config, CustomModelConfig):
        with fork_seeded_rng(seed, "initial"):
            custom_model = CustomModel(model_config, vocab_size, num_classes, base_folder=base_folder)
        if model_config.pair_with is not None:
            paired_module = f"{model_config.module.rpartition(':')[0]}:{model_config.pair_with}"
            paired_config = model_config.model_copy(update={"module": paired_module, "pair_with": None})
            with fork_seeded_rng(seed, "initial"):
                paired_model = CustomModel(paired_config, vocab_size, num_classes, base_folder=base_folder)
            _copy_paired_weights(paired_model, custom_model)
        return custom_model
    with fork_seeded_rng(seed, "initial"), WriteRecorder() as constructor_writes:
        transformer = Transformer(model_config, vocab_size, num_classes, is_causal=is_causal)
    transformer.init_weights(seed, constructor_writes)
    if num_classes is None and token_counts is not None:
        transformer.output.use_token_counts(token_counts)
    return transformer


@torch.no_grad()
def _copy_paired_weights(paired_model: CustomModel, custom_model: CustomModel) -> None:
    """Build a custom model with the initial weights of the network that `model.pair_with` names.

    Names and shapes have to match. Raise ModelError if no tensor matches.
    """
    paired_tensors, tensors = paired_model.state_dict(), custom_model.state_dict()
    shared_names = [
        name for name, tensor in paired_tensors.items() if name in tensors and tensors[name].shape == tensor.shape
    ]
    if not shared_names:
        module = paired_model.model_config.module
        raise ModelError(f"model.pair_with: no tensor of {module} has an equal name and shape")
    for name in shared_names:
        tensors[name].copy_(paired_tensors[name])


def _check_weights_fit_memory(model_config: TransformerConfig | CustomModelConfig, vocab_size: int) -> None:
    """Raise ModelError before a model is built whose weights alone exceed free memory. Skipped on the meta device."""
    if isinstance(model_config, CustomModelConfig) or torch.empty(0).device.type == "meta":
        return
    projection_parameters = 4 * model_config.width * model_config.heads * model_config.resolved_head_dim
    required_bytes = BYTES_PER_PARAMETER * (
        vocab_size * model_config.width + model_config.layers * projection_parameters
    )
    free_bytes = psutil.virtual_memory().available
    if required_bytes > free_bytes:
        raise ModelError(
            f"not enough memory for {model_config.layers:,} layers of width {model_config.width:,} and vocabulary of "
            f"{vocab_size:,}: at least {required_bytes / 2**30:.1f} GB needed, {free_bytes / 2**30:.1f} GB free"
        )
