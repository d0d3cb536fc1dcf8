"""The [training] table. Every variant uses the settings of the baseline unless it replaces them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from headtohead.config.base import EPOCHS_PATTERN, BaseConfig, ComponentConfig, Count, convert_to_steps
from headtohead.config.distillation_targets import DistillationConfig
from headtohead.config.masking import MaskingConfig

StepsOrEpochs = Count | Annotated[str, Field(pattern=rf"^{EPOCHS_PATTERN.pattern}$")]


class EarlyStoppingConfig(BaseConfig):
    """Stop training when the validation metric has not improved for `patience` evaluations."""

    patience: Count


class TrainingConfig(BaseConfig):
    """Training budget, optimizer, evaluation and checkpoints."""

    steps: StepsOrEpochs = 500
    """a number of steps, or "15 epochs" """
    batch_size: Annotated[int, Field(ge=1, le=2**20)] = 16
    sampling: Literal["random", "shuffled"] = "random"
    """language model on a stream: random blocks, or every block once per epoch in random order"""
    group_by_length: bool = False
    """batch rows of similar length together, which saves padding; otherwise rows are shuffled"""
    optimizer: ComponentConfig = ComponentConfig.model_validate({"kind": "adamw", "lr": 1e-3})
    schedule: ComponentConfig = ComponentConfig(kind="constant")
    """constant, { kind = "cosine", warmup = 50, final = 0.1 }, { kind = "linear", ... }"""
    max_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """gradient clipping threshold; None: no clipping"""
    eval_every: StepsOrEpochs = 100
    """evaluation interval: a number of steps, or "1 epoch" """
    checkpoint_every: StepsOrEpochs = 100
    """checkpoint interval: an interrupted run loses at most this many steps"""
    load_best_model_at_end: bool = False
    """test the weights that were best on validation data instead of the last ones"""
    metric_for_best_model: Literal["loss", "accuracy"] = "loss"
    """validation metric for `load_best_model_at_end` and `early_stopping`"""
    early_stopping: EarlyStoppingConfig | None = None
    masking: MaskingConfig | None = None
    """task masked-lm; None: 15 % of the tokens with BERT's replacements"""
    distillation: DistillationConfig | None = None
    """task distil: what the student learns from the teacher; None: train on the reference texts only"""

    def compute_total_steps(self, steps_per_epoch: int) -> int:
        """Return `steps` as a number of steps."""
        return convert_to_steps(self.steps, steps_per_epoch)

    def compute_eval_interval(self, steps_per_epoch: int) -> int:
        """Return `eval_every` as a number of steps."""
        return convert_to_steps(self.eval_every, steps_per_epoch)

    def compute_checkpoint_interval(self, steps_per_epoch: int) -> int:
        """Return `checkpoint_every` as a number of steps."""
        return convert_to_steps(self.checkpoint_every, steps_per_epoch)
