"""What a comparison of strategies is made of: the settings, and a language model that is known by its weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

import torch

from headtohead.decoding_comparison.compare import Prompt
from headtohead.experiment.open_model import Opened, open_model
from headtohead.generation.request import decoder_of
from headtohead.generation.strategies import Strategy, strategy
from headtohead.generation.strategy_parsing import SWEPT


@dataclass(frozen=True)
class Asked:
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
        return next((name for name, one in self.strategies.items() if one == strategy("sample")), self.first)

    @property
    def first(self) -> str:
        return next(iter(self.strategies))

    @property
    def swept(self) -> int:
        return min(self.samples, SWEPT)

    def as_row(self) -> dict[str, Any]:
        texts = json.dumps([asdict(prompt) for prompt in self.prompts])
        return {
            "strategies": {name: one.as_dict() for name, one in self.strategies.items()},
            "samples": self.samples,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "sweep": self.sweep,
            "prompts": len(self.prompts),
            "digest": hashlib.sha256(texts.encode()).hexdigest()[:16],
        }


@dataclass(frozen=True)
class Writer:
    """A language model at work, known by the hash of its weights."""

    opened: Opened
    model: Any
    tokenizer: Any
    name: str
    digest: str

    def as_row(self) -> dict[str, Any]:
        parameters = sum(one.numel() for one in self.model.parameters())
        return {"name": self.name, "digest": self.digest, "parameters": parameters, "context": self.model.context}


def open_writer(where: str) -> Writer:
    opened = open_model(where)
    model, tokenizer = decoder_of(opened)
    assert isinstance(model, torch.nn.Module)
    return Writer(opened, model.eval(), tokenizer, opened.name, digest(model))


def digest(model: torch.nn.Module) -> str:
    """A hash of every tensor and its name."""
    found = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy())
    return found.hexdigest()
