"""The [model] table of a pretrained model: its weights, its head, and which of them are trained."""

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
        if self.lora is not None and self.freeze != "none":
            raise ValueError("lora freezes the encoder by itself; leave out freeze")
        if self.lora is not None and self.layer_decay != 1:
            raise ValueError("layer_decay is for the encoder's own weights, which lora does not train")
        if self.head == "kept" and self.pool != "own":
            raise ValueError('head = "kept" is the library\'s own head; leave out pool')
        return self
