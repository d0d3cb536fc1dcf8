"""The [model] table: a transformer composed of parts, a custom network, or a pretrained model."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from headtohead.config.base import BaseConfig, ComponentConfig, SequenceLength, SmallCount, VectorSize
from headtohead.config.training import MaskingConfig, TrainingConfig


def _convert_to_tuple(value: object) -> object:
    """Return a single component as a tuple of one, and a list as a tuple."""
    if isinstance(value, str | dict | ComponentConfig):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _get_pattern_tag(value: Any) -> str:
    per_layer = "layers" in value if isinstance(value, dict) else isinstance(value, PerLayerPattern)
    return "each layer" if per_layer else "all layers"


class PerLayerPattern(BaseConfig):
    """One attention pattern per layer, starting with the first; a list shorter than the model is repeated."""

    layers: tuple[tuple[ComponentConfig, ...], ...] = Field(min_length=1)
    """one pattern, or one list of patterns, per layer"""

    @model_validator(mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        if isinstance(value, dict) and isinstance(value.get("layers"), list | tuple):
            return {**value, "layers": tuple(_convert_to_tuple(pattern) for pattern in value["layers"])}
        return value


PatternConfig = Annotated[
    Annotated[tuple[ComponentConfig, ...], Tag("all layers")] | Annotated[PerLayerPattern, Tag("each layer")],
    Discriminator(_get_pattern_tag),
]


class PretrainingConfig(BaseConfig):
    """Masked language modelling on the classifier's training texts, once before the trials."""

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
    position: tuple[ComponentConfig, ...] = (ComponentConfig(kind="learned"),)
    """one part, or a list of parts that are combined"""
    pattern: PatternConfig | None = None
    """keys that a query may attend to; None: causal for a language model, full for a classifier. Patterns in a list are
    intersected; { layers = [...] } sets a pattern per layer"""
    attention: ComponentConfig = ComponentConfig(kind="composed")
    """attention layer"""
    projection: ComponentConfig = ComponentConfig(kind="linear")
    """queries, keys and values"""
    merge: ComponentConfig = ComponentConfig(kind="concat")
    """combination of the heads"""
    feedforward: ComponentConfig = ComponentConfig(kind="mlp")
    """feed-forward layer"""
    norm: ComponentConfig = ComponentConfig(kind="layer")
    """norm of every sublayer"""
    block: ComponentConfig = ComponentConfig(kind="pre")
    """order of norms, sublayers and residual additions"""
    pool: ComponentConfig = ComponentConfig(kind="mean")
    """classifier: pooling of the positions to one vector"""
    classifier_hidden: VectorSize | None = 100
    """classifier: width of the hidden layer after pooling"""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """dropout probability"""
    tie_word_embeddings: bool = False
    """share the embedding weights with the output layer of a language model"""
    output_bias: bool | Literal["frequencies"] = True
    """frequencies: initialize with the log frequencies of the tokens in the training split"""
    output_init: Literal["random", "zero"] = "random"
    """initial weights of the output layer; zero with output_bias = "frequencies" starts as a unigram model"""
    embedding_init_std: Annotated[float, Field(gt=0)] | None = None
    """standard deviation of the initial token embeddings; None: 1, as in torch, or 0.02 if they are tied to the output
    layer, as in GPT-2"""
    final_norm: bool = True
    """norm after the last layer"""
    embedding_norm: bool = False
    """norm after the embedding"""
    init_from: InitFrom = None
    """classifier: copy the encoder's weights from a run folder of task masked-lm, or pre-train it first, as in
    { masking = { rate = 0.15 } }"""
    mask_padding: bool = True
    """false: attend to padding and pool it like text"""

    @model_validator(mode="before")
    @classmethod
    def _tuples(cls, value: object) -> object:
        """Convert a single position or pattern to a tuple of one."""
        if not isinstance(value, dict):
            return value
        value = dict(value)
        if "position" in value:
            value["position"] = _convert_to_tuple(value["position"])
        if "pattern" in value and not (isinstance(value["pattern"], dict) and "layers" in value["pattern"]):
            value["pattern"] = _convert_to_tuple(value["pattern"])
        return value

    @model_validator(mode="after")
    def _check_head_width(self) -> TransformerConfig:
        """Raise ValueError if the width is not divisible by the number of heads."""
        if self.head_dim is None and self.width % self.heads:
            divisors = [n for n in range(1, math.isqrt(self.width) + 1) if self.width % n == 0]
            heads = min({*divisors, *(self.width // n for n in divisors)}, key=lambda n: (abs(n - self.heads), n))
            raise ValueError(
                f"width {self.width} cannot be divided among {self.heads} heads; set heads = {heads}, or set head_dim"
            )
        return self

    @model_validator(mode="after")
    def _check_output_layer(self) -> TransformerConfig:
        if self.tie_word_embeddings and self.output_init == "zero":
            raise ValueError('output_init = "zero" would also zero the embedding that is tied to the output layer')
        return self

    @property
    def resolved_head_dim(self) -> int:
        """`head_dim`, or width / heads if it is not set."""
        return self.head_dim or self.width // self.heads

    @property
    def resolved_embedding_init_std(self) -> float:
        """`embedding_init_std`, or its default for tied or untied embeddings."""
        return self.embedding_init_std or (0.02 if self.tie_word_embeddings else 1.0)

    def get_layer_pattern(self, layer: int, default: str) -> tuple[ComponentConfig, ...]:
        """Return the patterns of one layer, counted from 0. `default` is used if none is set."""
        if self.pattern is None:
            return (ComponentConfig(kind=default),)
        if isinstance(self.pattern, PerLayerPattern):
            return self.pattern.layers[layer % len(self.pattern.layers)]
        return self.pattern


class CustomModelConfig(BaseConfig):
    """A custom network: any `nn.Module` that maps input_ids to logits."""

    module: Annotated[str, Field(pattern=r"^.+\.py:[A-Za-z_]\w*$")]
    """file.py:Name, relative to the experiment file"""
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
        """The maximum input length, under the name that every model config has."""
        return self.max_length

    @model_validator(mode="after")
    def _check_consistency(self) -> PretrainedModelConfig:
        """Raise ValueError for settings that exclude each other."""
        if self.lora is not None and self.freeze != "none":
            raise ValueError("lora freezes the encoder by itself; leave out freeze")
        if self.lora is not None and self.layer_decay != 1:
            raise ValueError("layer_decay is for the encoder's own weights, which lora does not train")
        if self.head == "kept" and self.pool != "own":
            raise ValueError('head = "kept" is the library\'s own head; leave out pool')
        return self


def _get_model_tag(value: Any) -> str:
    """Return which model config class a value describes: "own", "encoder" or "parts"."""
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
