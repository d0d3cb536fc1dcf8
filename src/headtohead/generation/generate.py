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
from headtohead.generation.counter_rng import Chance, row_key
from headtohead.generation.detokenizer import continuation_text
from headtohead.generation.logits_processors import Seen, Step, distribution
from headtohead.generation.request import Ended, Job, Prompts, Row, decoder_of, make_job
from headtohead.generation.sampling import draw, likeliest
from headtohead.generation.session import SLIDE, Reader
from headtohead.generation.strategies import Strategy, as_strategy
from headtohead.nn.protocol import Decoder
from headtohead.nn.transformer import Transformer

ROWS = 32
"""continuations that are written side by side"""


class SlidingWarning(UserWarning):
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
    ended: Ended
    """at a stop token, a stop string, or the longest length"""


@dataclass(frozen=True)
class Piece:
    """A piece of a continuation, as it is made."""

    prompt: int
    sample: int
    ids: tuple[int, ...]
    text: str
    ended: Ended | None = None


# ---- the two upper rungs


def generate(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[Step] = "sample",
    *,
    samples: int = 1,
    max_new_tokens: int = 50,
    seed: int = 0,
    stop: str | int | Sequence[str | int] = (),
    tokenizer: Any = None,
    chat: bool = False,
    batch: int = ROWS,
) -> list[Continuation]:
    """Continue each prompt `samples` times; prompts one after the other, and the samples of each in order.

    `model` is what `load_model` gives, or a bare model, then with a `tokenizer` or prompts that are token ids. A text
    ends at the model's stop token, at a `stop` of yours (a string, or a token id), or after `max_new_tokens`.
    """
    job = make_job(model, prompts, strategy, samples, max_new_tokens, seed, stop, tokenizer, chat, batch, tell=False)
    for _ in _running(job):
        pass
    return [_finished(row, job.tokenizer) for row in job.rows]


def stream(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[Step] = "sample",
    *,
    samples: int = 1,
    max_new_tokens: int = 50,
    seed: int = 0,
    stop: str | int | Sequence[str | int] = (),
    tokenizer: Any = None,
    chat: bool = False,
    batch: int = ROWS,
) -> Iterator[Piece]:
    """The same as an iterator that gives pieces of text as they are made; those of one continuation, joined, are its
    text."""
    job = make_job(model, prompts, strategy, samples, max_new_tokens, seed, stop, tokenizer, chat, batch, tell=True)
    for told in _running(job):
        for row, new in told:
            if row.text or row.ended or job.tokenizer is None:
                text, row.text = row.text, ""
                yield Piece(row.prompt, row.sample, tuple(new), text, row.ended)


def _finished(row: Row, tokenizer: Any) -> Continuation:
    assert row.ended is not None
    if row.teller is not None:
        text = row.teller.text
    else:
        text = "" if tokenizer is None else continuation_text(tokenizer, row.ids, row.made)
    return Continuation(row.prompt, row.sample, tuple(row.made), text, row.ended)


# ---- the loop


def _running(job: Job) -> Iterator[list[tuple[Row, list[int]]]]:
    """Step by step the rows that have got new tokens, and which, until all have ended."""
    model = job.model
    assert isinstance(model, torch.nn.Module)
    if training := model.training:
        model.eval()
    warned = False
    try:
        for rows in _batches(job):
            for new, slid in _ways(job, rows):
                if slid and not warned:
                    warned = True
                    _warn(model)
                yield new
    finally:
        if training:
            model.train()


Told = tuple[list[tuple[Row, list[int]]], bool]
"""rows with their new tokens, and whether a text has outgrown the context"""


def _ways(job: Job, rows: list[Row]) -> Iterator[Told]:
    _check_search(job)
    if job.strategy.way == "beam":
        yield from _beamed(job, rows)
    elif job.strategy.way == "contrast":
        for row in rows:
            yield from _contrasted(job, row)
    else:
        yield from _drawn(job, rows)


def _drawn(job: Job, rows: list[Row]) -> Iterator[Told]:
    """Token by token, all rows at once; a row that has ended leaves the batch."""
    reader = Reader(job.model, [row.ids for row in rows])
    chance = Chance([row_key(job.seed, row.ids, row.sample) for row in rows], reader.logits.shape[-1])
    prompts, made = [len(row.ids) for row in rows], 0
    while rows:
        tokens = choose(job.strategy, reader, prompts, job.stop_ids, chance, made)
        for row, token in zip(rows, tokens, strict=True):
            row.take(token, job.stop_ids, job.longest)
        yield [(row, [token]) for row, token in zip(rows, tokens, strict=True)], reader.slid
        going = [i for i, row in enumerate(rows) if row.ended is None]
        if len(going) < len(rows):
            if not going:
                return
            rows, tokens, prompts = [rows[i] for i in going], [tokens[i] for i in going], [prompts[i] for i in going]
            reader.select(going)
            chance.select(going)
        reader.push(tokens)
        made += 1


@torch.inference_mode()
def choose(
    strategy: Strategy, reader: Reader, prompts: Sequence[int], stop_ids: tuple[int, ...], chance: Chance, made: int
) -> list[int]:
    """The next token of each row."""
    seen = Seen(reader.rows, prompts, stop_ids)
    if strategy.way == "likeliest":
        return likeliest(reader.logits, strategy.steps, seen)
    return draw(reader.logits, strategy.steps, seen, chance.at(made))


