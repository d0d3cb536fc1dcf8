"""Generate text from a language model: all at once with `generate`, or in pieces with `stream_generate`.

    generate(model, ["Once upon a time"], "top-p", num_samples=10, seed=0)

Random numbers are a function of (seed, prompt, sample, step, token), so a continuation does not depend on the other
sequences in its batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from headtohead.errors import ModelError
from headtohead.generation.beam_search import BeamHypothesis, beam_search
from headtohead.generation.contrastive_search import contrastive_search
from headtohead.generation.counter_rng import CounterRNG, derive_continuation_key
from headtohead.generation.detokenizer import decode_continuation
from headtohead.generation.job import (
    FinishReason,
    GenerationJob,
    GenerationOptions,
    SequenceState,
    build_job,
    check_search_supported,
    has_batch_interaction,
)
from headtohead.generation.logits_processors import LogitsProcessor
from headtohead.generation.prompt_encoding import Prompts
from headtohead.generation.sampling import select_next_tokens
from headtohead.generation.session import DecodingSession, evaluation_mode, warn_context_overflow
from headtohead.generation.strategies import Strategy, build_strategy
from headtohead.nn.protocol import Decoder


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
    """Generate continuations of one or several prompts.

    A continuation ends at a stop token, at one of `stop`, or after `max_new_tokens`.

    Args:
        model: The result of `load_model`, a transformers model, or a bare decoder.
        prompts: One text, several texts, or several lists of token ids.
        strategy: Name or text form of a strategy, a `Strategy`, or a list of logits processors.
        num_samples: Number of continuations per prompt; 1 by default.
        max_new_tokens: Maximum number of generated tokens per continuation; 50 by default.
        seed: Seed of the random numbers; 0 by default.
        stop: Strings or token ids that end a continuation, in addition to the stop tokens of the model.
        tokenizer: Tokenizer, required for text prompts if `model` is a bare model.
        use_chat_template: Apply the chat template of a pretrained model to text prompts.
        batch_size: Number of sequences generated in parallel; 32 by default.

    Returns:
        `num_samples` continuations per prompt, ordered by prompt and sample.
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
    """Generate continuations and yield pieces of text as soon as they are available.

    Takes the arguments of `generate`. The pieces of a continuation, concatenated, are its text.
    """
    job = build_job(model, prompts, strategy, **options, is_streaming=True)
    for updates in _run_job(job):
        for sequence, new_ids in updates:
            if sequence.pending_text or sequence.finish_reason or job.tokenizer is None:
                text = sequence.pop_pending_text()
                yield ContinuationChunk(
                    sequence.prompt_index, sequence.sample_index, tuple(new_ids), text, sequence.finish_reason
                )


def _build_continuation(sequence: SequenceState, tokenizer: Any) -> Continuation:
    """Return the continuation generated for a finished sequence."""
    assert sequence.finish_reason is not None
    if sequence.detokenizer is not None:
        text = sequence.detokenizer.text
    else:
        text = "" if tokenizer is None else decode_continuation(tokenizer, sequence.prompt_ids, sequence.new_ids)
    return Continuation(
        sequence.prompt_index, sequence.sample_index, tuple(sequence.new_ids), text, sequence.finish_reason
    )


SequenceUpdates = list[tuple[SequenceState, list[int]]]
"""(sequence, its new token ids) for each sequence that a step extended"""


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
    rng = build_batch_rng(job, sequences, session)
    prompt_lengths, step = [len(sequence.prompt_ids) for sequence in sequences], 0
    while sequences:
        token_ids = select_next_tokens(job.strategy, session, prompt_lengths, job.stop_token_ids, rng, step)
        for sequence, token_id in zip(sequences, token_ids, strict=True):
            sequence.append_token(token_id, job.stop_token_ids, job.max_new_tokens)
        updates = [(sequence, [token_id]) for sequence, token_id in zip(sequences, token_ids, strict=True)]
        yield updates, session.has_overflowed
        active = [i for i, sequence in enumerate(sequences) if sequence.finish_reason is None]
        if not active:
            return
        if len(active) < len(sequences):
            sequences = [sequences[i] for i in active]
            token_ids = [token_ids[i] for i in active]
            prompt_lengths = [prompt_lengths[i] for i in active]
            session.select_sequences(active)
            rng.select_sequences(active)
        session.append_tokens(token_ids)
        step += 1


