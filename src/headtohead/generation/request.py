"""What a call of generate asks for, read and checked before the first token: model, prompts, strategy and stops."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from headtohead.errors import ModelError, RequestError
from headtohead.generation import beam_search
from headtohead.generation.detokenizer import Teller, prompt_ids, stop_ids
from headtohead.generation.logits_processors import Step, is_count
from headtohead.generation.strategies import Strategy, as_strategy
from headtohead.nn.custom_model import OwnModel
from headtohead.nn.protocol import Decoder
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import Pretrained

Ended = Literal["token", "string", "length"]
Prompts = str | Sequence[str] | Sequence[Sequence[int]]


@runtime_checkable
class Opened(Protocol):
    """A model with its tokenizer, as every door to models gives it."""

    model: Any
    tokenizer: Any
    task: str


@dataclass
class Row:
    """One continuation under way."""

    prompt: int
    sample: int
    ids: list[int]
    made: list[int] = field(default_factory=list)
    ended: Ended | None = None
    teller: Teller | None = None
    text: str = ""
    """what could be shown since it was last asked for"""

    def take(self, token: int, stop_ids: Sequence[int], longest: int) -> None:
        """One more token, and whether it is the last."""
        if token in stop_ids:
            self.ended = "token"
        else:
            self.made.append(token)
            if self.teller is not None:
                self.text += self.teller.feed(token)
                if self.teller.stopped:
                    self.ended, self.made = "string", list(self.teller.ids)
            if self.ended is None and len(self.made) >= longest:
                self.ended = "length"
        if self.ended is not None and self.teller is not None:
            self.text += self.teller.finish()


@dataclass(frozen=True)
class Job:
    """Everything that a call of generate asked for, made ready."""

    model: Decoder
    tokenizer: Any
    rows: list[Row]
    strategy: Strategy
    stop_ids: tuple[int, ...]
    longest: int
    seed: int
    batch: int


def make_job(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[Step],
    samples: int,
    max_new_tokens: int,
    seed: int,
    stop: str | int | Sequence[str | int],
    tokenizer: Any,
    chat: bool,
    batch: int,
    *,
    tell: bool,
) -> Job:
    for name, value in (("samples", samples), ("max_new_tokens", max_new_tokens), ("batch", batch)):
        if not is_count(value):
            raise RequestError(f"{name} is a whole number, at least 1, not {value!r}")
    decoder, tokenizer = decoder_of(model, tokenizer)
    chosen = as_strategy(strategy)
    beam_search.check_samples(chosen, samples)
    stops = [stop] if isinstance(stop, str | int) else list(stop)
    texts = [one for one in stops if isinstance(one, str) and one]
    if tokenizer is not None:
        chosen = chosen.bound(tokenizer.encode)
    elif texts:
        raise RequestError(f"a stop of text ({texts[0]!r}) needs a tokenizer")
    tells = tokenizer is not None and (tell or bool(texts))
    rows = [
        Row(index, sample, ids, teller=Teller(tokenizer, ids, texts) if tells else None)
        for index, ids in enumerate(_read(prompts, tokenizer, chat))
        for sample in range(samples)
    ]
    ends = tuple(dict.fromkeys([*stop_ids(tokenizer), *(one for one in stops if isinstance(one, int))]))
    return Job(decoder, tokenizer, rows, chosen, ends, max_new_tokens, seed, batch)


def decoder_of(model: Any, tokenizer: Any = None) -> tuple[Decoder, Any]:
    """A model that can be decoded with, and its tokenizer, from whatever stands for one."""
    if isinstance(model, Opened) and not isinstance(model, torch.nn.Module):
        if model.task != "language-model":
            name = getattr(model, "name", "the model")
            raise ModelError(f"{name}: made for the task {model.task}, it writes no text")
        return decoder_of(model.model, tokenizer or model.tokenizer)
    library = sys.modules.get("transformers")  # whoever holds one of its models has imported it
    if library is not None and isinstance(model, library.PreTrainedModel):
        model = Pretrained(model)
    # The three kinds first: to hold a model against the protocol asks for each of its properties.
    if not isinstance(model, Transformer | OwnModel | Pretrained) and not isinstance(model, Decoder):
        raise ModelError(f"a {type(model).__name__} writes no text: give what load_model gives, or a language model")
    if isinstance(model, Transformer) and model.classes is not None:
        raise ModelError("a classifier writes no text; take a language model")
    return model, tokenizer


def _read(prompts: Prompts, tokenizer: Any, chat: bool) -> list[list[int]]:
    given: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    found = []
    for prompt in given:
        if isinstance(prompt, str):
            if tokenizer is None:
                raise RequestError("a prompt of text needs a tokenizer: give one, or prompts of token ids")
            found.append(prompt_ids(tokenizer, prompt, chat=chat))
        else:
            if len(prompt) == 0:
                raise ModelError("an empty prompt: give at least one token to start from")
            found.append([int(i) for i in prompt])
    return found
