"""Validate `generate`'s arguments and encode its prompts before generating the first token."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

import torch

from headtohead.config.tasks import Target
from headtohead.errors import ModelError, RequestError
from headtohead.generation.beam_search import check_num_beam_samples
from headtohead.generation.detokenizer import StreamingDetokenizer
from headtohead.generation.logits_processors import LogitsProcessor, is_integer_at_least
from headtohead.generation.prompt_encoding import Prompts, encode_prompts, get_stop_token_ids
from headtohead.generation.strategies import Strategy
from headtohead.generation.strategy_parsing import resolve_strategy
from headtohead.nn.custom_model import CustomModel
from headtohead.nn.protocol import Decoder
from headtohead.nn.transformer import Transformer
from headtohead.pretrained.pretrained_model import PretrainedModel

FinishReason = Literal["token", "string", "length"]
DEFAULT_BATCH_SIZE = 32
"""sequences generated in parallel"""


@runtime_checkable
class ModelBundleProtocol(Protocol):
    """A model with its tokenizer, as `load_model` and `open_model` return it."""

    model: Any
    tokenizer: Any
    target: Target


@dataclass
class SequenceState:
    """One sequence during generation."""

    prompt_index: int
    sample_index: int
    prompt_ids: list[int]
    new_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    detokenizer: StreamingDetokenizer | None = None
    pending_text: str = ""
    """decoded text that has not been yielded yet"""

    def append_token(self, token_id: int, stop_token_ids: Sequence[int], max_new_tokens: int) -> None:
        """Append a token to a sequence of the job and set the finish reason if it is the last one."""
        if token_id in stop_token_ids:
            self.finish("token")
            return
        self.new_ids.append(token_id)
        if self.detokenizer is not None:
            self.pending_text += self.detokenizer.add_token(token_id)
            if self.detokenizer.has_stopped:
                self.new_ids = list(self.detokenizer.token_ids)
                self.finish("string")
                return
        if len(self.new_ids) >= max_new_tokens:
            self.finish("length")

    def finish(self, reason: FinishReason) -> None:
        """Mark the sequence as finished and release the text that the detokenizer held back."""
        self.finish_reason = reason
        if self.detokenizer is not None:
            self.pending_text += self.detokenizer.finish()

    def pop_pending_text(self) -> str:
        """Return the pending text and clear it."""
        text, self.pending_text = self.pending_text, ""
        return text


@dataclass(frozen=True)
class GenerationJob:
    """The validated arguments of a call to `generate`."""

    model: Decoder
    tokenizer: Any
    sequences: list[SequenceState]
    strategy: Strategy
    stop_token_ids: tuple[int, ...]
    max_new_tokens: int
    seed: int
    batch_size: int


class GenerationOptions(TypedDict, total=False):
    """The keyword arguments of `generate`."""

    num_samples: int
    max_new_tokens: int
    seed: int
    stop: str | int | Sequence[str | int]
    tokenizer: Any
    use_chat_template: bool
    batch_size: int


def build_job(
    model: Any,
    prompts: Prompts,
    strategy: str | Strategy | Sequence[LogitsProcessor],
    *,
    num_samples: int = 1,
    max_new_tokens: int = 50,
    seed: int = 0,
    stop: str | int | Sequence[str | int] = (),
    tokenizer: Any = None,
    use_chat_template: bool = False,
    batch_size: int = DEFAULT_BATCH_SIZE,
    is_streaming: bool = False,
) -> GenerationJob:
    """Validate the arguments of `generate` and encode its prompts, as a job.

    Raise `RequestError`, `StrategyError` or `ModelError` for invalid arguments.

    Args:
        model: A loaded model, a transformers model, or a decoder.
        prompts: A text, token ids, or a list of either.
        strategy: Decoding strategy, by name or as an object, or logits processors.
        num_samples: Continuations per prompt.
        max_new_tokens: Maximum number of generated tokens per continuation.
        seed: Seed for sampling.
        stop: Strings or token ids that end a continuation.
        tokenizer: Tokenizer, for models that come without one.
        use_chat_template: Apply the chat template of a pretrained model to each prompt.
        batch_size: Number of sequences that are decoded together.
        is_streaming: Decode text at every step.
    """
    for name, value in (("num_samples", num_samples), ("max_new_tokens", max_new_tokens), ("batch_size", batch_size)):
        if not is_integer_at_least(value):
            raise RequestError(f"{name} must be an integer of at least 1, got {value!r}")
    decoder, tokenizer = resolve_decoder(model, tokenizer)
    resolved_strategy = resolve_strategy(strategy)
    check_num_beam_samples(resolved_strategy, num_samples)
    stops = [stop] if isinstance(stop, str | int) else list(stop)
    stop_strings = [value for value in stops if isinstance(value, str) and value]
    if tokenizer is not None:
        resolved_strategy = resolved_strategy.encode_banned_texts(tokenizer.encode)
    elif stop_strings:
        raise RequestError(f"the stop string {stop_strings[0]!r} requires a tokenizer")
    needs_text = tokenizer is not None and (is_streaming or bool(stop_strings))
    sequences = [
        SequenceState(
            prompt_index,
            sample_index,
            prompt_ids,
            detokenizer=StreamingDetokenizer(tokenizer, prompt_ids, stop_strings) if needs_text else None,
        )
        for prompt_index, prompt_ids in enumerate(encode_prompts(prompts, tokenizer, use_chat_template))
        for sample_index in range(num_samples)
    ]
    stop_token_ids = tuple(
        dict.fromkeys([*get_stop_token_ids(tokenizer), *(value for value in stops if isinstance(value, int))])
    )
    return GenerationJob(
        decoder, tokenizer, sequences, resolved_strategy, stop_token_ids, max_new_tokens, seed, batch_size
    )


def has_batch_interaction(model: Decoder) -> bool:
    """Return whether sequences in a batch influence each other, so that each sequence needs its own batch."""
    return isinstance(model, Transformer) and "batch-independence" in model.violates


def check_search_supported(job: GenerationJob) -> None:
    """Raise `ModelError` if a job searches with a model whose sequences in a batch influence each other."""
    if job.strategy.mode in ("beam", "contrastive") and has_batch_interaction(job.model):
        raise ModelError(
            f"{job.strategy.name}: not available for this model, because the rows of a batch influence each other"
        )


def resolve_decoder(model: Any, tokenizer: Any = None) -> tuple[Decoder, Any]:
    """Return the decoder and the tokenizer of a job, for a loaded model, a transformers model, or a bare decoder."""
    if isinstance(model, ModelBundleProtocol) and not isinstance(model, torch.nn.Module):
        if not model.target.is_causal:
            name = getattr(model, "name", "the model")
            kind = "has no head" if model.target is Target.NONE else f"predicts the {model.target}"
            raise ModelError(f"{name}: {kind} and cannot generate text")
        return resolve_decoder(model.model, tokenizer or model.tokenizer)
    library = sys.modules.get("transformers")  # already imported if the model is an instance of one of its classes
    if library is not None and isinstance(model, library.PreTrainedModel):
        model = PretrainedModel(model)
    # Known classes first: checking against the protocol evaluates every property of the model.
    if not isinstance(model, Transformer | CustomModel | PretrainedModel) and not isinstance(model, Decoder):
        raise ModelError(f"a {type(model).__name__} cannot generate text: use load_model, or pass a language model")
    if isinstance(model, Transformer) and not model.is_causal:
        raise ModelError("a classifier cannot generate text: use a language model")
    return model, tokenizer
