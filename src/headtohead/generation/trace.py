"""Trace a continuation token by token: the distribution of the model, the tokens kept by the strategy, and the selected
token.

`trace_generation` yields the distributions; `build_trace` reduces them to JSON values for a report.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.generation.beam_search import beam_search
from headtohead.generation.contrastive_search import contrastive_search
from headtohead.generation.detokenizer import REPLACEMENT_CHARACTER
from headtohead.generation.generate import build_batch_rng
from headtohead.generation.job import (
    FinishReason,
    GenerationJob,
    SequenceState,
    build_job,
    check_search_supported,
)
from headtohead.generation.logits_processors import GenerationState, LogitsProcessor
from headtohead.generation.sampling import compute_sampling_probs, select_next_tokens
from headtohead.generation.session import DecodingSession, evaluation_mode, warn_context_overflow
from headtohead.generation.strategies import Strategy

NUM_TOP_TOKENS = 10
"""most likely tokens listed individually; the others are aggregated"""
SEARCH_NOTES = {
    "beam": "Beam search ranks whole sequences, so there is no distribution over single tokens to show.",
    "contrastive": "Contrastive search ranks candidates by similarity to the text so far, which is not a distribution.",
}

VocabProbs = Float[Tensor, " vocab"]


@dataclass(frozen=True)
class TracedStep:
    """One step of a continuation."""

    token_id: int
    """the selected token"""
    model_probs: VocabProbs
    """the model's distribution"""
    strategy_probs: VocabProbs
    """the renormalized distribution after the strategy; for searches, equal to the model's"""
    text: str = ""
    """text that became available at this step"""
    finish_reason: FinishReason | None = None
    has_overflowed: bool = False
    """whether the sequence has exceeded the context"""


def trace_generation(
    model: Any,
    prompt: str | Sequence[int],
    strategy: str | Strategy | Sequence[LogitsProcessor] = "sample",
    *,
    sample_index: int = 0,
    **options: Any,
) -> Iterator[TracedStep]:
    """Yield the steps of the continuation that `generate` returns for this sample, including the stop token.

    Takes `max_new_tokens`, `seed`, `tokenizer` and `use_chat_template` as `generate` does. Steps are yielded as they
    are computed, except for beam search, which runs first.
    """
    job = build_job(
        model,
        [prompt] if isinstance(prompt, str) else [list(prompt)],
        strategy,
        num_samples=sample_index + 1,
        batch_size=sample_index + 1,
        is_streaming=True,
        **options,
    )
    sequence = job.sequences[sample_index]
    with evaluation_mode(job.model):
        session, has_warned = DecodingSession(job.model, [sequence.prompt_ids]), False
        for token_id in _iter_traced_token_ids(job, sequence, session):
            logits = session.logits.float()
            strategy_probs = _compute_strategy_probs(job, logits, session, len(sequence.prompt_ids))
            sequence.append_token(token_id, job.stop_token_ids, job.max_new_tokens)
            if session.has_overflowed and not has_warned:
                has_warned = True
                warn_context_overflow(job.model)
            text, probs = sequence.pop_pending_text(), logits.softmax(-1)[0]
            yield TracedStep(token_id, probs, strategy_probs[0], text, sequence.finish_reason, session.has_overflowed)
            if sequence.finish_reason is not None:
                return
            session.append_tokens([token_id])


def _iter_traced_token_ids(job: GenerationJob, sequence: SequenceState, session: DecodingSession) -> Iterator[int]:
    """Yield the tokens of the continuation to trace, with any strategy; the session must contain the previous ones."""
    check_search_supported(job)
    search_arguments = (job.model, sequence.prompt_ids, job.strategy, job.stop_token_ids)
    if job.strategy.mode == "beam":
        hypothesis = beam_search(*search_arguments, job.max_new_tokens)[sequence.sample_index]
        yield from hypothesis.token_ids
        yield from job.stop_token_ids[:1] if hypothesis.has_stop_token else ()
    elif job.strategy.mode == "contrastive":
        yield from (token_id for token_id, _ in contrastive_search(*search_arguments))
    else:
        rng, prompt_lengths = build_batch_rng(job, [sequence], session), [len(sequence.prompt_ids)]
        for step in count():
            yield from select_next_tokens(job.strategy, session, prompt_lengths, job.stop_token_ids, rng, step)


