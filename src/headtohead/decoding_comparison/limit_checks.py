"""The limits of the strategies as laws, tried on a real model and real prompts.

Temperature to 0, k = 1, p to 0 and a single beam are greedy decoding; temperature 1, k = the vocabulary and p = 1 are
plain sampling. Two strategies that are the same give the same distribution after every prompt and, with the same random
numbers, the same continuations, token for token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.generation.logits_processors import logits_to_probs
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.generation.strategy_parsing import format_strategy

NEAR_ZERO = 1e-6
"""how near a limit is gone"""
MAX_TOTAL_VARIATION = 1e-6
"""the total variation up to which two distributions are the same"""
MAX_CONTINUED_PROMPTS = 8
"""so many prompts are continued for each law"""

ContinuePrompts = Callable[[Strategy, Sequence[int]], list[list[int]]]
"""continues these prompts, given by number, once each"""


@dataclass(frozen=True)
class LimitInvariant:
    """Two strategies that must be one."""

    description: str
    one: Strategy
    other: Strategy


def build_limit_invariants(vocab_size: int) -> list[LimitInvariant]:
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
) -> list[dict[str, Any]]:
    """Every law on this model: what was tried, what was found, whether it holds."""
    logits = [
        model.next_token_logits(torch.tensor([list(ids)[-int(model.context) :]]))[0].float() for ids in prompt_ids
    ]
    numbers = list(range(min(MAX_CONTINUED_PROMPTS, len(prompt_ids))))
    made: dict[Strategy, list[list[int]]] = {}
    rows = []
    for law in build_limit_invariants(len(logits[0])):
        for one in (law.one, law.other):
            if one not in made:
                made[one] = continue_prompts(one, numbers)
        same = sum(a == b for a, b in zip(made[law.one], made[law.other], strict=True))
        tokens = sum(map(len, made[law.other]))
        tried = f"{format_strategy(law.one)}, {_format_count(len(numbers), 'continuation')} of {tokens:,} tokens"
        found = f"{same} of {len(numbers)} the same, token for token"
        apart = _compute_max_total_variation(logits, law)
        if apart is not None:
            tried += f", {_format_count(len(prompt_ids), 'distribution')}"
            found += "; distributions equal" if apart == 0 else f"; distributions at most {apart:.1g} apart"
        passed = same == len(numbers) and (apart is None or apart <= MAX_TOTAL_VARIATION)
        rows.append({"law": law.description, "tried": tried, "found": found, "passed": passed})
    return rows


def _compute_max_total_variation(logits: Sequence[Float[Tensor, " vocab"]], invariant: LimitInvariant) -> float | None:
    """The largest total variation between what the two draw from; None where one of them is a search."""
    apart = 0.0
    for row in logits:
        one, other = (_compute_sampling_distribution(row[None], each) for each in (invariant.one, invariant.other))
        if one is None or other is None:
            return None
        apart = max(apart, float((one - other).abs().sum()) / 2)
    return apart


def _compute_sampling_distribution(
    logits: Float[Tensor, "1 vocab"], strategy: Strategy
) -> Float[Tensor, "1 vocab"] | None:
    if strategy.mode == "greedy":
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return logits_to_probs(logits, strategy.logits_processors) if strategy.mode == "sample" else None


def _format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
