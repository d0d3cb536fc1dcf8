"""The [model.init_from] table: pre-training of a classifier's encoder."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from headtohead.config.base import BaseConfig
from headtohead.config.masking import MaskingConfig
from headtohead.config.training import TrainingConfig


class PretrainingConfig(BaseConfig):
    """Masked language modelling on the classifier's training texts, once before the trials."""

    masking: MaskingConfig = MaskingConfig()
    training: TrainingConfig | None = None
    """None: as in [training]"""
    seed: Annotated[int, Field(ge=0)] = 2000
    """seed of the encoder; all trials start from the same one"""
