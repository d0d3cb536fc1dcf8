"""Identify opened models by a hash of their weights: a path does not tell whether two results are of the same model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from headtohead.generation.job import resolve_decoder
from headtohead.saved_models.open_model import ModelBundle, open_model


@dataclass(frozen=True)
class FingerprintedModel:
    """A causal language model with its tokenizer, identified by a hash of its weights."""

    bundle: ModelBundle
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
    """Return the fingerprint of a model in memory: a hash over the names and values of all tensors."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return digest.hexdigest()
