"""Reject user code that changes torch itself: its settings and functions are shared by all models in a process."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from headtohead.errors import ModelError


class TorchGlobalsSnapshot:
    """Torch's global settings and functions at one point in time, to be compared after user code has run."""

    def __init__(self) -> None:
        """Record the current settings and functions."""
        self.settings = {
            "the default dtype": torch.get_default_dtype(),
            "the default device": torch.get_default_device(),
            "gradient mode": torch.is_grad_enabled(),
        }
        layer_classes = (value for value in vars(nn).values() if isinstance(value, type))
        owners: list[object] = [torch, F, torch.Tensor, *layer_classes]
        self.functions = {
            f"{getattr(owner, '__name__', 'torch')}.{name}": value
            for owner in owners
            for name, value in vars(owner).items()
            if callable(value) and not name.startswith("__") and not isinstance(value, type)
        }

    def raise_if_changed(self, code_description: str) -> None:
        """Raise ModelError if user code has changed a setting or replaced a function since the snapshot.

        `code_description` names that code in the message, such as "the model of alibi".
        """
        current = TorchGlobalsSnapshot()
        changed_names = [name for name, value in self.settings.items() if current.settings[name] != value]
        current_functions = {name: current.functions.get(name) for name in self.functions}
        # torch submodules that are imported later replace some functions themselves.
        changed_names += [
            name
            for name, function in current_functions.items()
            if function is not self.functions[name] and not str(getattr(function, "__module__", "")).startswith("torch")
        ]
        if changed_names:
            raise ModelError(
                f"{code_description} changes {', '.join(changed_names[:3])} for every model of the experiment, the "
                "baseline included. Set dtype and device where tensors are created, and subclass layers instead of "
                "replacing their methods"
            )
