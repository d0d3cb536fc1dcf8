"""Reject user code that would invalidate a comparison before it starts: unregistered weights, a forward pass that
overwrites its input or returns probabilities, and changes to torch itself.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.audit.user_code import fork_all_rngs
from headtohead.data.batches import Batch
from headtohead.errors import ModelError
from headtohead.nn.custom_model import CustomModel

NUM_ROWS = 4
PROBABILITY_TOLERANCE = 1e-3
"""how far the sum of outputs may be from 1 for them to be probabilities"""


def check_model_code(model: nn.Module, batch: Batch) -> None:
    """Raise ModelError if a network's or part's code is certain to spoil its scores.

    Runs a pass in each mode, so `model` should not be trained afterwards. Passes that fail are not checked.
    """
    network = model.inner if isinstance(model, CustomModel) else model
    for description in _iter_unregistered_weights(network):
        raise ModelError(
            f"{description} would be neither trained nor saved, because it is not registered. Use nn.ModuleList, "
            "nn.ModuleDict, nn.ParameterList or nn.Parameter"
        )
    rows = batch.rows(0, NUM_ROWS)
    with fork_all_rngs("code checks"), torch.no_grad():
        for is_training in (True, False):
            input_ids = rows.input_ids.clone()
            mask = None if rows.attention_mask is None else rows.attention_mask.clone()
            try:
                logits = model.train(is_training)(input_ids, mask).logits
            except Exception:  # noqa: BLE001  (training or scoring will report it)
                continue
            if not torch.equal(input_ids, rows.input_ids):
                raise ModelError(
                    f"{type(network).__name__}.forward() overwrites its input_ids, so inputs and labels would not "
                    "belong together. Work on a copy: input_ids = input_ids.clone()"
                )
            if _are_probabilities(logits):
                raise ModelError(
                    f"{type(network).__name__}.forward() returns probabilities, but the loss applies softmax itself. "
                    "Return logits"
                )


def _iter_unregistered_weights(network: nn.Module) -> Iterator[str]:
    """Yield a description of each trainable weight that is stored in a plain attribute, list or dictionary."""
    registered = {id(parameter) for parameter in network.parameters()}
    for prefix, module in network.named_modules():
        for name, value in vars(module).items():
            label = f"{type(network).__name__}.{prefix}.{name}".replace("..", ".")
            items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
            if name in ("_parameters", "_modules", "_buffers"):
                continue
            for item in items:
                weights = list(item.parameters()) if isinstance(item, nn.Module) else [item]
                tensors = [weight for weight in weights if isinstance(weight, Tensor)]
                if any(tensor.is_leaf and tensor.requires_grad and id(tensor) not in registered for tensor in tensors):
                    yield f"{label} ({type(item).__name__}{'' if item is value else f' in a {type(value).__name__}'})"
                    break


def _are_probabilities(logits: Tensor) -> bool:
    """Return whether the values are nonnegative and sum to 1 for every prediction."""
    sums = logits.double().sum(-1)
    return bool((logits >= 0).all()) and bool(((sums - 1).abs() <= PROBABILITY_TOLERANCE).all())


class TorchGlobals:
    """A snapshot of torch's settings and functions, which all models in a process share."""

    def __init__(self) -> None:
        self.settings = {
            "the default dtype": torch.get_default_dtype(),
            "the default device": torch.get_default_device(),
            "gradient mode": torch.is_grad_enabled(),
        }
        owners: list[object] = [torch, F, torch.Tensor, *(item for item in vars(nn).values() if isinstance(item, type))]
        self.functions = {
            f"{getattr(owner, '__name__', 'torch')}.{name}": value
            for owner in owners
            for name, value in vars(owner).items()
            if callable(value) and not name.startswith("__") and not isinstance(value, type)
        }

    def check_unchanged(self, code: str) -> None:
        """Raise ModelError if anything has changed since; `code` names the code that ran in between."""
        current = TorchGlobals()
        changed = [name for name, value in self.settings.items() if current.settings[name] != value]
        replaced = {name: current.functions.get(name) for name in self.functions}
        # torch submodules that are imported later replace some functions themselves.
        changed += [
            name
            for name, value in replaced.items()
            if value is not self.functions[name] and not str(getattr(value, "__module__", "")).startswith("torch")
        ]
        if changed:
            raise ModelError(
                f"{code} changes {', '.join(changed[:3])} for every model of the experiment, the baseline included. "
                "Set dtype and device where tensors are created, and subclass layers instead of replacing their methods"
            )
