"""Generate text from a language model: all at once with `generate`, or in pieces with `stream_generate`.

    generate(model, ["Once upon a time"], "top-p", num_samples=10, seed=0)

Random numbers are a function of (seed, prompt, sample, step, token), so a continuation does not depend on the other
sequences in its batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack

import torch

from headtohead.errors import ModelError
from headtohead.generation import beam_search
from headtohead.generation.counter_rng import CounterRNG, derive_continuation_key
from headtohead.generation.detokenizer import decode_continuation
from headtohead.generation.logits_processors import GenerationState, LogitsProcessor
from headtohead.generation.request import (
    FinishReason,
    GenerationJob,
    GenerationOptions,
    Prompts,
    SequenceState,
    build_job,
)
from headtohead.generation.sampling import sample_tokens, select_greedy_tokens
from headtohead.generation.session import WINDOW_SHIFT_DIVISOR, DecodingSession
from headtohead.generation.strategies import Strategy, resolve_strategy
from headtohead.nn.protocol import Decoder
from headtohead.nn.transformer import Transformer


class ContextOverflowWarning(UserWarning):
    """A sequence is longer than the model's context, so its oldest tokens are dropped."""


@dataclass(frozen=True)
class Continuation:
    """The text generated after a prompt."""

    prompt: int
    """index of the prompt"""
    sample: int
    """index of the sample for this prompt"""
    ids: tuple[int, ...]
    """the new tokens, without the stop token"""
    text: str
    finish_reason: FinishReason
    """stop token, stop string or maximum length"""


@dataclass(frozen=True)
class ContinuationChunk:
    """A piece of a continuation, yielded during generation."""

    prompt: int
    sample: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None = None


def generate(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[LogitsProcessor] = "sample",
    **options: Unpack[GenerationOptions],
) -> list[Continuation]:
    """Return `num_samples` continuations of each prompt, ordered by prompt and sample.

    A continuation ends at a stop token, at one of `stop`, or after `max_new_tokens`.

    Args:
        model: The result of `load_model`, a transformers model, or a bare decoder.
        prompts: One text, several texts, or several lists of token ids.
        strategy: Name or text form of a strategy, a `Strategy`, or a list of logits processors.
        num_samples: Continuations of each prompt; 1 by default.
        max_new_tokens: Maximum length of a continuation; 50 by default.
        seed: Seed of the random numbers; 0 by default.
        stop: Strings or token ids that end a continuation, in addition to the model's stop tokens.
        tokenizer: Required for text prompts if `model` is a bare model.
        use_chat_template: Apply the chat template of a pretrained model to text prompts.
        batch_size: Sequences generated in parallel; 32 by default.
    """
    job = build_job(model, prompts, strategy, **options)
    for _ in _run_job(job):
        pass
    return [_build_continuation(sequence, job.tokenizer) for sequence in job.sequences]


def stream_generate(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[LogitsProcessor] = "sample",
    **options: Unpack[GenerationOptions],
) -> Iterator[ContinuationChunk]:
    """Yield pieces of the continuations that `generate` returns, as they are generated.

    Takes the arguments of `generate`. The pieces of one continuation join to its text.
    """
    job = build_job(model, prompts, strategy, **options, is_streaming=True)
    for updates in _run_job(job):
        for sequence, new_ids in updates:
            if sequence.pending_text or sequence.finish_reason or job.tokenizer is None:
                text = sequence.pop_text()
                yield ContinuationChunk(sequence.prompt, sequence.sample, tuple(new_ids), text, sequence.finish_reason)


def _build_continuation(sequence: SequenceState, tokenizer: Any) -> Continuation:
    """Return the continuation generated for a finished sequence."""
    assert sequence.finish_reason is not None
    if sequence.detokenizer is not None:
        text = sequence.detokenizer.text
    else:
        text = "" if tokenizer is None else decode_continuation(tokenizer, sequence.prompt_ids, sequence.new_ids)
    return Continuation(sequence.prompt, sequence.sample, tuple(sequence.new_ids), text, sequence.finish_reason)


SequenceUpdates = list[tuple[SequenceState, list[int]]]
"""sequences with their new tokens"""


def _run_job(job: GenerationJob) -> Iterator[SequenceUpdates]:
    """Generate until every sequence is finished; yield each step's updates."""
    has_warned = False
    with evaluation_mode(job.model):
        for sequences in _iter_batches(job):
            for updates, has_overflowed in _generate_batch(job, sequences):
                if has_overflowed and not has_warned:
                    has_warned = True
                    warn_context_overflow(job.model)
                yield updates


@contextmanager
def evaluation_mode(model: Decoder) -> Iterator[None]:
    """Switch the model to evaluation mode and restore its mode afterwards."""
    assert isinstance(model, torch.nn.Module)
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def _generate_batch(job: GenerationJob, sequences: list[SequenceState]) -> Iterator[tuple[SequenceUpdates, bool]]:
    """Yield each step's updates and whether a sequence has exceeded the context."""
    check_search_supported(job)
    if job.strategy.mode == "beam":
        yield from _generate_with_beam_search(job, sequences)
    elif job.strategy.mode == "contrastive":
        for sequence in sequences:
            yield from _generate_with_contrastive_search(job, sequence)
    else:
        yield from _generate_token_by_token(job, sequences)


