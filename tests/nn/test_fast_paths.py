"""A subclass of a built-in part that overrides a method is trained and decoded as written, not like its base class."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from headtohead.config.tables import model as config_model
from headtohead.model_factory import build_model
from headtohead.nn import fast_decode
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.block import PreNormBlock
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.feedforward import MLPFeedForward
from headtohead.nn.parts.merge import ConcatHeads
from headtohead.nn.parts.norm import LayerNorm
from headtohead.nn.parts.pattern import CausalPattern, SlidingWindowPattern
from headtohead.nn.parts.position import LearnedPosition, RotaryPosition
from headtohead.nn.parts.projection import LinearProjection
from headtohead.nn.parts.registry import register_part
from headtohead.nn.transformer import Transformer

VOCAB_SIZE, CONTEXT = 13, 24


class SlowRope(RotaryPosition):
    def rotate(self, q: Tensor, k: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor]:
        return super().rotate(q, k, replace(context, query_positions=context.query_positions // 2))


class UnchangedRope(RotaryPosition):
    pass


class ScaledLearned(LearnedPosition):
    def add_positions(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x + 3 * self.table(context.query_positions)


class UnchangedLearned(LearnedPosition):
    pass


class BiasedLearned(LearnedPosition):
    def compute_bias(self, query_positions: Tensor, key_positions: Tensor, context: ForwardContext) -> Tensor:
        distance = (query_positions[..., :, None] - key_positions[..., None, :]).abs()
        return -0.5 * distance[..., None, :, :].expand(*distance.shape[:-2], self.sizes.heads, -1, -1)


class EvenDistances(CausalPattern):
    def compute_mask(self, query_positions: Tensor, key_positions: Tensor, context: ForwardContext) -> Tensor:
        distance = query_positions[..., :, None] - key_positions[..., None, :]
        return super().compute_mask(query_positions, key_positions, context) & (distance % 2 == 0)


class EvenKeys(SlidingWindowPattern):
    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes, size=4)

    def compute_mask(self, query_positions: Tensor, key_positions: Tensor, context: ForwardContext) -> Tensor:
        distance = query_positions[..., :, None] - key_positions[..., None, :]
        is_visible = (key_positions % 2 == 0)[..., None, :] | (distance == 0)
        return super().compute_mask(query_positions, key_positions, context) & is_visible


class ScaledProjection(LinearProjection):
    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes, key_heads=1)

    def forward(self, x: Tensor, context: ForwardContext) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().forward(x, context)
        return q, 2 * k, v


class ReversedHeads(ConcatHeads):
    def forward(self, head_outputs: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
        return head_outputs.flip(1)


class DoubledNorm(LayerNorm):
    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return 2 * super().forward(x, context)


class SquaredFeedForward(MLPFeedForward):
    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return super().forward(x, context).square()


class HalvedBlock(PreNormBlock):
    def forward(self, x: Tensor, attend: Any, feedforward: Any, context: ForwardContext) -> Tensor:
        return super().forward(x, attend, feedforward, context) / 2


class NegatedAttention(MultiHeadAttention):
    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return -super().forward(x, context)


SUBCLASSES = [
    ("position", SlowRope),
    ("position", UnchangedRope),
    ("position", ScaledLearned),
    ("position", UnchangedLearned),
    ("position", BiasedLearned),
    ("pattern", EvenDistances),
    ("pattern", EvenKeys),
    ("projection", ScaledProjection),
    ("merge", ReversedHeads),
    ("norm", DoubledNorm),
    ("feedforward", SquaredFeedForward),
    ("block", HalvedBlock),
    ("attention", NegatedAttention),
]
REFERENCE_PATH_ONLY = (HalvedBlock, NegatedAttention)
every_subclass = pytest.mark.parametrize(("slot", "part_class"), SUBCLASSES, ids=[c.__name__ for _, c in SUBCLASSES])


def build(monkeypatch: pytest.MonkeyPatch, slot: str, part_class: Any, context: int = CONTEXT) -> Transformer:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    register_part(slot, "subclass")(part_class)
    settings = {"width": 16, "heads": 2, "layers": 2, "context": context, "position": "learned", slot: "subclass"}
    model = build_model(config_model.TransformerConfig.model_validate(settings), VOCAB_SIZE)
    assert isinstance(model, Transformer)
    return model.eval()


@torch.no_grad()
@pytest.mark.parametrize("num_padding", [0, 3], ids=["unpadded", "padded"])
@every_subclass
def test_decoding_a_subclass_equals_a_full_forward_pass(
    slot: str, part_class: Any, num_padding: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(monkeypatch, slot, part_class)
    ids = torch.randint(VOCAB_SIZE, (3 if num_padding else 1, 20), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[0, :num_padding] = False
    prompt_mask = mask[:, :8] if num_padding else None
    expected = model(ids, mask if num_padding else None, attn_implementation="eager").logits
    cache = model.create_cache()
    assert cache is not None
    logits = model.next_token_logits(ids[:, :8], prompt_mask, cache=cache)
    decode_step = model.build_decode_step(cache)
    assert isinstance(decode_step, fast_decode.FastDecoder) != (part_class in REFERENCE_PATH_ONLY)
    for position in range(8, 20):
        assert torch.allclose(logits, expected[:, position - 1], atol=1e-5)
        logits = decode_step(ids[:, position : position + 1])
    assert torch.allclose(logits, expected[:, -1], atol=1e-5)


@pytest.mark.parametrize("length", [9, 96], ids=["short", "blocked"])
@pytest.mark.parametrize("part_class", [EvenDistances, EvenKeys])
def test_a_pattern_that_overrides_its_mask_trains_with_that_mask(
    part_class: Any, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(monkeypatch, "pattern", part_class, context=96).train()
    ids = torch.randint(VOCAB_SIZE, (2, length), generator=torch.Generator().manual_seed(0))
    gradients = {}
    for implementation in ("eager", "sdpa"):
        model.zero_grad()
        model(ids, attn_implementation=implementation).logits.square().mean().backward()
        gradients[implementation] = [parameter.grad.clone() for parameter in model.parameters()]
    for eager, sdpa in zip(gradients["eager"], gradients["sdpa"], strict=True):
        assert torch.allclose(eager, sdpa, atol=1e-5)
