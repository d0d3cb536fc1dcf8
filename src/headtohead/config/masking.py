"""Token masking for masked language modelling."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import BaseConfig


class MaskingConfig(BaseConfig):
    """Which tokens a masked language model predicts, and what replaces them in the input."""

    rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """fraction of tokens to predict: 0.15 in BERT (arXiv:1810.04805), 0.4 in Wettig et al. 2023 (arXiv:2202.08005)"""
    replacement: Literal["bert", "mask"] = "bert"
    """bert: 80 % of the predicted tokens become the mask token, 10 % a random token, 10 % stay; mask: all are masked"""
