"""Build the parts of a transformer's layers from its configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from headtohead.config.base import ComponentConfig
from headtohead.config.tables.model import LayerSlot, TransformerConfig
from headtohead.errors import ModelError
from headtohead.nn.layer import TransformerLayer
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import Attention, AttentionParts
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.norm import Norm
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position


class LayerBuilder:
    """Builds the layers of a transformer. Equally configured layers share position parts, and patterns without tensors.

    Shared parts are built outside the layers, so that their masks and biases are computed once per forward pass.
    """

    def __init__(self, model_config: TransformerConfig, sizes: ModelSizes) -> None:
        """Build the position parts of all layers, which share equal ones."""
        self.model_config, self.sizes = model_config, sizes
        self.position_sizes = replace(sizes, width=model_config.embedding_width or sizes.width)
        self._positions: dict[tuple[ComponentConfig, int], Position] = {}
        self._patterns: dict[tuple[ComponentConfig, ...], Pattern] = {}
        for layer_index in range(model_config.layers):
            self.get_positions(layer_index)

    @property
    def positions(self) -> list[Position]:
        """Return the position parts of all layers, in the order of their first use."""
        return list(self._positions.values())

    def get_positions(self, layer_index: int) -> list[Position]:
        """Return the position parts of one layer."""
        part_configs = self.model_config.get_layer_parts("position", layer_index)
        # Equal parts within one layer are separate modules, numbered by their repetition.
        keys = [(config, part_configs[:index].count(config)) for index, config in enumerate(part_configs)]
        for key in keys:
            if key not in self._positions:
                self._positions[key] = registry.build_part(
                    "position", key[0], self.position_sizes, module_name=f"positions.{len(self._positions)}"
                )
        return [self._positions[key] for key in keys]

    def build_pattern(self, layer_index: int) -> Pattern:
        """Return the attention pattern of a layer: the intersection of all patterns that its configuration lists."""
        default_config = ComponentConfig(kind="causal" if self.sizes.is_causal else "full")
        part_configs = self.model_config.get_layer_parts("pattern", layer_index) or (default_config,)
        if part_configs in self._patterns:
            return self._patterns[part_configs]
        patterns: list[Pattern] = [
            registry.build_part("pattern", config, self.sizes, module_name=f"layers.{layer_index}.pattern.{index}")
            for index, config in enumerate(part_configs)
        ]
        pattern = patterns[0]
        for next_pattern in patterns[1:]:
            pattern = pattern & next_pattern
        if not [*pattern.parameters(), *pattern.buffers()]:
            self._patterns[part_configs] = pattern
        return pattern

    def build_layer(self, layer_index: int) -> TransformerLayer:
        """Return one layer with its attention, feed-forward and block parts."""
        sizes = replace(self.sizes, layer_index=layer_index)
        feedforward = self._build_part("feedforward", sizes)
        block = self._build_part("block", sizes, lambda: self.build_norm(sizes), not feedforward.is_absent)
        return TransformerLayer(block, self._build_attention(sizes), feedforward)

    def build_norm(self, sizes: ModelSizes) -> Norm:
        """Return a new norm of the configured kind."""
        norm: Norm = registry.build_part("norm", self.model_config.norm, sizes)
        return norm

    def _build_attention(self, sizes: ModelSizes) -> Attention:
        """Build the attention of a layer with its projection, pattern and merges."""
        assert sizes.layer_index is not None
        projection, *projection_steps = self._build_parts(
            "projection", sizes, lambda first: replace(sizes, key_heads=first.key_heads)
        )
        parts = AttentionParts(
            projection,
            projection_steps,
            self.build_pattern(sizes.layer_index),
            self._build_parts("merge", sizes),
            self.get_positions(sizes.layer_index),
        )
        attention: Attention = self._build_part("attention", sizes, parts)
        return attention

    def _build_part(self, slot: LayerSlot, sizes: ModelSizes, *arguments: Any) -> Any:
        """Build the part that a layer has in a slot."""
        assert sizes.layer_index is not None
        (part_config,) = self.model_config.get_layer_parts(slot, sizes.layer_index)
        return registry.build_part(
            slot, part_config, sizes, *arguments, module_name=f"layers.{sizes.layer_index}.{slot}"
        )

    def _build_parts(
        self, slot: LayerSlot, sizes: ModelSizes, get_step_sizes: Callable[[Any], ModelSizes] | None = None
    ) -> list[Any]:
        """Build the list of parts that a layer has in a slot."""
        assert sizes.layer_index is not None
        part_configs = self.model_config.get_layer_parts(slot, sizes.layer_index)
        module_name = f"layers.{sizes.layer_index}.{slot}"
        return registry.build_parts(slot, part_configs, sizes, module_name=module_name, get_step_sizes=get_step_sizes)


def check_absolute_positions(positions: Sequence[Position]) -> None:
    """Raise ModelError if several position parts add absolute position embeddings to the token embeddings."""
    absolute_kinds = [part.kind for part in positions if part.is_absolute]
    if len(absolute_kinds) > 1:
        raise ModelError(f"only one absolute position part is allowed, got {' and '.join(absolute_kinds)}")
