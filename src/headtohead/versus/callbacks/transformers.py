"""Callback for `transformers.Trainer`.

trainer = Trainer(..., callbacks=[HeadToHeadCallback()])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from headtohead.versus.script_recording import record, select_scalar_metrics

if TYPE_CHECKING:
    from torch import nn


class HeadToHeadCallback(TrainerCallback):  # type: ignore[misc]
    """Records the initial weights and every logged metric, such as eval_loss."""

    def __init__(self) -> None:
        self.recording = record()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        model: nn.Module,
        **kwargs: object,
    ) -> None:
        """Record the initial weights when the `transformers.Trainer` starts."""
        self.recording.start(model)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        *,
        logs: dict[str, object],
        **kwargs: object,
    ) -> None:
        """Record the values that the `transformers.Trainer` logs."""
        self.recording.log(state.global_step, **select_scalar_metrics(logs))