def _generate_token_by_token(
    job: GenerationJob, sequences: list[SequenceState]
) -> Iterator[tuple[SequenceUpdates, bool]]:
    """Generate one token per step for all sequences; finished sequences leave the batch."""
    session = DecodingSession(job.model, [sequence.prompt_ids for sequence in sequences])
    rng = build_rng(job, sequences, session)
    prompt_lengths, step = [len(sequence.prompt_ids) for sequence in sequences], 0
    while sequences:
        tokens = select_next_tokens(job.strategy, session, prompt_lengths, job.stop_ids, rng, step)
        for sequence, token in zip(sequences, tokens, strict=True):
            sequence.append_token(token, job.stop_ids, job.max_new_tokens)
        yield [(sequence, [token]) for sequence, token in zip(sequences, tokens, strict=True)], session.has_overflowed
        active = [i for i, sequence in enumerate(sequences) if sequence.finish_reason is None]
        if not active:
            return
        if len(active) < len(sequences):
            sequences = [sequences[i] for i in active]
            tokens = [tokens[i] for i in active]
            prompt_lengths = [prompt_lengths[i] for i in active]
            session.select_rows(active)
            rng.select_rows(active)
        session.append_tokens(tokens)
        step += 1


def build_rng(job: GenerationJob, sequences: Sequence[SequenceState], session: DecodingSession) -> CounterRNG:
    """Return the random number generator for these sequences."""
    keys = [derive_continuation_key(job.seed, sequence.prompt_ids, sequence.sample) for sequence in sequences]
    return CounterRNG(keys, session.logits.shape[-1])


@torch.inference_mode()
def select_next_tokens(
    strategy: Strategy,
    session: DecodingSession,
    prompt_lengths: Sequence[int],
    stop_token_ids: tuple[int, ...],
    rng: CounterRNG,
    step: int,
) -> list[int]:
    """Return the next token for each row in the session."""
    state = GenerationState(session.rows, prompt_lengths, stop_token_ids)
    if strategy.mode == "greedy":
        return select_greedy_tokens(session.logits, strategy.logits_processors, state)
    return sample_tokens(session.logits, strategy.logits_processors, state, rng.get_uniforms(step))


def _generate_with_beam_search(
    job: GenerationJob, sequences: list[SequenceState]
) -> Iterator[tuple[SequenceUpdates, bool]]:
    """Use a prompt's hypotheses, best first, as its samples."""
    hypotheses_by_prompt: dict[int, list[beam_search.BeamHypothesis]] = {}
    for sequence in sequences:
        if sequence.prompt not in hypotheses_by_prompt:
            hypotheses_by_prompt[sequence.prompt] = beam_search.beam_search(
                job.model, sequence.prompt_ids, job.strategy, job.stop_ids, job.max_new_tokens
            )
        ids = hypotheses_by_prompt[sequence.prompt][sequence.sample].ids
        for token in ids:
            sequence.append_token(token, (), job.max_new_tokens)
            if sequence.finish_reason is not None:
                break
        if sequence.finish_reason is None:
            sequence.finish("token")
        yield [(sequence, list(sequence.new_ids))], len(sequence.prompt_ids) + len(ids) > job.model.context


def _generate_with_contrastive_search(
    job: GenerationJob, sequence: SequenceState
) -> Iterator[tuple[SequenceUpdates, bool]]:
    """Generate one sequence token by token."""
    tokens = beam_search.contrastive_search(job.model, sequence.prompt_ids, job.strategy, job.stop_ids)
    for token, has_overflowed in tokens:
        sequence.append_token(token, job.stop_ids, job.max_new_tokens)
        yield [(sequence, [token])], has_overflowed
        if sequence.finish_reason is not None:
            return


def _iter_batches(job: GenerationJob) -> Iterator[list[SequenceState]]:
    """Yield batches of sequences, with prompts of equal length if the model does not support padding."""
    sequences = sorted(job.sequences, key=lambda sequence: len(sequence.prompt_ids))
    can_pad = job.model.can_pad
    size = job.batch_size if can_pad or not has_batch_interaction(job.model) else 1
    while sequences:
        batch = sequences[:size]
        if not can_pad:
            batch = [sequence for sequence in batch if len(sequence.prompt_ids) == len(batch[0].prompt_ids)]
        yield batch
        sequences = sequences[len(batch) :]


def has_batch_interaction(model: Decoder) -> bool:
    """Return whether rows in a batch influence each other, so that each sequence needs its own batch."""
    return isinstance(model, Transformer) and "batch-independence" in model.violates


def check_search_supported(job: GenerationJob) -> None:
    """Raise `ModelError` if the strategy is a search and rows in a batch influence each other."""
    if job.strategy.mode in ("beam", "contrastive") and has_batch_interaction(job.model):
        raise ModelError(
            f"{job.strategy.name}: not available for this model, because the rows of a batch influence each other"
        )


def warn_context_overflow(model: Decoder) -> None:
    """Warn that a sequence's oldest tokens are dropped."""
    num_dropped = max(1, model.context // WINDOW_SHIFT_DIVISOR)
    warnings.warn(
        f"the text is longer than the model's context of {model.context} tokens: its oldest tokens are dropped, "
        f"{num_dropped} at a time",
        ContextOverflowWarning,
        stacklevel=4,
    )


def sample_continuation_ids(
    model: Decoder, prompt_ids: Sequence[int], max_new_tokens: int, *, seed: int, stop_token_id: int | None = None
) -> list[int]:
    """Return one sampled continuation's token ids, without the stop token and without warnings.

    Used for the samples that a trial records.
    """
    if not prompt_ids:
        raise ModelError("the prompt is empty: give at least one token")
    sequence = SequenceState(0, 0, list(prompt_ids))
    stop_ids = () if stop_token_id is None else (stop_token_id,)
    job = GenerationJob(model, None, [sequence], resolve_strategy("sample"), stop_ids, max_new_tokens, seed, 1)
    for _ in _generate_token_by_token(job, [sequence]):
        pass
    return sequence.new_ids
