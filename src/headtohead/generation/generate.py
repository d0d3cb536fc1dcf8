"""Generation as a ladder of small functions: prefill and step (in `reader`), then stream, then generate.

    generate(model, ["Once upon a time"], "top-p", samples=10, seed=0)

Random numbers are a function of (seed, prompt, sample), so a continuation does not depend on what else is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from headtohead.errors import ModelError
from headtohead.generation import beam_search
from headtohead.generation.counter_rng import CounterRNG, derive_continuation_key
from headtohead.generation.detokenizer import decode_continuation
from headtohead.generation.logits_processors import GenerationState, LogitsProcessor, logits_to_probs
from headtohead.generation.request import (
    FinishReason,
    GenerationRequest,
    Prompts,
    SequenceState,
    build_request,
    resolve_decoder,
)
from headtohead.generation.sampling import sample_tokens, select_greedy_tokens
from headtohead.generation.session import WINDOW_SHIFT_DIVISOR, DecodingSession
from headtohead.generation.strategies import Strategy, resolve_strategy
from headtohead.nn.protocol import Decoder
from headtohead.nn.transformer import Transformer

DEFAULT_BATCH_SIZE = 32
"""continuations that are written side by side"""


class ContextOverflowWarning(UserWarning):
    """A text has outgrown the model's context, and its beginning is forgotten."""


@dataclass(frozen=True)
class Continuation:
    """What was written after a prompt."""

    prompt: int
    """which prompt, counted from 0"""
    sample: int
    ids: tuple[int, ...]
    """the new tokens, without the stop"""
    text: str
    ended: FinishReason
    """at a stop token, a stop string, or the longest length"""


@dataclass(frozen=True)
class ContinuationChunk:
    """A piece of a continuation, as it is made."""

    prompt: int
    sample: int
    ids: tuple[int, ...]
    text: str
    ended: FinishReason | None = None


# ---- the two upper rungs