def _beamed(job: Job, rows: list[Row]) -> Iterator[Told]:
    """The beams of a prompt are its samples, best first."""
    found: dict[int, list[beam_search.Found]] = {}
    for row in rows:
        if row.prompt not in found:
            found[row.prompt] = beam_search.beam(job.model, row.ids, job.strategy, job.stop_ids, job.longest)
        best = found[row.prompt][row.sample]
        for token in best.ids:
            row.take(token, (), job.longest)
            if row.ended is not None:
                break
        if row.ended is None:
            row.ended = "token"
            row.text += row.teller.finish() if row.teller is not None else ""
        yield [(row, list(row.made))], len(row.ids) + len(best.ids) > job.model.context


def _contrasted(job: Job, row: Row) -> Iterator[Told]:
    for token, slid in beam_search.contrast(job.model, row.ids, job.strategy, job.stop_ids):
        row.take(token, job.stop_ids, job.longest)
        yield [(row, [token])], slid
        if row.ended is not None:
            return


def _batches(job: Job) -> Iterator[list[Row]]:
    """Rows that may stand side by side: of one length where the model cannot be told of padding."""
    rows = sorted(job.rows, key=lambda row: len(row.ids))
    pads = job.model.pads
    size = job.batch if pads or not _alone(job.model) else 1
    while rows:
        here = rows[:size]
        if not pads:
            here = [row for row in here if len(row.ids) == len(here[0].ids)]
        yield here
        rows = rows[len(here) :]


def _alone(model: Decoder) -> bool:
    """Whether rows of a batch see each other, so that a text must be written by itself."""
    return isinstance(model, Transformer) and "batch" in model.breaks


def _warn(model: Decoder) -> None:
    forgotten = max(1, model.context // SLIDE)
    warnings.warn(
        f"the text is longer than the model's context of {model.context} tokens: its oldest tokens are forgotten, "
        f"{forgotten} at a time",
        SlidingWarning,
        stacklevel=4,
    )


# ---- smaller doors


def continue_ids(
    model: Decoder, prompt: Sequence[int], max_new_tokens: int, *, seed: int, stop_id: int | None = None
) -> list[int]:
    """Continue one prompt of token ids by sampling, in silence: the samples that a trial leaves."""
    if not prompt:
        raise ModelError("an empty prompt: give at least one token to start from")
    row = Row(0, 0, list(prompt))
    stops = () if stop_id is None else (stop_id,)
    for _ in _drawn(Job(model, None, [row], as_strategy("sample"), stops, max_new_tokens, seed, 1), [row]):
        pass
    return row.made


@dataclass(frozen=True)
class Moment:
    """One step of a continuation, in plain sight."""

    token: int
    """what was drawn"""
    model: Float[Tensor, " vocab"]
    """the model's distribution"""
    kept: Float[Tensor, " vocab"]
    """what the strategy left of it, renormalised; for searches, the model's own"""
    text: str = ""
    """what can be shown now and could not before"""
    ended: Ended | None = None
    slid: bool = False
    """whether the text has outgrown the context"""


def watch(
    model: Any,
    prompt: str | Sequence[int],
    strategy: str | Strategy | Sequence[Step] = "sample",
    *,
    sample: int = 0,
    max_new_tokens: int = 50,
    seed: int = 0,
    tokenizer: Any = None,
    chat: bool = False,
) -> Iterator[Moment]:
    """The continuation that generate gives for this sample, token by token as it is written, with what was there to
    choose from. The last moment is the stop token's, if it came to one. Beam search is told once it has ended."""
    one = [prompt] if isinstance(prompt, str) else [list(prompt)]
    samples = sample + 1
    job = make_job(model, one, strategy, samples, max_new_tokens, seed, (), tokenizer, chat, samples, tell=True)
    row, net = job.rows[sample], job.model
    assert isinstance(net, torch.nn.Module)
    if training := net.training:
        net.eval()
    try:
        reader, warned = Reader(net, [row.ids]), False
        for token in _one_by_one(job, row, reader):
            logits = reader.logits.float()
            kept = _kept(job, logits, reader, len(row.ids))
            row.take(token, job.stop_ids, job.longest)
            text, row.text = row.text, ""
            if reader.slid and not warned:
                warned = True
                _warn(net)
            yield Moment(token, logits.softmax(-1)[0], kept[0], text, row.ended, reader.slid)
            if row.ended is not None:
                return
            reader.push([token])
    finally:
        if training:
            net.train()


def _one_by_one(job: Job, row: Row, reader: Reader) -> Iterator[int]:
    """The tokens of one continuation, each chosen once the reader has read those before it."""
    _check_search(job)
    if job.strategy.way == "beam":
        found = beam_search.beam(job.model, row.ids, job.strategy, job.stop_ids, job.longest)[row.sample]
        yield from found.ids
        yield from job.stop_ids[:1] if found.stopped else ()
    elif job.strategy.way == "contrast":
        yield from (token for token, _ in beam_search.contrast(job.model, row.ids, job.strategy, job.stop_ids))
    else:
        chance = Chance([row_key(job.seed, row.ids, row.sample)], reader.logits.shape[-1])
        for made in count():
            yield from choose(job.strategy, reader, [len(row.ids)], job.stop_ids, chance, made)


def _check_search(job: Job) -> None:
    if job.strategy.way in ("beam", "contrast") and _alone(job.model):
        raise ModelError(
            f"{job.strategy.name}: the rows of a batch see each other in this model, and a search needs several"
        )


@torch.no_grad()
def _kept(job: Job, logits: Tensor, reader: Reader, prompt: int) -> Tensor:
    seen = Seen(reader.rows, [prompt], job.stop_ids)
    kept = distribution(logits, job.strategy.steps, seen)
    if job.strategy.way == "likeliest":
        return torch.nn.functional.one_hot(kept.argmax(-1), kept.shape[-1]).float()
    return kept


__all__ = [
    "Continuation",
    "Moment",
    "Piece",
    "SlidingWarning",
    "continue_ids",
    "decoder_of",
    "generate",
    "stream",
    "watch",
]