def build_batch_rng(job: GenerationJob, sequences: Sequence[SequenceState], session: DecodingSession) -> CounterRNG:
    """Return the random number generator of a batch, with one key per sequence."""
    keys = [derive_continuation_key(job.seed, sequence.prompt_ids, sequence.sample_index) for sequence in sequences]
    return CounterRNG(keys, session.logits.shape[-1])


def _generate_with_beam_search(
    job: GenerationJob, sequences: list[SequenceState]
) -> Iterator[tuple[SequenceUpdates, bool]]:
    """Generate with beam search; the hypotheses of a prompt, best first, are its samples."""
    hypotheses_by_prompt: dict[int, list[BeamHypothesis]] = {}
    for sequence in sequences:
        if sequence.prompt_index not in hypotheses_by_prompt:
            hypotheses_by_prompt[sequence.prompt_index] = beam_search(
                job.model, sequence.prompt_ids, job.strategy, job.stop_token_ids, job.max_new_tokens
            )
        token_ids = hypotheses_by_prompt[sequence.prompt_index][sequence.sample_index].token_ids
        for token_id in token_ids:
            sequence.append_token(token_id, (), job.max_new_tokens)
            if sequence.finish_reason is not None:
                break
        if sequence.finish_reason is None:
            sequence.finish("token")
        yield [(sequence, list(sequence.new_ids))], len(sequence.prompt_ids) + len(token_ids) > job.model.context


def _generate_with_contrastive_search(
    job: GenerationJob, sequence: SequenceState
) -> Iterator[tuple[SequenceUpdates, bool]]:
    """Generate one sequence with contrastive search, token by token."""
    search = contrastive_search(job.model, sequence.prompt_ids, job.strategy, job.stop_token_ids)
    for token_id, has_overflowed in search:
        sequence.append_token(token_id, job.stop_token_ids, job.max_new_tokens)
        yield [(sequence, [token_id])], has_overflowed
        if sequence.finish_reason is not None:
            return


def _iter_batches(job: GenerationJob) -> Iterator[list[SequenceState]]:
    """Yield the batches to generate in: prompts of equal length if the model does not support padding."""
    sequences = sorted(job.sequences, key=lambda sequence: len(sequence.prompt_ids))
    can_pad = job.model.can_pad
    max_batch_size = job.batch_size if can_pad or not has_batch_interaction(job.model) else 1
    while sequences:
        batch = sequences[:max_batch_size]
        if not can_pad:
            batch = [sequence for sequence in batch if len(sequence.prompt_ids) == len(batch[0].prompt_ids)]
        yield batch
        sequences = sequences[len(batch) :]


def sample_continuation_ids(
    model: Decoder, prompt_ids: Sequence[int], max_new_tokens: int, *, seed: int, stop_token_id: int | None = None
) -> list[int]:
    """Generate one sampled continuation; return its token ids without the stop token, and warn of nothing.

    Used for the samples recorded by a trial.
    """
    if not prompt_ids:
        raise ModelError("the prompt is empty: give at least one token")
    sequence = SequenceState(0, 0, list(prompt_ids))
    stop_token_ids = () if stop_token_id is None else (stop_token_id,)
    job = GenerationJob(model, None, [sequence], build_strategy("sample"), stop_token_ids, max_new_tokens, seed, 1)
    for _ in _generate_token_by_token(job, [sequence]):
        pass
    return sequence.new_ids
