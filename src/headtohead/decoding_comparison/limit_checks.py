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

from headtohead.generation.logits_processors import distribution
from headtohead.generation.strategies import Strategy, strategy
from headtohead.generation.strategy_parsing import label

SMALL = 1e-6
"""how near a limit is gone"""
EQUAL = 1e-6
"""the total variation up to which two distributions are the same"""
WRITTEN = 8
"""so many prompts are continued for each law"""

Write = Callable[[Strategy, Sequence[int]], list[list[int]]]
"""continues these prompts, given by number, once each"""


@dataclass(frozen=True)
class Law:
    """Two strategies that must be one."""

    law: str
    one: Strategy
    other: Strategy


def laws(vocab: int) -> list[Law]:
    greedy, sample = strategy("greedy"), strategy("sample")
    return [
        Law("temperature to 0 is greedy", strategy("temperature", temperature=SMALL), greedy),
        Law("k = 1 is greedy", strategy("top-k", k=1), greedy),
        Law("p to 0 is greedy", strategy("top-p", p=SMALL), greedy),
        Law("one beam is greedy", strategy("beam", beams=1), greedy),
        Law("temperature 1 is plain sampling", strategy("temperature", temperature=1.0), sample),
        Law("k = vocabulary is plain sampling", strategy("top-k", k=vocab), sample),
        Law("p = 1 is plain sampling", strategy("top-p", p=1.0), sample),
    ]


@torch.inference_mode()
def check(model: Any, prompts: Sequence[Sequence[int]], write: Write) -> list[dict[str, Any]]:
    """Every law on this model: what was tried, what was found, whether it holds."""
    logits = [model.next_logits(torch.tensor([list(ids)[-int(model.context) :]]))[0].float() for ids in prompts]
    numbers = list(range(min(WRITTEN, len(prompts))))
    made: dict[Strategy, list[list[int]]] = {}
    rows = []
    for law in laws(len(logits[0])):
        for one in (law.one, law.other):
            if one not in made:
                made[one] = write(one, numbers)
        same = sum(a == b for a, b in zip(made[law.one], made[law.other], strict=True))
        tokens = sum(map(len, made[law.other]))
        tried = f"{label(law.one)}, {_count(len(numbers), 'continuation')} of {tokens:,} tokens"
        found = f"{same} of {len(numbers)} the same, token for token"
        apart = _furthest(logits, law)
        if apart is not None:
            tried += f", {_count(len(prompts), 'distribution')}"
            found += "; distributions equal" if apart == 0 else f"; distributions at most {apart:.1g} apart"
        passed = same == len(numbers) and (apart is None or apart <= EQUAL)
        rows.append({"law": law.law, "tried": tried, "found": found, "passed": passed})
    return rows


def _furthest(logits: Sequence[Float[Tensor, " vocab"]], law: Law) -> float | None:
    """The largest total variation between what the two draw from; None where one of them is a search."""
    apart = 0.0
    for row in logits:
        one, other = (_drawn_from(row[None], each) for each in (law.one, law.other))
        if one is None or other is None:
            return None
        apart = max(apart, float((one - other).abs().sum()) / 2)
    return apart


def _drawn_from(logits: Float[Tensor, "1 vocab"], one: Strategy) -> Float[Tensor, "1 vocab"] | None:
    if one.way == "likeliest":
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).to(logits.dtype)
    return distribution(logits, one.steps) if one.way == "draw" else None


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
