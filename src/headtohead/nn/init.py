"""Initialise parameters: every tensor is drawn from (seed, module name)."""

import hashlib

import torch
from torch import nn

from headtohead.nn.torch_rng import fork_seeded_rng


def init_parameters(model: nn.Module, seed: int) -> None:
    """Draw the tensors of every module that can be drawn anew from (seed, its name)."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)  # torch's own convention
        if callable(reset):
            with fork_seeded_rng(seed, "initial", name):
                reset()


def compute_tensor_hashes(model: nn.Module) -> dict[str, str]:
    """A hash of each tensor by name: the proof that two variants began alike."""
    return {name: _hash_tensor(tensor) for name, tensor in model.state_dict().items()}


def _hash_tensor(tensor: torch.Tensor) -> str:
    """shape:hash, so that a reader can tell another shape from other numbers."""
    content = tensor.detach().cpu().contiguous().numpy().tobytes()
    return f"{'x'.join(map(str, tensor.shape))}:{hashlib.sha256(content).hexdigest()[:16]}"
