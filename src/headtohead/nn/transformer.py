"""One transformer for both: a decoder language model or an encoder classifier, from parts in named slots."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from headtohead.config import base, model
from headtohead.errors import ModelError
from headtohead.nn import fast_decode
from headtohead.nn.kv_cache import Cache
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import Attention, Sight
from headtohead.nn.parts.base import Law, Part, Road, Sizes
from headtohead.nn.parts.block import Block
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.pattern import Pattern
from headtohead.nn.parts.position import Position
from headtohead.nn.protocol import Output

Ids = Int[Tensor, "batch length"]
Stream = Float[Tensor, "batch length width"]


class Layer(nn.Module):
    """One block with what it holds."""

    def __init__(self, block: Block, attention: Attention, feedforward: FeedForward) -> None:
        super().__init__()
        self.block, self.attention, self.feedforward = block, attention, feedforward

    def forward(self, x: Stream, sight: Sight, layer: int) -> tuple[Stream, Tensor | None]:
        maps: list[Tensor | None] = []
        attend = partial(self._attend, sight, layer, maps)
        out: Tensor = self.block(x, attend, None if self.feedforward.absent else self.feedforward)
        return out, maps[0] if maps else None

    def _attend(self, sight: Sight, layer: int, maps: list[Tensor | None], stream: Stream) -> Stream:
        """Attention as the block knows it, a function of the stream; the maps are put aside."""
        out: Tensor
        out, seen = self.attention(stream, sight, layer)
        maps.append(seen)
        return out


class Transformer(nn.Module):
    """Embedding, layers, and an output: a vocabulary layer, or pool and classifier when `classes` is given."""

    def __init__(self, model: model.Transformer, vocab: int, classes: int | None = None) -> None:
        super().__init__()
        self.spec = model
        self.context, self.classes = model.context, classes
        self.sizes = sizes = Sizes(
            width=model.width,
            heads=model.heads,
            head_dim=model.head_width,
            layers=model.layers,
            context=model.context,
            vocab=vocab,
            causal=classes is None,
            dropout=model.dropout,
        )
        self.embedding = nn.Embedding(vocab, model.width)
        self.positions = nn.ModuleList(registry.build("position", choice, sizes) for choice in model.position)
        self._check_positions()
        self.embedding_norm = self._norm() if model.embedding_norm else nn.Identity()
        self.drop = nn.Dropout(model.dropout)
        self._patterns: dict[tuple[base.Choice, ...], Pattern] = {}
        self.layers = nn.ModuleList(self._layer(i) for i in range(model.layers))
        self.final_norm = self._norm() if model.final_norm else nn.Identity()
        if classes is None:
            self.output = nn.Linear(model.width, vocab, bias=model.output_bias is not False)
            if model.tied:
                self.output.weight = self.embedding.weight
        else:
            self.pool = registry.build("pool", model.pool, sizes)
            self.classifier = _classifier(model.width, model.classifier_hidden, classes)
        self._roads = frozenset[Road]({"explicit", "fused"})
        for module in self.modules():  # walked once: every pass asks
            if isinstance(module, Part):
                self._roads &= module.roads

    def _norm(self) -> nn.Module:
        norm: nn.Module = registry.build("norm", self.spec.norm, self.sizes)
        return norm

    def _layer(self, index: int) -> Layer:
        model, sizes = self.spec, self.sizes
        attention = registry.build(
            "attention",
            model.attention,
            sizes,
            registry.build("projection", model.projection, sizes),
            self._pattern(index),
            registry.build("merge", model.merge, sizes),
            list(self.positions),
        )
        feedforward = registry.build("feedforward", model.feedforward, sizes)
        block = registry.build("block", model.block, sizes, self._norm, not feedforward.absent)
        return Layer(block, attention, feedforward)

    def _pattern(self, index: int) -> Pattern:
        """Layers that chose alike share a pattern, and with it the mask that is computed once a pass; one that learns
        something is each layer's own."""
        chosen = self.spec.pattern_of(index, "causal" if self.sizes.causal else "full")
        if chosen in self._patterns:
            return self._patterns[chosen]
        patterns: list[Pattern] = [registry.build("pattern", choice, self.sizes) for choice in chosen]
        pattern = patterns[0]
        for other in patterns[1:]:
            pattern = pattern & other
        if not [*pattern.parameters(), *pattern.buffers()]:
            self._patterns[chosen] = pattern
        return pattern

    def _check_positions(self) -> None:
        absolute = [p.kind for p in self._position_parts() if p.absolute]
        if len(absolute) > 1:
            raise ModelError(f"two absolute position signals in one model: {' and '.join(absolute)}")

    def _position_parts(self) -> Iterator[Position]:
        for position in self.positions:
            assert isinstance(position, Position)
            yield position

    @property
    def limit(self) -> int | None:
        """The longest input that the position parts can take; None: any."""
        return min((p.limit for p in self._position_parts() if p.limit is not None), default=None)

    @property
    def roads(self) -> frozenset[Road]:
        """The roads that every part allows."""
        return self._roads

    @property
    def breaks(self) -> frozenset[Law]:
        """The laws that some part declares to break."""
        return frozenset(law for m in self.modules() if isinstance(m, Part) for law in m.breaks)

    def forward(
        self,
        input_ids: Ids,
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        maps: bool = False,
        road: Road | None = None,
    ) -> Output:
        x, maps_of_layers = self.stream(input_ids, attention_mask, cache=cache, maps=maps, road=road)
        if self.classes is None:
            return Output(self.output(x), maps_of_layers, x)
        valid = self._valid(input_ids, attention_mask)
        everything = torch.ones_like(input_ids, dtype=torch.bool)
        return Output(self.classifier(self.pool(x, everything if valid is None else valid)), maps_of_layers, x)

    def next_logits(
        self, input_ids: Ids, attention_mask: Tensor | None = None, *, cache: Cache | None = None
    ) -> Float[Tensor, "batch vocab"]:
        """What comes after the last token: the vocabulary layer is asked once a row and not once a token."""
        x, _ = self.stream(input_ids, attention_mask, cache=cache)
        logits: Tensor = self.output(x[:, -1])
        return logits

    def new_cache(self) -> Cache | None:
        """An empty cache for whoever decodes; None when a part breaks the law of the cache."""
        return None if "cache" in self.breaks else Cache(len(self.layers))

    def stepper(self, cache: Cache) -> Callable[[Ids], Tensor]:
        """A function that reads one more token of each row, with this cache: the quick road where every part has one.
        It holds the weights as they are now."""
        return fast_decode.plan(self, cache) or partial(self.next_logits, cache=cache)

    @property
    def pads(self) -> bool:
        """Whether texts of different length may stand in one batch: padding is masked, and no row sees another."""
        return self.spec.mask_padding and "batch" not in self.breaks

    def stream(
        self,
        input_ids: Ids,
        attention_mask: Tensor | None = None,
        *,
        cache: Cache | None = None,
        maps: bool = False,
        road: Road | None = None,
    ) -> tuple[Stream, tuple[Tensor, ...] | None]:
        """All but the output layer: what the loss and decoding start from."""
        valid = self._valid(input_ids, attention_mask)
        sight = self._sight(input_ids, valid, cache, maps, road)
        x = self.embedding(input_ids)
        for position in self._position_parts():
            x = position.embed(x, sight.query_at)
        x = self.drop(self.embedding_norm(x))
        seen: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            x, layer_maps = layer(x, sight, index)
            if layer_maps is not None:
                seen.append(layer_maps)
        return self.final_norm(x), tuple(seen) if maps else None

    def _valid(self, input_ids: Ids, attention_mask: Tensor | None) -> Bool[Tensor, "batch length"] | None:
        if attention_mask is None or not self.spec.mask_padding:
            return None
        return attention_mask.bool()

    def _sight(self, input_ids: Ids, valid: Tensor | None, cache: Cache | None, maps: bool, road: Road | None) -> Sight:
        batch, length = input_ids.shape
        if valid is None and (cache is None or cache.valid is None):
            start = cache.length if cache is not None else 0
            at = torch.arange(start, start + length, device=input_ids.device)
            end = start + length
        else:
            # A token's position is the number of tokens before it that are not padding.
            known = torch.ones_like(input_ids, dtype=torch.bool) if valid is None else valid
            at = known.long().cumsum(1) - 1
            if cache is not None and cache.at is not None:
                past = cache.valid.sum(1) if cache.valid is not None else at.new_full((batch,), cache.length)
                at = at + past[:, None]
            at = at.clamp_min(0)
            end = int(at.max()) + 1 if self.limit is not None else 0
        self.check_length(end)
        key_at, key_valid = (at, valid) if cache is None else cache.extend(at, valid)
        chosen = self._road(maps, road)
        memories = cache.memories if cache is not None else None
        return Sight(at, key_at, list(self._position_parts()), key_valid, chosen, maps, memories)

    def check_length(self, end: int) -> None:
        """An error when a position part does not know so many positions."""
        if self.limit is not None and end > self.limit:
            raise ModelError(
                f"{end} positions are more than the {self.limit} that the model's position part knows "
                f"({', '.join(p.kind for p in self._position_parts())}); "
                "take a position that extends (none, sinusoidal, alibi, rope), or a shorter text"
            )

    def _road(self, maps: bool, road: Road | None) -> Road:
        if maps or (road is None and "fused" not in self.roads):
            road = "explicit"
        if (road or "fused") not in self.roads:
            raise ModelError(f"the {road} road is closed: a part of this model allows {', '.join(self.roads)} only")
        return road or "fused"


def _classifier(width: int, hidden: int | None, classes: int) -> nn.Module:
    if hidden is None:
        return nn.Linear(width, classes)
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))
