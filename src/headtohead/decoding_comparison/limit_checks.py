"""Check that decoding strategies agree in the limit, on a real model and real prompts.

A temperature or p that tends to 0, k = 1 and a single beam are equivalent to greedy decoding; temperature 1, k =
vocabulary size and p = 1 are equivalent to plain sampling. Equivalent strategies have the same distribution after every
prompt and, with the same random numbers, generate the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.decoding_comparison.results import LimitCheck
from headtohead.generation.sampling import compute_sampling_probs
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.generation.strategy_parsing import format_strategy

NEAR_ZERO = 1e-6
"""value used for a temperature or p that tends to 0"""
MAX_TOTAL_VARIATION = 1e-6
"""total variation distance up to which two distributions are considered equal"""
MAX_CONTINUED_PROMPTS = 8
"""prompts continued per invariant"""

ContinuePrompts = Callable[[Strategy, Sequence[int]], list[list[int]]]
"""(strategy, prompt indices) -> token ids of one continuation per prompt"""


@dataclass(frozen=True)
class LimitInvariant:
    """A strategy at a limit, and the strategy that it must equal."""

    description: str
    strategy: Strategy
    expected: Strategy


def build_limit_invariants(vocab_size: int) -> list[LimitInvariant]:
    """Return the invariants to check for a vocabulary of this size."""
    greedy, sample = build_strategy("greedy"), build_strategy("sample")
    return [
        LimitInvariant("temperature to 0 is greedy", build_strategy("temperature", temperature=NEAR_ZERO), greedy),
        LimitInvariant("k = 1 is greedy", build_strategy("top-k", k=1), greedy),
        LimitInvariant("p to 0 is greedy", build_strategy("top-p", p=NEAR_ZERO), greedy),
        LimitInvariant("one beam is greedy", build_strategy("beam", beams=1), greedy),
        LimitInvariant("temperature 1 is plain sampling", build_strategy("temperature", temperature=1.0), sample),
        LimitInvariant("k = vocabulary is plain sampling", build_strategy("top-k", k=vocab_size), sample),
        LimitInvariant("p = 1 is plain sampling", build_strategy("top-p", p=1.0), sample),
    ]


@torch.inference_mode()
def check_limit_invariants(
    model: Any, prompt_ids: Sequence[Sequence[int]], continue_prompts: ContinuePrompts
) -> list[LimitCheck]:
    """Check every limit invariant of decoding strategies on a model.

    `prompt_ids` are the encoded prompts; `continue_prompts(strategy, indices)` generates one continuation for each.
    """
    logits_by_prompt = [
        model.next_token_logits(torch.tensor([list(ids)[-int(model.context) :]]))[0].float() for ids in prompt_ids
    ]
    prompt_indices = list(range(min(MAX_CONTINUED_PROMPTS, len(prompt_ids))))
    continuations: dict[Strategy, list[list[int]]] = {}
    checks = []
    for invariant in build_limit_invariants(len(logits_by_prompt[0])):
        for strategy in (invariant.strategy, invariant.expected):
            if strategy not in continuations:
                continuations[strategy] = continue_prompts(strategy, prompt_indices)
        num_equal = sum(
            a == b for a, b in zip(continuations[invariant.strategy], continuations[invariant.expected], strict=True)
        )
        num_tokens = sum(map(len, continuations[invariant.expected]))
        continuations_text = _format_count(len(prompt_indices), "continuation")
        procedure = f"{format_strategy(invariant.strategy)}, {continuations_text} of {num_tokens:,} tokens"
        observation = f"{num_equal} of {len(prompt_indices)} the same, token for token"
        distance = _compute_max_total_variation(logits_by_prompt, invariant)
        if distance is not None:
            procedure += f", {_format_count(len(prompt_ids), 'distribution')}"
            observation += "; distributions equal" if distance == 0 else f"; distributions at most {distance:.1g} apart"
        is_passed = num_equal == len(prompt_indices) and (distance is None or distance <= MAX_TOTAL_VARIATION)
        checks.append(
            LimitCheck(invariant=invariant.description, procedure=procedure, observation=observation, passed=is_passed)
        )
    return checks


def _compute_max_total_variation(
    logits_by_prompt: Sequence[Float[Tensor, " vocab"]], invariant: LimitInvariant
) -> float | None:
    """Return the largest total variation distance between the two strategies' distributions.

    Returns None if one of the strategies is a search, which has no distribution.
    """
    strategies = (invariant.strategy, invariant.expected)
    if any(strategy.mode not in ("greedy", "sample") for strategy in strategies):
        return None
    pairs = (
        [_compute_strategy_probs(logits[None], strategy) for strategy in strategies] for logits in logits_by_prompt
    )
    return max((float((probs - expected).abs().sum()) / 2 for probs, expected in pairs), default=0.0)


def _compute_strategy_probs(logits: Float[Tensor, "1 vocab"], strategy: Strategy) -> Float[Tensor, "1 vocab"]:
    """Return the distribution that a strategy samples from; one-hot if it is greedy."""
    if strategy.mode == "greedy":
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return compute_sampling_probs(logits, strategy.logits_processors)


def _format_count(number: int, noun: str) -> str:
    """Return a number with a noun in singular or plural."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