def generate(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[LogitsProcessor] = "sample",
    *,
    num_samples: int = 1,
    max_new_tokens: int = 50,
    seed: int = 0,
    stop: str | int | Sequence[str | int] = (),
    tokenizer: Any = None,
    use_chat_template: bool = False,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> list[Continuation]:
    """Continue each prompt `samples` times; prompts one after the other, and the samples of each in order.

    `model` is what `load_model` gives, or a bare model, then with a `tokenizer` or prompts that are token ids. A text
    ends at the model's stop token, at a `stop` of yours (a string, or a token id), or after `max_new_tokens`.
    """
    job = build_request(
        model,
        prompts,
        strategy,
        num_samples,
        max_new_tokens,
        seed,
        stop,
        tokenizer,
        use_chat_template,
        batch_size,
        is_streaming=False,
    )
    for _ in _run_request(job):
        pass
    return [_build_continuation(row, job.tokenizer) for row in job.rows]


def stream_generate(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[LogitsProcessor] = "sample",
    *,
    num_samples: int = 1,
    max_new_tokens: int = 50,
    seed: int = 0,
    stop: str | int | Sequence[str | int] = (),
    tokenizer: Any = None,
    use_chat_template: bool = False,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> Iterator[ContinuationChunk]:
    """The same as an iterator that gives pieces of text as they are made; those of one continuation, joined, are its
    text."""
    job = build_request(
        model,
        prompts,
        strategy,
        num_samples,
        max_new_tokens,
        seed,
        stop,
        tokenizer,
        use_chat_template,
        batch_size,
        is_streaming=True,
    )
    for told in _run_request(job):
        for row, new in told:
            if row.text or row.ended or job.tokenizer is None:
                text, row.text = row.text, ""
                yield ContinuationChunk(row.prompt, row.sample, tuple(new), text, row.ended)


def _build_continuation(sequence: SequenceState, tokenizer: Any) -> Continuation:
    assert sequence.ended is not None
    if sequence.detokenizer is not None:
        text = sequence.detokenizer.text
    else:
        text = "" if tokenizer is None else decode_continuation(tokenizer, sequence.ids, sequence.made)
    return Continuation(sequence.prompt, sequence.sample, tuple(sequence.made), text, sequence.ended)


# ---- the loop


def _run_request(request: GenerationRequest) -> Iterator[list[tuple[SequenceState, list[int]]]]:
    """Step by step the rows that have got new tokens, and which, until all have ended."""
    model = request.model
    assert isinstance(model, torch.nn.Module)
    if training := model.training:
        model.eval()
    warned = False
    try:
        for rows in _iter_batches(request):
            for new, slid in _generate_batch(request, rows):
                if slid and not warned:
                    warned = True
                    _warn_context_overflow(model)
                yield new
    finally:
        if training:
            model.train()


StepUpdate = tuple[list[tuple[SequenceState, list[int]]], bool]
"""rows with their new tokens, and whether a text has outgrown the context"""


def _generate_batch(request: GenerationRequest, sequences: list[SequenceState]) -> Iterator[StepUpdate]:
    _check_search_supported(request)
    if request.strategy.way == "beam":
        yield from _generate_with_beam_search(request, sequences)
    elif request.strategy.way == "contrast":
        for row in sequences:
            yield from _generate_with_contrastive_search(request, row)
    else:
        yield from _generate_token_by_token(request, sequences)


def _generate_token_by_token(request: GenerationRequest, sequences: list[SequenceState]) -> Iterator[StepUpdate]:
    """Token by token, all rows at once; a row that has ended leaves the batch."""
    reader = DecodingSession(request.model, [row.ids for row in sequences])
    chance = CounterRNG(
        [derive_continuation_key(request.seed, row.ids, row.sample) for row in sequences], reader.logits.shape[-1]
    )
    prompts, made = [len(row.ids) for row in sequences], 0
    while sequences:
        tokens = select_next_tokens(request.strategy, reader, prompts, request.stop_ids, chance, made)
        for row, token in zip(sequences, tokens, strict=True):
            row.take(token, request.stop_ids, request.max_new_tokens)
        yield [(row, [token]) for row, token in zip(sequences, tokens, strict=True)], reader.has_overflowed
        going = [i for i, row in enumerate(sequences) if row.ended is None]
        if len(going) < len(sequences):
            if not going:
                return
            sequences, tokens, prompts = (
                [sequences[i] for i in going],
                [tokens[i] for i in going],
                [prompts[i] for i in going],
            )
            reader.select(going)
            chance.select(going)
        reader.append_tokens(tokens)
        made += 1


@torch.inference_mode()
def select_next_tokens(
    strategy: Strategy,
    session: DecodingSession,
    prompt_lengths: Sequence[int],
    stop_token_ids: tuple[int, ...],
    rng: CounterRNG,
    step: int,
) -> list[int]:
    """The next token of each row."""
    seen = GenerationState(session.rows, prompt_lengths, stop_token_ids)
    if strategy.way == "likeliest":
        return select_greedy_tokens(session.logits, strategy.steps, seen)
    return sample_tokens(session.logits, strategy.steps, seen, rng.at(step))


def _generate_with_beam_search(request: GenerationRequest, sequences: list[SequenceState]) -> Iterator[StepUpdate]:
    """The beams of a prompt are its samples, best first."""
    found: dict[int, list[beam_search.BeamHypothesis]] = {}
    for row in sequences:
        if row.prompt not in found:
            found[row.prompt] = beam_search.beam_search(
                request.model, row.ids, request.strategy, request.stop_ids, request.max_new_tokens
            )
        best = found[row.prompt][row.sample]
        for token in best.ids:
            row.take(token, (), request.max_new_tokens)
            if row.ended is not None:
                break
        if row.ended is None:
            row.ended = "token"
            row.text += row.detokenizer.finish() if row.detokenizer is not None else ""
        yield [(row, list(row.made))], len(row.ids) + len(best.ids) > request.model.context


def _generate_with_contrastive_search(request: GenerationRequest, sequence: SequenceState) -> Iterator[StepUpdate]:
    for token, slid in beam_search.contrastive_search(request.model, sequence.ids, request.strategy, request.stop_ids):
        sequence.take(token, request.stop_ids, request.max_new_tokens)
        yield [(sequence, [token])], slid
        if sequence.ended is not None:
            return


def _iter_batches(request: GenerationRequest) -> Iterator[list[SequenceState]]:
    """Rows that may stand side by side: of one length where the model cannot be told of padding."""
    rows = sorted(request.rows, key=lambda row: len(row.ids))
    pads = request.model.can_pad
    size = request.batch if pads or not _has_batch_interaction(request.model) else 1
    while rows:
        here = rows[:size]
        if not pads:
            here = [row for row in here if len(row.ids) == len(here[0].ids)]
        yield here
        rows = rows[len(here) :]


def _has_batch_interaction(model: Decoder) -> bool:
    """Whether rows of a batch see each other, so that a text must be written by itself."""
    return isinstance(model, Transformer) and "batch-independence" in model.violates


def _warn_context_overflow(model: Decoder) -> None:
    forgotten = max(1, model.context // WINDOW_SHIFT_DIVISOR)
    warnings.warn(
        f"the text is longer than the model's context of {model.context} tokens: its oldest tokens are forgotten, "
        f"{forgotten} at a time",
        ContextOverflowWarning,
        stacklevel=4,
    )


# ---- smaller doors


def sample_continuation_ids(
    model: Decoder, prompt_ids: Sequence[int], max_new_tokens: int, *, seed: int, stop_token_id: int | None = None
) -> list[int]:
    """Continue one prompt of token ids by sampling, in silence: the samples that a trial leaves."""
    if not prompt_ids:
        raise ModelError("an empty prompt: give at least one token to start from")
    row = SequenceState(0, 0, list(prompt_ids))
    stops = () if stop_token_id is None else (stop_token_id,)
    for _ in _generate_token_by_token(
        GenerationRequest(model, None, [row], resolve_strategy("sample"), stops, max_new_tokens, seed, 1), [row]
    ):
        pass
    return row.made


@dataclass(frozen=True)
class TracedStep:
    """One step of a continuation, in plain sight."""

    token: int
    """what was drawn"""
    model: Float[Tensor, " vocab"]
    """the model's distribution"""
    kept: Float[Tensor, " vocab"]
    """what the strategy left of it, renormalised; for searches, the model's own"""
    text: str = ""
    """what can be shown now and could not before"""
    ended: FinishReason | None = None
    has_overflowed: bool = False
    """whether the text has outgrown the context"""


def trace_generation(
    model: Any,
    prompt: str | Sequence[int],
    strategy: str | Strategy | Sequence[LogitsProcessor] = "sample",
    *,
    sample_index: int = 0,
    max_new_tokens: int = 50,
    seed: int = 0,
    tokenizer: Any = None,
    use_chat_template: bool = False,
) -> Iterator[TracedStep]:
    """The continuation that generate gives for this sample, token by token as it is written, with what was there to
    choose from. The last moment is the stop token's, if it came to one. Beam search is told once it has ended."""
    one = [prompt] if isinstance(prompt, str) else [list(prompt)]
    samples = sample_index + 1
    job = build_request(
        model,
        one,
        strategy,
        samples,
        max_new_tokens,
        seed,
        (),
        tokenizer,
        use_chat_template,
        samples,
        is_streaming=True,
    )
    row, net = job.rows[sample_index], job.model
    assert isinstance(net, torch.nn.Module)
    if training := net.training:
        net.eval()
    try:
        reader, warned = DecodingSession(net, [row.ids]), False
        for token in _iter_token_ids(job, row, reader):
            logits = reader.logits.float()
            kept = _compute_strategy_probs(job, logits, reader, len(row.ids))
            row.take(token, job.stop_ids, job.max_new_tokens)
            text, row.text = row.text, ""
            if reader.has_overflowed and not warned:
                warned = True
                _warn_context_overflow(net)
            yield TracedStep(token, logits.softmax(-1)[0], kept[0], text, row.ended, reader.has_overflowed)
            if row.ended is not None:
                return
            reader.append_tokens([token])
    finally:
        if training:
            net.train()


def _iter_token_ids(request: GenerationRequest, sequence: SequenceState, session: DecodingSession) -> Iterator[int]:
    """The tokens of one continuation, each chosen once the reader has read those before it."""
    _check_search_supported(request)
    if request.strategy.way == "beam":
        found = beam_search.beam_search(
            request.model, sequence.ids, request.strategy, request.stop_ids, request.max_new_tokens
        )[sequence.sample]
        yield from found.ids
        yield from request.stop_ids[:1] if found.stopped else ()
    elif request.strategy.way == "contrast":
        yield from (
            token
            for token, _ in beam_search.contrastive_search(
                request.model, sequence.ids, request.strategy, request.stop_ids
            )
        )
    else:
        chance = CounterRNG(
            [derive_continuation_key(request.seed, sequence.ids, sequence.sample)], session.logits.shape[-1]
        )
        for made in count():
            yield from select_next_tokens(
                request.strategy, session, [len(sequence.ids)], request.stop_ids, chance, made
            )


def _check_search_supported(request: GenerationRequest) -> None:
    if request.strategy.way in ("beam", "contrast") and _has_batch_interaction(request.model):
        raise ModelError(
            f"{request.strategy.name}: the rows of a batch see each other in this model, and a search needs several"
        )


@torch.no_grad()
def _compute_strategy_probs(
    request: GenerationRequest, logits: Tensor, session: DecodingSession, prompt_length: int
) -> Tensor:
    seen = GenerationState(session.rows, [prompt_length], request.stop_ids)
    kept = logits_to_probs(logits, request.strategy.steps, seen)
    if request.strategy.way == "likeliest":
        return torch.nn.functional.one_hot(kept.argmax(-1), kept.shape[-1]).float()
    return kept


__all__ = [
    "ContextOverflowWarning",
    "Continuation",
    "ContinuationChunk",
    "TracedStep",
    "generate",
    "resolve_decoder",
    "sample_continuation_ids",
    "stream_generate",
    "trace_generation",
]