@torch.no_grad()
def _compute_strategy_probs(
    job: GenerationJob, logits: Tensor, session: DecodingSession, prompt_length: int
) -> Float[Tensor, "1 vocab"]:
    """Return the distribution that a trace shows for the strategy, (1, vocab); one-hot if it is greedy."""
    state = GenerationState(session.sequences, [prompt_length], job.stop_token_ids)
    probs = compute_sampling_probs(logits, job.strategy.logits_processors, state)
    if job.strategy.mode == "greedy":
        return torch.nn.functional.one_hot(probs.argmax(-1), probs.shape[-1]).float()
    return probs


def explain_missing_distribution(strategy: Strategy) -> str:
    """Return the reason why a strategy has no per-token distribution, or an empty string if it has one."""
    return SEARCH_NOTES.get(strategy.mode, "")


def build_trace(
    model: Any, tokenizer: Any, prompt: str, strategy: Strategy, *, max_new_tokens: int, seed: int
) -> list[dict[str, Any]]:
    """Return the trace of the first sample as JSON records, one per token, including the stop token."""
    steps = trace_generation(model, prompt, strategy, max_new_tokens=max_new_tokens, seed=seed, tokenizer=tokenizer)
    return [
        {"step": number, **build_trace_record(tokenizer, step, strategy)} for number, step in enumerate(steps, start=1)
    ]


def build_trace_record(tokenizer: Any, traced_step: TracedStep, strategy: Strategy) -> dict[str, Any]:
    """Return one step of a trace as a JSON record: the selected token and the most likely ones."""
    model_probs, token_id = traced_step.model_probs, traced_step.token_id
    strategy_probs = None if explain_missing_distribution(strategy) else traced_step.strategy_probs
    is_kept_token = None if strategy_probs is None else strategy_probs > 0
    return {
        "id": token_id,
        "token": get_token_text(tokenizer, token_id),
        "rank": int((model_probs > model_probs[token_id]).sum()) + 1,
        "probability": float(model_probs[token_id]),
        "kept": None if is_kept_token is None else int(is_kept_token.sum()),
        "mass": None if is_kept_token is None else min(1.0, float(model_probs[is_kept_token].double().sum())),
        "after": None if strategy_probs is None else float(strategy_probs[token_id]),
        "top": _build_top_tokens(tokenizer, model_probs, strategy_probs, token_id),
    }


def _build_top_tokens(
    tokenizer: Any, model_probs: VocabProbs, strategy_probs: VocabProbs | None, token_id: int
) -> list[dict[str, Any]]:
    """Return the tokens that a trace shows: the most likely, the selected one, and the rest as kept and dropped."""
    listed_ids = model_probs.topk(min(NUM_TOP_TOKENS, len(model_probs))).indices.tolist()
    if token_id not in listed_ids:
        listed_ids.append(token_id)
    records = [
        {
            "token": get_token_text(tokenizer, listed_id),
            "count": 1,
            "probability": float(model_probs[listed_id]),
            "kept": strategy_probs is None or bool(strategy_probs[listed_id] > 0),
            "after": None if strategy_probs is None else float(strategy_probs[listed_id]),
            "drawn": listed_id == token_id,
        }
        for listed_id in listed_ids
    ]
    is_unlisted = torch.ones_like(model_probs, dtype=torch.bool)
    is_unlisted[listed_ids] = False
    for is_kept in (True, False):
        in_group = (
            is_unlisted & ((strategy_probs > 0) == is_kept) if strategy_probs is not None else is_unlisted & is_kept
        )
        if bool(in_group.any()):
            after = None if strategy_probs is None else float(strategy_probs[in_group].double().sum())
            probabilities = {"probability": float(model_probs[in_group].double().sum()), "after": after}
            records.append(
                {"token": None, "count": int(in_group.sum()), **probabilities, "kept": is_kept, "drawn": False}
            )
    return records


def get_token_text(tokenizer: Any, token_id: int) -> str:
    """Return the text of one token of a trace, or its vocabulary entry if it has no text, such as a stop token."""
    text: str = tokenizer.decode([token_id])
    return text if text and REPLACEMENT_CHARACTER not in text else str(tokenizer.id_to_token(token_id))
