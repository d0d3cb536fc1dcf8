"""Token by token: what the model's distribution was, what the strategy kept of it, and what was drawn, as plain JSON
values for a report. `generate.watch` gives the distributions; here they become a few tokens and two heaps of others."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.generation.detokenizer import REPLACEMENT_CHARACTER
from headtohead.generation.generate import TracedStep, trace_generation
from headtohead.generation.strategies import Strategy

NUM_TOP_TOKENS = 10
"""so many of the likeliest tokens are told apart; the others are counted"""
SEARCH_NOTES = {
    "beam": "Beam search keeps whole texts and not single tokens: what it kept at a step cannot be shown.",
    "contrast": "Contrastive search weighs candidates by what was said before: what it kept at a step is not a "
    "distribution.",
}

VocabProbs = Float[Tensor, " vocab"]


def explain_missing_distribution(strategy: Strategy) -> str:
    """Why there is nothing to say about what was kept, if so."""
    return SEARCH_NOTES.get(strategy.way, "")


def build_trace(
    model: Any, tokenizer: Any, prompt: str, strategy: Strategy, *, max_new_tokens: int, seed: int
) -> list[dict[str, Any]]:
    """A row for each token of the first sample; the last is the stop token, if it came to one."""
    moments = trace_generation(model, prompt, strategy, max_new_tokens=max_new_tokens, seed=seed, tokenizer=tokenizer)
    return [{"at": at, **build_step_record(tokenizer, moment, strategy)} for at, moment in enumerate(moments, start=1)]


def build_step_record(tokenizer: Any, traced_step: TracedStep, strategy: Strategy) -> dict[str, Any]:
    """One moment as plain values."""
    return _summarize_step(
        tokenizer,
        traced_step.model,
        None if explain_missing_distribution(strategy) else traced_step.kept,
        traced_step.token,
    )


def _summarize_step(
    tokenizer: Any, model_probs: VocabProbs, strategy_probs: VocabProbs | None, token_id: int
) -> dict[str, Any]:
    kept = None if strategy_probs is None else strategy_probs > 0
    return {
        "id": token_id,
        "token": format_token(tokenizer, token_id),
        "rank": int((model_probs > model_probs[token_id]).sum()) + 1,
        "probability": float(model_probs[token_id]),
        "kept": None if kept is None else int(kept.sum()),
        "mass": None if kept is None else min(1.0, float(model_probs[kept].double().sum())),
        "after": None if strategy_probs is None else float(strategy_probs[token_id]),
        "top": _build_top_tokens(tokenizer, model_probs, strategy_probs, token_id),
    }


def _build_top_tokens(
    tokenizer: Any, model_probs: VocabProbs, strategy_probs: VocabProbs | None, token_id: int
) -> list[dict[str, Any]]:
    """The likeliest tokens one by one, the drawn one wherever it ranks, and the others in two heaps: kept, dropped."""
    ids = model_probs.topk(min(NUM_TOP_TOKENS, len(model_probs))).indices.tolist()
    if token_id not in ids:
        ids.append(token_id)
    made = [
        {
            "token": format_token(tokenizer, one),
            "count": 1,
            "probability": float(model_probs[one]),
            "kept": strategy_probs is None or bool(strategy_probs[one] > 0),
            "after": None if strategy_probs is None else float(strategy_probs[one]),
            "drawn": one == token_id,
        }
        for one in ids
    ]
    rest = torch.ones_like(model_probs, dtype=torch.bool)
    rest[ids] = False
    for is_kept in (True, False):
        heap = rest & ((strategy_probs > 0) == is_kept) if strategy_probs is not None else rest & is_kept
        if bool(heap.any()):
            made.append(
                {
                    "token": None,
                    "count": int(heap.sum()),
                    "probability": float(model_probs[heap].double().sum()),
                    "kept": is_kept,
                    "after": None if strategy_probs is None else float(strategy_probs[heap].double().sum()),
                    "drawn": False,
                }
            )
    return made


def format_token(tokenizer: Any, token_id: int) -> str:
    """The token as text; one that is no text by itself (a stop, half a character) as it stands in the vocabulary."""
    text: str = tokenizer.decode([token_id])
    return text if text and REPLACEMENT_CHARACTER not in text else str(tokenizer.id_to_token(token_id))
