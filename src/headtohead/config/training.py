"""How it is trained. Everything here is the same for a variant and its baseline unless the variant names it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import EPOCHS_PATTERN, BaseConfig, ComponentConfig, Count, convert_to_steps
from headtohead.config.distillation_targets import DistillationConfig

StepsOrEpochs = Count | Annotated[str, Field(pattern=rf"^{EPOCHS_PATTERN.pattern}$")]


class EarlyStoppingConfig(BaseConfig):
    """Early stop: when validation has not improved for so many evaluations."""

    patience: Count


class TrainingConfig(BaseConfig):
    """The training budget and its settings."""

    steps: StepsOrEpochs = 500
    """a number of steps, or "15 epochs" """
    batch: Annotated[int, Field(ge=1, le=2**20)] = 16
    sampling: Literal["random", "shuffled"] = "random"
    """language model on a stream: blocks from anywhere, or every block once before any comes again"""
    batching: Literal["shuffled", "by length"] = "shuffled"
    """rows in a random order, or, of a random order, rows of like length together: less padding to compute"""
    optimizer: ComponentConfig = ComponentConfig.model_validate({"kind": "adamw", "lr": 1e-3})
    schedule: ComponentConfig = ComponentConfig(kind="constant")
    """constant, { kind = "cosine", warmup = 50, final = 0.1 }, { kind = "linear", ... }"""
    clip: Annotated[float, Field(gt=0)] | None = None
    """largest gradient norm"""
    evaluate: StepsOrEpochs = 100
    """how often held-out texts are scored: a number of steps, or "1 epoch" """
    checkpoint: StepsOrEpochs = 100
    """how often the state is saved, so that a killed run loses no more than that"""
    keep: Literal["last", "best"] = "last"
    """which weights are tested: the last, or the best on validation data"""
    best_by: Literal["loss", "accuracy"] = "loss"
    """what the best on validation data is best by, for `keep` and `stop`"""
    stop: EarlyStoppingConfig | None = None
    taught: DistillationConfig | None = None
    """task distil: what a teacher gives; unless given, people's texts alone are learned from"""

    def compute_total_steps(self, steps_per_epoch: int) -> int:
        return convert_to_steps(self.steps, steps_per_epoch)

    def evaluate_every(self, steps_per_epoch: int) -> int:
        return convert_to_steps(self.evaluate, steps_per_epoch)

    def checkpoint_every(self, steps_per_epoch: int) -> int:
        return convert_to_steps(self.checkpoint, steps_per_epoch)
