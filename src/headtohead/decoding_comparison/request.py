"""The request of a decoding comparison: strategies, prompts and sampling settings."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from headtohead.decoding_comparison.results import DecodingSettings, Prompt
from headtohead.decoding_comparison.sweep import SWEEP_SAMPLES_PER_PROMPT
from headtohead.generation.strategies import Strategy, build_strategy


@dataclass(frozen=True)
class DecodingRequest:
    """The strategies, prompts and sampling settings of a decoding comparison."""

    strategies: dict[str, Strategy]
    prompts: list[Prompt]
    samples: int
    max_new_tokens: int
    seed: int
    sweep: bool

    @property
    def baseline(self) -> str:
        """The name of the strategy that the others are compared with.

        Plain sampling if it is requested, because it samples from the unmodified model distribution; otherwise the
        first strategy.
        """
        plain_sampling = build_strategy("sample")
        sampling_names = [name for name, strategy in self.strategies.items() if strategy == plain_sampling]
        return (sampling_names or list(self.strategies))[0]

    @property
    def num_sweep_samples(self) -> int:
        """Samples per prompt at each point of the sweep."""
        return min(self.samples, SWEEP_SAMPLES_PER_PROMPT)

    def describe_settings(self) -> DecodingSettings:
        """Return the settings to record. Prompts are represented by their number and digest."""
        prompts_json = json.dumps([prompt.to_json() for prompt in self.prompts])
        return DecodingSettings(
            strategies={name: strategy.to_dict() for name, strategy in self.strategies.items()},
            samples=self.samples,
            max_new_tokens=self.max_new_tokens,
            seed=self.seed,
            sweep=self.sweep,
            prompts=len(self.prompts),
            digest=hashlib.sha256(prompts_json.encode()).hexdigest()[:16],
        )
