"""The settings of a comparison of decoding strategies."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from headtohead.decoding_comparison.compare import Prompt
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
