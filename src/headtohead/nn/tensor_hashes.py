"""Hashes of tensors, which show whether two variants start from equal weights and take an equal first step."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn


def compute_tensor_hashes(model: nn.Module) -> dict[str, str]:
    """Return "shape:hash" of every initial tensor by name, for start.json.

    A tensor with several names is listed under the first name.
    """
    hashes, addresses = {}, set[int]()
    for name, tensor in model.state_dict().items():
        if tensor.data_ptr() not in addresses:
            hashes[name] = f"{'x'.join(map(str, tensor.shape))}:{hash_tensor_values([tensor])}"
        addresses.update([tensor.data_ptr()] if tensor.numel() else [])
    return hashes


def hash_tensor_values(tensors: Iterable[Tensor]) -> str:
    """Return one hash over the values of all tensors: of one initial tensor, or of the first loss and gradients."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
