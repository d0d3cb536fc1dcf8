"""Callback for Lightning.

trainer = Trainer(..., callbacks=[HeadToHeadCallback()])
"""

from __future__ import annotations

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from headtohead.versus.script_recording import record, select_scalar_metrics


class HeadToHeadCallback(Callback):  # type: ignore[misc]
    """Records the initial weights, every batch, and the metrics logged up to each evaluation."""

    def __init__(self) -> None:
        self.recording = record()

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the initial weights."""
        self.recording.start(pl_module)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: object, batch_idx: int) -> None:
        """Record the first tensor of the batch, which usually holds the inputs."""
        tensors = list(batch.values()) if isinstance(batch, dict) else batch
        first_tensor = tensors[0] if isinstance(tensors, list | tuple) else tensors
        if isinstance(first_tensor, Tensor):
            self.recording.batch(first_tensor)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the metrics logged up to this evaluation."""
        if not trainer.sanity_checking:
            self.recording.log(trainer.global_step, **select_scalar_metrics(trainer.callback_metrics))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Record the metrics at the end of training."""
        self.recording.log(trainer.global_step, **select_scalar_metrics(trainer.callback_metrics))
