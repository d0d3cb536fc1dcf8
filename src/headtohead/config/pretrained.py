"""What is built when a pretrained encoder is fine-tuned: whose weights, which head, and what of it is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from headtohead.config.base import BaseConfig, SmallCount, VectorSize


class LoraConfig(BaseConfig):
    """Low-rank adapters on frozen weights, after Hu et al. 2021, arXiv:2106.09685."""

    rank: VectorSize = 8
    alpha: Annotated[float, Field(gt=0)] = 16.0
    """the adapter output is scaled by alpha / rank"""
    target_modules: tuple[str, ...] = Field(default=("query", "value"), min_length=1)
    """linear layers to adapt, by the last component of their name"""


class LayerSubsetConfig(BaseConfig):
    """A student initialized from a subset of the layers of a larger model."""

    layers: SmallCount
    selection: Literal["evenly", "first"] = "evenly"
    """layers spread evenly from first to last, or the first ones"""


class PretrainedModelConfig(BaseConfig):
    """A pretrained encoder with a head that names classes; or, for task distil, a pretrained decoder."""

    pretrained: Annotated[str, Field(min_length=1)]
    """hub:owner/name, a folder, or an installed package with weights inside"""
    max_length: Annotated[int, Field(ge=4, le=2**24)] = 128
    """tokens of a text, the model's own around it included; a longer text loses its end"""
    pool: Literal["own", "first", "mean"] = "own"
    """what the head reads: as the library's own head does it, the first token's vector, or the mean over the text"""
    head: Literal["new", "kept"] = "new"
    """a head drawn from the seed, with as many classes as the data have, or the one that the weights bring"""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """of the head; unless given, as the model's configuration has it"""
    freeze: Literal["none", "encoder"] | Annotated[int, Field(ge=1)] = "none"
    """what is not trained: nothing, the whole encoder, or so many of its lowest layers and the embeddings"""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """each layer's rate is this share of the rate of the layer above it; the head has the full rate"""
    lora: LoraConfig | None = None
    """train small matrices beside the encoder's own, which stay as they are"""
    layer_subset: LayerSubsetConfig | None = None
    """task distil: initialize the student from a subset of the layers"""

    @property
    def context(self) -> int:
        """The longest input, under the name that it has in every model."""
        return self.max_length

    @model_validator(mode="after")
    def _check_consistency(self) -> PretrainedModelConfig:
        if self.lora is not None and self.freeze != "none":
            raise ValueError("lora freezes the encoder by itself; leave out freeze")
        if self.lora is not None and self.layer_decay != 1:
            raise ValueError("layer_decay is for the encoder's own weights, which lora does not train")
        if self.head == "kept" and self.pool != "own":
            raise ValueError('head = "kept" is the library\'s own head; leave out pool')
        return self
