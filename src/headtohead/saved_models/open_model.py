"""Open any model that a command accepts: a run folder written by this package, or a pretrained model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headtohead.atomic_io import read_json_object
from headtohead.errors import RunFolderError
from headtohead.generation.request import resolve_decoder
from headtohead.pretrained.loading import LoadedPretrained, load_pretrained
from headtohead.saved_models import model_io
from headtohead.saved_models.model_io import SavedModel

ModelBundle = SavedModel | LoadedPretrained
"""either kind of opened model; both have model, tokenizer, target, label_names, name and folder"""


def open_model(source: str | Path, *, use_initial_weights: bool = False) -> ModelBundle:
    """Open a run folder, a pretrained folder, a GGUF file, hub:owner/name, or an installed package with weights.

    If `use_initial_weights` is set, return a run folder's model as it was before training.
    """
    path = Path(source).expanduser()
    if _is_run_model(path) or use_initial_weights or (path.is_dir() and not _has_weights(path)):
        return model_io.load(path, use_initial_weights=use_initial_weights)
    return load_pretrained(source)


def _is_run_model(folder: Path) -> bool:
    """Return whether a folder contains a model saved by this package."""
    try:
        config = read_json_object(folder / "config.json")
    except RunFolderError:
        return False
    return config.get("model_type") == "headtohead" or model_io.CONFIG_KEY in config


def _has_weights(folder: Path) -> bool:
    """Return whether a folder looks like a pretrained model, so that error messages can refer to it as one."""
    return (folder / "config.json").is_file() or any(
        path.suffix in (".gguf", ".safetensors", ".bin") for path in folder.iterdir()
    )


@dataclass(frozen=True)
class FingerprintedModel:
    """A causal language model with its tokenizer, identified by a hash of its weights."""

    opened: ModelBundle
    model: Any
    tokenizer: Any
    name: str
    digest: str

    def to_dict(self) -> dict[str, Any]:
        num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        return {"name": self.name, "digest": self.digest, "parameters": num_parameters, "context": self.model.context}


def load_fingerprinted_model(source: str) -> FingerprintedModel:
    """Open a causal language model in evaluation mode and hash its weights."""
    bundle = open_model(source)
    model, tokenizer = resolve_decoder(bundle)
    assert isinstance(model, torch.nn.Module)
    return FingerprintedModel(bundle, model.eval(), tokenizer, bundle.name, compute_weights_digest(model))


def compute_weights_digest(model: torch.nn.Module) -> str:
    """Return a hash over the names and values of all tensors in the state dict."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
