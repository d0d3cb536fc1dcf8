"""Callback for Keras with any backend.

model.fit(..., callbacks=[HeadToHeadCallback()])
"""

from __future__ import annotations

import keras

from headtohead.versus.script_recording import record, select_scalar_metrics


class HeadToHeadCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Records the initial weights and each epoch's metrics, such as val_loss."""

    def __init__(self) -> None:
        super().__init__()
        self.recording = record()

    def on_train_begin(self, logs: dict[str, object] | None = None) -> None:
        """Record the initial weights."""
        weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in self.model.weights}
        self.recording.start(weights)

    def on_epoch_end(self, epoch: int, logs: dict[str, object] | None = None) -> None:
        """Record the epoch's metrics."""
        self.recording.log(epoch, **select_scalar_metrics(logs or {}))
