"""The [model] table: a transformer composed of parts, a custom network, or a pretrained model."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headtohead.config.base import (
    BaseConfig,
    ComponentConfig,
    PartList,
    SequenceLength,
    SmallCount,
    VectorSize,
    convert_to_tuple,
)
from headtohead.config.tables.training import MaskingConfig, TrainingConfig

LayerSlot = Literal["position", "pattern", "attention", "projection", "merge", "feedforward", "block"]
"""slots that may differ from layer to layer"""


class PerLayer(BaseConfig):
    """Different parts in different layers, starting at the first layer. A list shorter than the model is repeated."""

    layers: tuple[tuple[ComponentConfig, ...], ...] = Field(min_length=1)
    """one part, or one list of parts, per layer"""

    @model_validator(mode="before")
    @classmethod
    def _convert_layers_to_tuples(cls, value: object) -> object:
        """Convert the parts of each layer to a tuple, because frozen models must be hashable."""
        if isinstance(value, dict) and isinstance(value.get("layers"), list | tuple):
            return {**value, "layers": tuple(convert_to_tuple(parts) for parts in value["layers"])}
        return value

    def __str__(self) -> str:
        return ", ".join(" + ".join(map(str, parts)) for parts in self.layers)


def is_per_layer(value: Any) -> bool:
    """Return whether a value specifies parts by layer, as in `{ layers = ["rope", "none"] }`."""
    return "layers" in value if isinstance(value, dict) else isinstance(value, PerLayer)


def _get_layers_tag(value: Any) -> str:
    return "each layer" if is_per_layer(value) else "all layers"


LayerParts = Annotated[
    Annotated[PartList, Tag("all layers")] | Annotated[PerLayer, Tag("each layer")], Discriminator(_get_layers_tag)
]
"""one part or a list of parts, the same in every layer or not"""
LayerPart = Annotated[
    Annotated[ComponentConfig, Tag("all layers")] | Annotated[PerLayer, Tag("each layer")],
    Discriminator(_get_layers_tag),
]
"""one part, the same in every layer or not"""


class PretrainingConfig(BaseConfig):
    """Masked language modeling on the training texts of the classifier, performed once before the trials."""

    masking: MaskingConfig = MaskingConfig()
    """which tokens are predicted"""
    training: TrainingConfig | None = None
    """None: as in [training]"""
    seed: Annotated[int, Field(ge=0)] = 2000
    """seed of the encoder; all trials start from the same one"""


def _get_init_tag(value: Any) -> str:
    return "none" if value is None else "folder" if isinstance(value, str) else "pre-training"


InitFrom = Annotated[
    Annotated[None, Tag("none")] | Annotated[str, Tag("folder")] | Annotated[PretrainingConfig, Tag("pre-training")],
    Discriminator(_get_init_tag),
]


class TransformerConfig(BaseConfig):
    """A transformer composed of parts in named slots."""

    width: VectorSize = 64
    """hidden size"""
    layers: SmallCount = 4
    """number of layers"""
    heads: SmallCount = 2
    """number of attention heads"""
    head_dim: VectorSize | None = None
    """size of a head; None: width / heads"""
    context: SequenceLength = 32
    """maximum input length in tokens"""
    embedding: PartList = (ComponentConfig(kind="table"),)
    """maps token ids to hidden states; parts in a list are applied in sequence"""
    embedding_width: VectorSize | None = None
    """size of embeddings, of positions added to them and of their norm, before a matrix maps them to the width; None:
    the width"""
    position: LayerParts = (ComponentConfig(kind="learned"),)
    """one part, or a list of parts that are combined; { layers = [...] } sets them per layer, here and in the slots
    below"""
    pattern: LayerParts | None = None
    """keys that a query may attend to; None: causal for a language model, full for a classifier. Patterns in a list are
    intersected"""
    attention: LayerPart = ComponentConfig(kind="composed")
    """attention layer"""
    projection: LayerParts = (ComponentConfig(kind="linear"),)
    """queries, keys and values; parts in a list are applied in sequence"""
    merge: LayerParts = (ComponentConfig(kind="concat"),)
    """combination of the heads; parts in a list are applied in sequence"""
    feedforward: LayerPart = ComponentConfig(kind="mlp")
    """feed-forward layer"""
    norm: ComponentConfig = ComponentConfig(kind="layer")
    """norm of every sublayer"""
    block: LayerPart = ComponentConfig(kind="pre")
    """order of norms, sublayers and residual additions"""
    stack: ComponentConfig = ComponentConfig(kind="sequential")
    """how the layers are combined"""
    output: PartList = (ComponentConfig(kind="linear"),)
    """language model: maps hidden states to logits; parts in a list are applied in sequence"""
    pool: ComponentConfig = ComponentConfig(kind="mean")
    """classifier: pooling of the positions to one vector"""
    classifier_hidden: VectorSize | None = 100
    """classifier: width of the hidden layer after pooling"""
    classifier_activation: Literal["relu", "tanh", "gelu"] = "relu"
    """classifier: activation of this layer"""
    init: PartList = (ComponentConfig(kind="torch"),)
    """initial values; parts in a list are applied in sequence"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """dropout probability"""
    tie_word_embeddings: bool = False
    """share the embedding matrix with the output layer of a language model"""
    final_norm: bool = True
    """norm after the last layer"""
    embedding_norm: bool = False
    """norm after the embedding"""
    init_from: InitFrom = None
    """classifier: copy the encoder's weights from a run folder of task masked-lm, or pre-train it first, as in
    { masking = { rate = 0.15 } }"""
    mask_padding: bool = True
    """false: attend to padding and pool it like text"""

    @model_validator(mode="after")
    def _check_single_parts(self) -> TransformerConfig:
        """Raise ValueError if [model] lists more than one attention, feed-forward or block for a layer."""
        for slot in ("attention", "feedforward", "block"):
            choice = getattr(self, slot)
            if isinstance(choice, PerLayer) and any(len(parts) != 1 for parts in choice.layers):
                raise ValueError(f'{slot}: a layer has one {slot} part, as in {{ layers = ["a", "b"] }}')
        return self

    @model_validator(mode="after")
    def _check_head_width(self) -> TransformerConfig:
        """Raise ValueError if the width is not divisible by the number of heads."""
        if self.head_dim is None and self.width % self.heads:
            divisors = [n for n in range(1, math.isqrt(self.width) + 1) if self.width % n == 0]
            heads = min({*divisors, *(self.width // n for n in divisors)}, key=lambda n: (abs(n - self.heads), n))
            raise ValueError(
                f"width ({self.width}) must be divisible by heads ({self.heads}); set heads = {heads}, or set head_dim"
            )
        return self

    @model_validator(mode="after")
    def _check_output_layer(self) -> TransformerConfig:
        if self.tie_word_embeddings and any(part.options.get("init") == "zero" for part in self.output):
            raise ValueError('output: init = "zero" would also zero the embedding that is tied to the output layer')
        return self

    @property
    def resolved_head_dim(self) -> int:
        """`head_dim`, or width / heads if it is not set."""
        return self.head_dim or self.width // self.heads

    def list_parts(self) -> list[tuple[str, ComponentConfig]]:
        """Return (slot, part) for every part of the model."""
        parts: list[tuple[str, ComponentConfig]] = []
        for slot, choice in self:
            if isinstance(choice, PerLayer):
                parts += [(slot, part) for layer in choice.layers for part in layer]
            elif isinstance(choice, ComponentConfig):
                parts.append((slot, choice))
            elif isinstance(choice, tuple):
                parts += [(slot, part) for part in choice if isinstance(part, ComponentConfig)]
        return parts

    def get_layer_parts(self, slot: LayerSlot, layer: int) -> tuple[ComponentConfig, ...]:
        """Return the parts in a slot of one layer, counted from 0; empty if no pattern is set."""
        choice: LayerParts | LayerPart | None = getattr(self, slot)
        if isinstance(choice, PerLayer):
            return choice.layers[layer % len(choice.layers)]
        return (choice,) if isinstance(choice, ComponentConfig) else choice or ()


class CustomModelConfig(BaseConfig):
    """A custom network: any `nn.Module` that maps input_ids to logits."""

    module: Annotated[str, Field(pattern=r"^.+\.py:[A-Za-z_]\w*$")]
    """file.py:Name, relative to the experiment file"""
    pair_with: Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")] | None = None
    """another network that the file defines or imports: tensors of the same name and shape start equal to those of that
    network, built with the same options. None: networks are initialized as they are written"""
    context: SequenceLength = 32
    """maximum input length in tokens"""
    options: dict[str, Any] = Field(default_factory=dict)
    """keyword arguments of the constructor; vocab_size, context and classes are added if it accepts them"""


class LoraConfig(BaseConfig):
    """Low-rank adapters on frozen weights, after Hu et al. 2021, arXiv:2106.09685."""

    rank: VectorSize = 8
    """rank of the adapters"""
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """the adapter output is scaled by alpha / rank"""
    target_modules: tuple[str, ...] = Field(default=("query", "value"), min_length=1)
    """linear layers to adapt, by the last component of their name"""


class LayerSubsetConfig(BaseConfig):
    """A student initialized from a subset of the layers of a larger model."""

    layers: SmallCount
    """number of layers to keep"""
    selection: Literal["evenly", "first"] = "evenly"
    """layers spread evenly from first to last, or the first ones"""


class PretrainedModelConfig(BaseConfig):
    """A pretrained encoder with a classification head or, for task distil, a pretrained decoder."""

    pretrained: Annotated[str, Field(min_length=1)]
    """hub:owner/name, a folder, or an installed package with weights inside"""
    max_length: Annotated[int, Field(ge=4, le=2**24)] = 128
    """maximum tokens per text, special tokens included; longer texts are truncated"""
    pool: Literal["own", "first", "mean"] = "own"
    """input of the head: as in the library's own head, the first token's vector, or the mean over the text"""
    head: Literal["new", "kept"] = "new"
    """new: initialize a head for the classes of the data; kept: use the head of the pretrained weights"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """dropout of the head; None: as in the model's configuration"""
    freeze: Literal["none", "encoder"] | Annotated[int, Field(ge=1)] = "none"
    """frozen weights: none, the whole encoder, or the embeddings and this number of lowest layers"""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """layer-wise learning-rate decay: the factor from each layer to the one below it"""
    lora: LoraConfig | None = None
    """train low-rank adapters and freeze the encoder"""
    layer_subset: LayerSubsetConfig | None = None
    """task distil: initialize the student from a subset of the layers"""

    @property
    def context(self) -> int:
        """The maximum input length, named `context` as in every model config."""
        return self.max_length

    @model_validator(mode="after")
    def _check_consistency(self) -> PretrainedModelConfig:
        """Raise ValueError for incompatible settings of a pretrained model in the table [model]."""
        if self.lora is not None and self.freeze != "none":
            raise ValueError("lora already freezes the encoder; remove freeze")
        if self.lora is not None and self.layer_decay != 1:
            raise ValueError("layer_decay applies to the encoder's own weights, which lora does not train")
        if self.head == "kept" and self.pool != "own":
            raise ValueError('head = "kept" uses the head of the library; remove pool')
        return self


def _get_model_tag(value: Any) -> str:
    """Return which kind of table [model] a value describes: "own", "encoder" or "parts"."""
    for tag, key, config_class in (
        ("own", "module", CustomModelConfig),
        ("encoder", "pretrained", PretrainedModelConfig),
    ):
        if key in value if isinstance(value, dict) else isinstance(value, config_class):
            return tag
    return "parts"


ModelConfig = Annotated[
    Annotated[TransformerConfig, Tag("parts")]
    | Annotated[CustomModelConfig, Tag("own")]
    | Annotated[PretrainedModelConfig, Tag("encoder")],
    Discriminator(_get_model_tag),
]
