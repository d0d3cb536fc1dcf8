"""Files of weights: write the tensors of a model as safetensors, read them back, and load them into a model."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch as st
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from headtohead import safe_open
from headtohead.atomic_io import open_atomic
from headtohead.errors import RunFolderError, truncate_text

_DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of dtypes in the header of a safetensors file."""


def collect_model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of a model for a file, by name, on the CPU, with tied tensors under their first name only."""
    seen_ids: set[int] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen_ids:
            seen_ids.add(id(tensor))
            tensors[name] = tensor.detach().cpu().contiguous()
    return tensors


def load_model_tensors(model: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Load the tensors of a file into a model.

    Args:
        model: The model to load into.
        tensors: Saved tensors by name. Tensors that are tied in the model may be missing.
        origin: The file or process that the tensors come from, for error messages.

    Raises:
        RunFolderError: If names or shapes do not match the model.
    """
    try:
        missing_names, unexpected_names = model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # tensors with a different shape
        reason = truncate_text(str(error).replace("\n", " "), 300)
        raise RunFolderError(f"{origin}: the weights do not match the model: {reason}") from None
    missing_untied_names = set(missing_names) & set(collect_model_tensors(model))
    if missing_untied_names or unexpected_names:
        raise RunFolderError(
            f"{origin}: the weights do not match the model: missing {sorted(missing_untied_names)[:3]}, "
            f"unexpected {sorted(unexpected_names)[:3]}"
        )


def save_model_weights(path: Path, model: nn.Module) -> str:
    """Write the weights of a model and return the SHA-256 of the file."""
    return write_safetensors(path, collect_model_tensors(model), {"format": "pt"})


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> str:
    """Write tensors by name to a safetensors file, and return its SHA-256.

    Tensors are moved to the CPU, written and hashed one at a time, whereas `safetensors.torch.save` requires two
    additional copies of all tensors.
    """
    names_by_alignment = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end_offset = 0
    for name in names_by_alignment:
        tensor, start_offset = tensors[name], end_offset
        end_offset += tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [start_offset, end_offset],
        }
    encoded_header = json.dumps(header, separators=(",", ":")).encode()
    encoded_header += b" " * (-len(encoded_header) % 8)
    digest = hashlib.sha256()
    with open_atomic(path) as file:
        for chunk in (len(encoded_header).to_bytes(8, "little"), encoded_header):
            file.write(chunk)
            digest.update(chunk)
        for name in names_by_alignment:
            content = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            file.write(content)
            digest.update(content)
    return digest.hexdigest()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file in a run folder. Raise RunFolderError if it is missing or corrupted."""
    if not path.exists():
        raise RunFolderError(f"{path} not found: the run may not have finished")
    try:
        return st.load(safe_open.read_file(path, safe_open.MAX_WEIGHTS_BYTES))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise RunFolderError(f"{path} is corrupted ({error})") from None
