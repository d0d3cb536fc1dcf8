"""What a call of generate asks for, read and checked before the first token: model, prompts, strategy and stops."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch

from headtohead.config.tasks import Target
from headtohead.errors import ModelError, RequestError
from headtohead.generation import beam_search
from headtohead.generation.detokenizer import StreamingDetokenizer, encode_prompt, get_stop_token_ids
from headtohead.generation.logits_processors import LogitsProcessor, is_integer_at_least
from headtohead.generation.strategies import Strategy, resolve_strategy
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.protocol import Decoder
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.loading import PretrainedModel

FinishReason = Literal["token", "string", "length"]
Prompts = str | Sequence[str] | Sequence[Sequence[int]]


@runtime_checkable
class ModelBundleProtocol(Protocol):
    """A model with its tokenizer, as every door to models gives it."""

    model: Any
    tokenizer: Any
    target: Target


@dataclass
class SequenceState:
    """One continuation under way."""

    prompt: int
    sample: int
    ids: list[int]
    made: list[int] = field(default_factory=list)
    ended: FinishReason | None = None
    detokenizer: StreamingDetokenizer | None = None
    text: str = ""
    """what could be shown since it was last asked for"""

    def take(self, token_id: int, stop_token_ids: Sequence[int], max_new_tokens: int) -> None:
        """One more token, and whether it is the last."""
        if token_id in stop_token_ids:
            self.ended = "token"
        else:
            self.made.append(token_id)
            if self.detokenizer is not None:
                self.text += self.detokenizer.feed(token_id)
                if self.detokenizer.stopped:
                    self.ended, self.made = "string", list(self.detokenizer.ids)
            if self.ended is None and len(self.made) >= max_new_tokens:
                self.ended = "length"
        if self.ended is not None and self.detokenizer is not None:
            self.text += self.detokenizer.finish()


@dataclass(frozen=True)
class GenerationRequest:
    """Everything that a call of generate asked for, made ready."""

    model: Decoder
    tokenizer: Any
    rows: list[SequenceState]
    strategy: Strategy
    stop_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    batch: int


def build_request(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[LogitsProcessor],
    num_samples: int,
    max_new_tokens: int,
    seed: int,
    stop: str | int | Sequence[str | int],
    tokenizer: Any,
    use_chat_template: bool,
    batch_size: int,
    *,
    is_streaming: bool,
) -> GenerationRequest:
    for name, value in (("samples", num_samples), ("max_new_tokens", max_new_tokens), ("batch", batch_size)):
        if not is_integer_at_least(value):
            raise RequestError(f"{name} is a whole number, at least 1, not {value!r}")
    decoder, tokenizer = resolve_decoder(model, tokenizer)
    chosen = resolve_strategy(strategy)
    beam_search.check_num_samples(chosen, num_samples)
    stops = [stop] if isinstance(stop, str | int) else list(stop)
    texts = [one for one in stops if isinstance(one, str) and one]
    if tokenizer is not None:
        chosen = chosen.bound(tokenizer.encode)
    elif texts:
        raise RequestError(f"a stop of text ({texts[0]!r}) needs a tokenizer")
    tells = tokenizer is not None and (is_streaming or bool(texts))
    rows = [
        SequenceState(index, sample, ids, detokenizer=StreamingDetokenizer(tokenizer, ids, texts) if tells else None)
        for index, ids in enumerate(_encode_prompts(prompts, tokenizer, use_chat_template))
        for sample in range(num_samples)
    ]
    ends = tuple(dict.fromkeys([*get_stop_token_ids(tokenizer), *(one for one in stops if isinstance(one, int))]))
    return GenerationRequest(decoder, tokenizer, rows, chosen, ends, max_new_tokens, seed, batch_size)


def resolve_decoder(model: Any, tokenizer: Any = None) -> tuple[Decoder, Any]:
    """A model that can be decoded with, and its tokenizer, from whatever stands for one."""
    if isinstance(model, ModelBundleProtocol) and not isinstance(model, torch.nn.Module):
        if not model.target.is_causal:
            name = getattr(model, "name", "the model")
            raise ModelError(f"{name}: predicts the {model.target} and cannot generate text")
        return resolve_decoder(model.model, tokenizer or model.tokenizer)
    library = sys.modules.get("transformers")  # whoever holds one of its models has imported it
    if library is not None and isinstance(model, library.PreTrainedModel):
        model = PretrainedModel(model)
    # The three kinds first: to hold a model against the protocol asks for each of its properties.
    if not isinstance(model, Transformer | CustomModel | PretrainedModel) and not isinstance(model, Decoder):
        raise ModelError(f"a {type(model).__name__} writes no text: give what load_model gives, or a language model")
    if isinstance(model, Transformer) and not model.is_causal:
        raise ModelError("a classifier writes no text; take a language model")
    return model, tokenizer


def _encode_prompts(prompts: Prompts, tokenizer: Any, use_chat_template: bool) -> list[list[int]]:
    given: list[Any] = [prompts] if isinstance(prompts, str) else list(prompts)
    found = []
    for prompt in given:
        if isinstance(prompt, str):
            if tokenizer is None:
                raise RequestError("a prompt of text needs a tokenizer: give one, or prompts of token ids")
            found.append(encode_prompt(tokenizer, prompt, use_chat_template=use_chat_template))
        else:
            if len(prompt) == 0:
                raise ModelError("an empty prompt: give at least one token to start from")
            found.append([int(i) for i in prompt])
    return found
