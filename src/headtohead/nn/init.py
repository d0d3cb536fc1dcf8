"""Initialise parameters from (seed, module name), so that modules that two variants share start equal."""

import hashlib

import torch
from torch import nn

from headtohead.nn.torch_rng import fork_seeded_rng


def init_parameters(model: nn.Module, seed: int) -> None:
    """Call `reset_parameters` of every module that has it, each seeded from (seed, module name)."""
    for name, module in model.named_modules():
        reset = getattr(module, "reset_parameters", None)  # PyTorch's convention
        if callable(reset):
            with fork_seeded_rng(seed, "initial", name):
                reset()


def compute_tensor_hashes(model: nn.Module) -> dict[str, str]:
    """Return "shape:hash" of every tensor by name, to show which tensors of two variants start equal."""
    return {name: _hash_tensor(tensor) for name, tensor in model.state_dict().items()}


def _hash_tensor(tensor: torch.Tensor) -> str:
    content = tensor.detach().cpu().contiguous().numpy().tobytes()
    return f"{'x'.join(map(str, tensor.shape))}:{hashlib.sha256(content).hexdigest()[:16]}"
