"""A transformer built from parts in named slots: a decoder language model or an encoder classifier."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.config.tables.model import TransformerConfig
from headtohead.errors import ModelError
from headtohead.nn import fast_decode
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.layer import HiddenStates
from headtohead.nn.layer_builder import LayerBuilder, check_absolute_positions
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import AttentionImplementation, Invariant, ModelSizes, Part, declares_capability
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.init import Init
from headtohead.nn.parts.norm import NoNorm
from headtohead.nn.parts.output import LinearOutput
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.position import Position
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.seeded_init import WriteRecorder, find_layer_roles, init_parameters

InputIds = Int[Tensor, "batch length"]


class Transformer(nn.Module):
    """A transformer built from parts: embedding, layers, and an output layer or a classifier.

    Args:
        model_config: Width, layers and the part of each slot.
        vocab_size: Size of the vocabulary.
        num_classes: Number of classes. If given, the model pools its hidden states and has a classifier instead of an
            output layer.
        is_causal: Whether the default attention pattern is causal. By default, models with an output layer are causal
            and classifiers are not; a masked language model is an encoder with an output layer.
    """

    def __init__(
        self,
        model_config: TransformerConfig,
        vocab_size: int,
        num_classes: int | None = None,
        *,
        is_causal: bool | None = None,
    ) -> None:
        """Build the layers and all other parts that a configuration names."""
        super().__init__()
        self.model_config = model_config
        self.context, self.num_classes = model_config.context, num_classes
        self.sizes = sizes = ModelSizes(
            width=model_config.width,
            heads=model_config.heads,
            head_dim=model_config.resolved_head_dim,
            layers=model_config.layers,
            context=model_config.context,
            vocab_size=vocab_size,
            is_causal=num_classes is None if is_causal is None else is_causal,
            dropout=model_config.dropout,
            tie_word_embeddings=model_config.tie_word_embeddings,
        )
        self.layer_builder = builder = LayerBuilder(model_config, sizes)
        embedding_sizes = builder.position_sizes
        self.embedding, *embedding_steps = registry.build_parts(
            "embedding", model_config.embedding, embedding_sizes, module_name="embedding"
        )
        self.embedding_steps = registry.build_step_modules(embedding_steps)
        self.positions = nn.ModuleList(builder.positions)
        check_absolute_positions(builder.positions)
        self.embedding_norm = builder.build_norm(embedding_sizes) if model_config.embedding_norm else NoNorm(sizes)
        self.embedding_projection: nn.Module = (
            nn.Identity()
            if model_config.embedding_width is None
            else nn.Linear(model_config.embedding_width, model_config.width)
        )
        self.drop = nn.Dropout(model_config.dropout)
        self.layers = nn.ModuleList(builder.build_layer(i) for i in range(model_config.layers))
        self.stack = registry.build_part("stack", model_config.stack, sizes, module_name="stack")
        self.final_norm = builder.build_norm(sizes) if model_config.final_norm else NoNorm(sizes)
        if num_classes is None:
            self.output, *output_steps = registry.build_parts(
                "output", model_config.output, sizes, self.embedding, module_name="output"
            )
            self.output_steps = registry.build_step_modules(output_steps)
        else:
            self.pool = registry.build_part("pool", model_config.pool, sizes, module_name="pool")
            self.classifier = _build_classification_head(model_config, num_classes)
        self.inits: list[Init] = [registry.build_part("init", part_config, sizes) for part_config in model_config.init]
        self._attn_implementations = frozenset[AttentionImplementation]({"eager", "sdpa"})
        for module in self.modules():  # collected once, because every forward pass needs it
            if isinstance(module, Part):
                self._attn_implementations &= module.attn_implementations

    def init_weights(self, seed: int, constructor_writes: WriteRecorder | None = None) -> None:
        """Initialize all tensors from (seed, module name).

        Args:
            seed: Seed of the initial weights.
            constructor_writes: Writes that were recorded while the model was built. Values that a part set in its
                constructor are kept.
        """
        init_parameters(self, seed, constructor_writes, self.inits)

    def compute_lr_multipliers(self) -> dict[str, float]:
        """Return the learning-rate multiplier of each parameter by name, except multipliers of 1."""
        multipliers = {}
        for name, role in find_layer_roles(self).items():
            multiplier = math.prod(init.get_lr_multiplier(role) for init in self.inits)
            if multiplier != 1:
                multipliers[f"{name}.weight"] = multiplier
        return multipliers

    def build_pattern(self, layer_index: int) -> Pattern:
        """Return the attention pattern of a layer."""
        return self.layer_builder.build_pattern(layer_index)

    @property
    def is_causal(self) -> bool:
        """Whether the model is a decoder, in which no position attends to later ones."""
        return self.sizes.is_causal

    @property
    def position_parts(self) -> list[Position]:
        """The position parts of all layers, each of them once."""
        return list(self.positions)  # type: ignore[arg-type]

    @property
    def max_positions(self) -> int | None:
        """The maximum input length supported by all position parts; None if there is no limit."""
        return min((part.max_positions for part in self.position_parts if part.max_positions is not None), default=None)

    @property
    def attn_implementations(self) -> frozenset[AttentionImplementation]:
        """The attention implementations supported by every part."""
        return self._attn_implementations

    @property
    def violates(self) -> frozenset[Invariant]:
        """The invariants that any part declares to violate."""
        return frozenset(
            invariant for module in self.modules() if isinstance(module, Part) for invariant in module.violates
        )

    def forward(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
        attn_implementation: AttentionImplementation | None = None,
    ) -> ModelOutput:
        """Run the model on a batch of token ids.

        Args:
            input_ids: Token ids, (batch, length).
            attention_mask: False on padding, (batch, length). If None, there is no padding.
            cache: KV cache with the preceding tokens, which is extended.
            output_attentions: Return the attention weights of all layers.
            attn_implementation: "eager" or "sdpa"; selected automatically if None.

        Returns:
            Logits, (batch, length, vocab) or (batch, classes), hidden states and, if requested, attention weights.
        """
        x, context = self.compute_hidden_states(
            input_ids,
            attention_mask,
            cache=cache,
            output_attentions=output_attentions,
            attn_implementation=attn_implementation,
        )
        attentions = tuple(context.attentions) if output_attentions else None
        if self.num_classes is None:
            return ModelOutput(self.compute_logits(x, context), attentions, x, context.losses)
        return ModelOutput(self.classifier(self.pool(x, context)), attentions, x, context.losses)

    def next_token_logits(
        self, input_ids: InputIds, attention_mask: Tensor | None = None, *, cache: KVCache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """Return the next-token logits, (batch, vocab). Applies the output layer to the last position only."""
        x, context = self.compute_hidden_states(input_ids, attention_mask, cache=cache)
        return self.compute_logits(x[:, -1], context)

    def compute_logits(
        self, x: Float[Tensor, "*positions width"], context: ForwardContext
    ) -> Float[Tensor, "*positions vocab"]:
        """Apply the output layer to hidden states of all or selected positions."""
        logits: Tensor = self.output(x, context)
        for step in self.output_steps.values():
            logits = step(logits, x, context)
        return logits

    @property
    def has_linear_output(self) -> bool:
        """Whether logits are a linear function of hidden states, so that the loss can be computed in chunks."""
        return self.num_classes is None and type(self.output) is LinearOutput and not len(self.output_steps)

    def create_cache(self) -> KVCache | None:
        """Return an empty cache, or None if a part violates the cache invariant."""
        return None if "kv-cache" in self.violates else KVCache(self.stack.depth)

    def build_decode_step(self, cache: KVCache) -> Callable[[InputIds], Tensor]:
        """Return a function from the latest token of each sequence, (batch, 1), to next-token logits, using this cache.

        If every part supports it, the function uses the fast path, which copies the current weights.
        """
        return fast_decode.build_fast_decoder(self, cache) or partial(self.next_token_logits, cache=cache)

    @property
    def can_pad(self) -> bool:
        """Return whether a batch may contain sequences of different lengths.

        This requires that padding is masked and that the sequences of a batch are independent.
        """
        return self.model_config.mask_padding and "batch-independence" not in self.violates

    def compute_hidden_states(
        self,
        input_ids: InputIds,
        attention_mask: Tensor | None = None,
        *,
        cache: KVCache | None = None,
        output_attentions: bool = False,
        attn_implementation: AttentionImplementation | None = None,
    ) -> tuple[HiddenStates, ForwardContext]:
        """Run the model up to the output layer. Takes the arguments of `forward`.

        Returns:
            The input to the output layer, and the context of the forward pass with its attention weights and losses.
        """
        padding_mask = self._resolve_padding_mask(attention_mask)
        context = self._build_context(input_ids, padding_mask, cache)
        context.output_attentions = output_attentions
        context.attn_implementation = self._select_attn_implementation(output_attentions, attn_implementation)
        padded_context = context
        if self._can_pack_tokens(context):
            context = context.pack_tokens()
        x: Tensor = self.embedding(context.input_ids, context)
        for step in self.embedding_steps.values():
            x = step(x, context)
        for part in self.positions:
            x = part.add_positions(x, context)  # type: ignore[operator]
        x = self.embedding_projection(self.drop(self.embedding_norm(x, context)))
        x = self.stack(x, [partial(_run_layer, layer) for layer in self.layers], context)
        context.enter_layer(max(context.layer_index + 1, context.num_layers))
        x = self.final_norm(x, context)
        if context.packing is not None:
            x = context.packing.pad(x)
            padded_context.enter_layer(context.layer_index)
        return x, padded_context

    def _can_pack_tokens(self, context: ForwardContext) -> bool:
        """Return whether a pass without padding gives the same result, up to rounding.

        Dropout would draw other numbers. The speed was only measured on the CPU.
        """
        if context.attention_mask is None or context.cache is not None or context.attn_implementation != "sdpa":
            return False
        if context.input_ids.device.type != "cpu" or (self.training and self.sizes.dropout > 0):
            return False
        parts = [module for module in self.modules() if isinstance(module, Part) and not isinstance(module, Pattern)]
        return all(declares_capability(p, "ignores_padding" if isinstance(p, Pool) else "is_tokenwise") for p in parts)

    def _resolve_padding_mask(self, attention_mask: Tensor | None) -> Bool[Tensor, "batch length"] | None:
        """Return the attention mask as bool, or None if the model does not mask padding."""
        if attention_mask is None or not self.model_config.mask_padding:
            return None
        return attention_mask.bool()

    def _build_context(
        self, input_ids: InputIds, attention_mask: Tensor | None, cache: KVCache | None
    ) -> ForwardContext:
        """Return the context of a forward pass, after the positions of its tokens were appended to the cache."""
        batch_size, length = input_ids.shape
        if attention_mask is None and (cache is None or cache.attention_mask is None):
            start = cache.length if cache is not None else 0
            positions = torch.arange(start, start + length, device=input_ids.device)
            num_positions = start + length
        else:
            mask = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask
            positions = mask.long().cumsum(1) - 1
            if cache is not None and cache.length:
                past_mask = cache.attention_mask
                num_past = positions.new_full((batch_size,), cache.length) if past_mask is None else past_mask.sum(1)
                positions = positions + num_past[:, None]
            positions = positions.clamp_min(0)
            # A compiler cannot read the value of a tensor.
            is_checked = self.max_positions is not None and not torch.compiler.is_compiling()
            num_positions = int(positions.max()) + 1 if is_checked else 0
        self.check_length(num_positions)
        key_positions, key_mask = positions, attention_mask
        if cache is not None:
            key_positions, key_mask = cache.append_positions(positions, attention_mask)
        return ForwardContext(
            input_ids,
            positions,
            key_positions,
            attention_mask,
            key_mask,
            num_layers=self.stack.depth,
            is_training=self.training,
            cache=cache,
        )

    def check_length(self, num_positions: int) -> None:
        """Raise ModelError if a position part does not support this many positions."""
        if self.max_positions is not None and num_positions > self.max_positions:
            raise ModelError(
                f"the text needs {num_positions} positions, but the model supports {self.max_positions} "
                f"(position: {', '.join(part.kind for part in self.position_parts)}); "
                "use a shorter text, or a position part without a limit (none, sinusoidal, alibi, rope)"
            )

    def _select_attn_implementation(
        self, output_attentions: bool, attn_implementation: AttentionImplementation | None
    ) -> AttentionImplementation:
        """Return the attention implementation to use; raise ModelError if a part does not support it."""
        if output_attentions or (attn_implementation is None and "sdpa" not in self.attn_implementations):
            attn_implementation = "eager"
        if (attn_implementation or "sdpa") not in self.attn_implementations:
            raise ModelError(
                f'attention implementation "{attn_implementation}" is not available: '
                f"the parts of this model support only {', '.join(sorted(self.attn_implementations)) or 'none'}"
            )
        return attn_implementation or "sdpa"


def _run_layer(layer: nn.Module, x: HiddenStates, context: ForwardContext) -> HiddenStates:
    """Run a layer as the next layer run of the forward pass."""
    out: Tensor = layer(x, context, context.layer_index + 1)
    return out


CLASSIFIER_ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}


def _build_classification_head(model_config: TransformerConfig, num_classes: int) -> nn.Module:
    """Return the head of a transformer classifier: it maps a pooled vector, (batch, width), to (batch, classes)."""
    width, hidden_width = model_config.width, model_config.classifier_hidden
    if hidden_width is None:
        return nn.Linear(width, num_classes)
    activation = CLASSIFIER_ACTIVATIONS[model_config.classifier_activation]()
    return nn.Sequential(nn.Linear(width, hidden_width), activation, nn.Linear(hidden_width, num_classes))
