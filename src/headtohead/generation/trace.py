"""Token by token: what the model's distribution was, what the strategy kept of it, and what was drawn, as plain JSON
values for a report. `generate.watch` gives the distributions; here they become a few tokens and two heaps of others."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.generation.detokenizer import HALF
from headtohead.generation.generate import Moment, watch
from headtohead.generation.strategies import Strategy

SHOWN = 10
"""so many of the likeliest tokens are told apart; the others are counted"""
SEARCHES = {
    "beam": "Beam search keeps whole texts and not single tokens: what it kept at a step cannot be shown.",
    "contrast": "Contrastive search weighs candidates by what was said before: what it kept at a step is not a "
    "distribution.",
}

Row = Float[Tensor, " vocab"]


def note(strategy: Strategy) -> str:
    """Why there is nothing to say about what was kept, if so."""
    return SEARCHES.get(strategy.way, "")


def trace(
    model: Any, tokenizer: Any, prompt: str, strategy: Strategy, *, max_new_tokens: int, seed: int
) -> list[dict[str, Any]]:
    """A row for each token of the first sample; the last is the stop token, if it came to one."""
    moments = watch(model, prompt, strategy, max_new_tokens=max_new_tokens, seed=seed, tokenizer=tokenizer)
    return [{"at": at, **step(tokenizer, moment, strategy)} for at, moment in enumerate(moments, start=1)]


def step(tokenizer: Any, moment: Moment, strategy: Strategy) -> dict[str, Any]:
    """One moment as plain values."""
    return _step(tokenizer, moment.model, None if note(strategy) else moment.kept, moment.token)


def _step(tokenizer: Any, before: Row, after: Row | None, drawn: int) -> dict[str, Any]:
    kept = None if after is None else after > 0
    return {
        "id": drawn,
        "token": shown(tokenizer, drawn),
        "rank": int((before > before[drawn]).sum()) + 1,
        "probability": float(before[drawn]),
        "kept": None if kept is None else int(kept.sum()),
        "mass": None if kept is None else min(1.0, float(before[kept].double().sum())),
        "after": None if after is None else float(after[drawn]),
        "top": _top(tokenizer, before, after, drawn),
    }


def _top(tokenizer: Any, before: Row, after: Row | None, drawn: int) -> list[dict[str, Any]]:
    """The likeliest tokens one by one, the drawn one wherever it ranks, and the others in two heaps: kept, dropped."""
    ids = before.topk(min(SHOWN, len(before))).indices.tolist()
    if drawn not in ids:
        ids.append(drawn)
    made = [
        {
            "token": shown(tokenizer, one),
            "count": 1,
            "probability": float(before[one]),
            "kept": after is None or bool(after[one] > 0),
            "after": None if after is None else float(after[one]),
            "drawn": one == drawn,
        }
        for one in ids
    ]
    rest = torch.ones_like(before, dtype=torch.bool)
    rest[ids] = False
    for is_kept in (True, False):
        heap = rest & ((after > 0) == is_kept) if after is not None else rest & is_kept
        if bool(heap.any()):
            made.append(
                {
                    "token": None,
                    "count": int(heap.sum()),
                    "probability": float(before[heap].double().sum()),
                    "kept": is_kept,
                    "after": None if after is None else float(after[heap].double().sum()),
                    "drawn": False,
                }
            )
    return made


def shown(tokenizer: Any, token: int) -> str:
    """The token as text; one that is no text by itself (a stop, half a character) as it stands in the vocabulary."""
    text: str = tokenizer.decode([token])
    return text if text and HALF not in text else str(tokenizer.token(token))
