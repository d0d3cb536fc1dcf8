"""What a comparison of strategies is made of: the settings, and a language model that is known by its weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from headtohead.decoding_comparison.compare import Prompt
from headtohead.experiment.open_model import ModelBundle, open_model
from headtohead.generation.request import resolve_decoder
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.generation.strategy_parsing import SWEEP_SAMPLES_PER_PROMPT


@dataclass(frozen=True)
class DecodingRequest:
    """What a comparison is made of."""

    strategies: dict[str, Strategy]
    prompts: list[Prompt]
    samples: int
    max_new_tokens: int
    seed: int
    sweep: bool

    @property
    def baseline(self) -> str:
        """What the others are held against: plain sampling, which is the model as it is, or else the first."""
        return next((name for name, one in self.strategies.items() if one == build_strategy("sample")), self.first)

    @property
    def first(self) -> str:
        return next(iter(self.strategies))

    @property
    def num_sweep_samples(self) -> int:
        return min(self.samples, SWEEP_SAMPLES_PER_PROMPT)

    def to_dict(self) -> dict[str, Any]:
        texts = json.dumps([asdict(prompt) for prompt in self.prompts])
        return {
            "strategies": {name: one.to_dict() for name, one in self.strategies.items()},
            "samples": self.samples,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "sweep": self.sweep,
            "prompts": len(self.prompts),
            "digest": hashlib.sha256(texts.encode()).hexdigest()[:16],
        }


@dataclass(frozen=True)
class FingerprintedModel:
    """A language model at work, known by the hash of its weights."""

    opened: ModelBundle
    model: Any
    tokenizer: Any
    name: str
    digest: str

    def to_dict(self) -> dict[str, Any]:
        parameters = sum(one.numel() for one in self.model.parameters())
        return {"name": self.name, "digest": self.digest, "parameters": parameters, "context": self.model.context}


def load_fingerprinted_model(source: str) -> FingerprintedModel:
    opened = open_model(source)
    model, tokenizer = resolve_decoder(opened)
    assert isinstance(model, torch.nn.Module)
    return FingerprintedModel(opened, model.eval(), tokenizer, opened.name, compute_weights_digest(model))


def compute_weights_digest(model: torch.nn.Module) -> str:
    """A hash of every tensor and its name."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
