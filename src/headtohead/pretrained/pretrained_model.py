"""Models of transformers behind the interface of our own models: decoders and encoders, and their KV cache.

The cache is transformers' own, wrapped as a `DecodingCache`. Fused kernels return no attention weights, so a forward
pass with `output_attentions` switches to eager attention.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.nn.protocol import ModelOutput

InputIds = Int[Tensor, "batch length"]
UNLIMITED_CONTEXT = 1 << 30
"""context length for a model whose configuration does not limit positions"""


class PretrainedCache:
    """A transformers DynamicCache, with the padding mask of the cached tokens."""

    def __init__(self, config: Any) -> None:
        """Create an empty cache of transformers for a pretrained model of this configuration."""
        from transformers import DynamicCache

        self.inner: Any = DynamicCache(config=config)
        self.length = 0
        self.attention_mask: Bool[Tensor, "batch key"] | None = None

    def append_attention_mask(
        self, num_new_tokens: int, attention_mask: Bool[Tensor, "batch query"] | None, batch_size: int
    ) -> Tensor | None:
        """Append the padding mask of new tokens; return the mask of all tokens, or None without padding."""
        if attention_mask is not None or self.attention_mask is not None:
            reference = attention_mask if attention_mask is not None else self.attention_mask
            assert reference is not None
            previous_mask = (
                reference.new_ones(batch_size, self.length) if self.attention_mask is None else self.attention_mask
            )
            self.attention_mask = torch.cat(
                (
                    previous_mask,
                    reference.new_ones(batch_size, num_new_tokens) if attention_mask is None else attention_mask,
                ),
                dim=1,
            )
        self.length += num_new_tokens
        return self.attention_mask

    def select_rows(self, row_indices: Int[Tensor, " kept"]) -> None:
        """Keep these batch rows, in this order. Indices may repeat."""
        self.inner.batch_select_indices(row_indices)
        if self.attention_mask is not None:
            self.attention_mask = self.attention_mask[row_indices]


class PretrainedModel(nn.Module):
    """A transformers model that implements our protocol.

    An encoder has no output layer: its logits are its last hidden state."""

    def __init__(self, inner: nn.Module, name: str = "") -> None:
        """Wrap a loaded transformers model."""
        super().__init__()
        self.inner: Any = inner
        self.name = name or type(inner).__name__
        config: Any = inner.config
        text_config = config.get_text_config()
        max_positions = getattr(text_config, "max_position_embeddings", None) or getattr(
            text_config, "n_positions", None
        )
        self.context = int(max_positions) if max_positions else UNLIMITED_CONTEXT
        self._forward_parameters = frozenset(inspect.signature(inner.forward).parameters)
        has_output = inner.get_output_embeddings() is not None  # type: ignore[operator]
        self.target = Target.NEXT_TOKEN if has_output else Target.NONE
        self.train(inner.training)

    @property
    def config(self) -> Any:
        return self.inner.config

    @property
    def can_pad(self) -> bool:
        """Return True: the model receives position ids and a padding mask."""
        return True

    def create_cache(self) -> PretrainedCache | None:
        """Return an empty cache; None for an encoder, or a model whose state is not a KV cache."""
        if self.target is Target.NONE or getattr(self.inner, "_is_stateful", False):
            return None
        return PretrainedCache(self.inner.config)

    def forward(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: PretrainedCache | None = None,
        output_attentions: bool = False,
    ) -> ModelOutput:
        """Return logits, hidden states and, if requested, attentions. Encoders return hidden states as logits."""
        arguments: dict[str, Any] = {"output_hidden_states": True}
        if output_attentions:
            arguments["output_attentions"] = True
        with use_eager_attention(self.inner, self.name) if output_attentions else nullcontext():
            output = self._call_inner(input_ids, attention_mask, cache, arguments)
        hidden_states = output.hidden_states[-1]
        logits = hidden_states if self.target is Target.NONE else output.logits
        attentions = self._extract_attentions(output) if output_attentions else None
        return ModelOutput(logits, attentions, hidden_states)

    def next_token_logits(
        self, input_ids: InputIds, attention_mask: Tensor | None = None, *, cache: PretrainedCache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """Return next-token logits. Applies the output layer to the last position only, where the model supports it."""
        if self.target is Target.NONE:
            raise ModelError(f"{self.name}: an encoder cannot generate text; use a decoder")
        arguments = {"logits_to_keep": 1} if "logits_to_keep" in self._forward_parameters else {}
        logits: Tensor = self._call_inner(input_ids, attention_mask, cache, arguments).logits[:, -1]
        return logits

    def build_decode_step(self, cache: PretrainedCache) -> Callable[[InputIds], Tensor]:
        """Return a function from the latest token of each sequence to next-token logits, using this cache."""
        return partial(self.next_token_logits, cache=cache)

    def _call_inner(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None,
        cache: PretrainedCache | None,
        forward_arguments: dict[str, Any],
    ) -> Any:
        """Call the loaded transformers model with the mask, position ids and cache that its signature accepts."""
        batch, length = input_ids.shape
        if cache is not None and self.target is Target.NONE:
            raise ModelError(f"{self.name}: encoders have no cache")
        is_unpadded = attention_mask is None and (cache is None or cache.attention_mask is None)
        start = cache.length if cache is not None else 0
        if is_unpadded and start + length > self.context:
            raise ModelError(
                f"{self.name}: the text needs {start + length} positions, but the model supports {self.context}"
            )
        mask = None if attention_mask is None else attention_mask.bool()
        full_mask = mask if cache is None else cache.append_attention_mask(length, mask, batch)
        if full_mask is not None:
            forward_arguments["attention_mask"] = full_mask.long()
        if "position_ids" in self._forward_parameters and self.target is not Target.NONE:
            forward_arguments["position_ids"] = self._compute_position_ids(full_mask, start, length, input_ids.device)
        if cache is not None:
            forward_arguments["past_key_values"], forward_arguments["use_cache"] = cache.inner, True
        elif "use_cache" in self._forward_parameters:
            forward_arguments["use_cache"] = False
        return self.inner(input_ids=input_ids, **forward_arguments)

    def _compute_position_ids(
        self, attention_mask: Tensor | None, start: int, length: int, device: torch.device
    ) -> Tensor:
        """Return position ids. A token's position is the number of tokens before it that are not padding."""
        if attention_mask is None:
            return torch.arange(start, start + length, device=device)[None]
        return (attention_mask.long().cumsum(1) - 1).clamp_min(0)[:, -length:]

    def _extract_attentions(self, model_output: Any) -> tuple[Tensor, ...]:
        """Return the attention weights of each layer; raise ModelError if the architecture does not return them."""
        attentions = model_output.attentions
        if not attentions or any(weights is None for weights in attentions):
            raise ModelError(f"{self.name}: this architecture does not return attention weights")
        return tuple(attentions)


@contextmanager
def use_eager_attention(inner: Any, name: str) -> Iterator[None]:
    """Use eager attention of a pretrained model inside the context: fused kernels return no attention weights."""
    previous_implementation = inner.config._attn_implementation
    if previous_implementation == "eager":
        yield
        return
    try:
        inner.set_attn_implementation("eager")
    except ValueError as error:
        raise ModelError(f"{name} has no eager attention, so it cannot return attention weights ({error})") from error
    try:
        yield
    finally:
        inner.set_attn_implementation(previous_implementation)
