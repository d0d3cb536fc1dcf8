"""A pass without padding equals the padded reference, for every part that declares that it is computed by token."""

from typing import Any

import pytest
import torch
from torch import Tensor

from headtohead.config.tables.model import TransformerConfig
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import Part, declares_capability
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.feedforward import MLPFeedForward
from headtohead.nn.parts.pool import Pool
from headtohead.nn.parts.token_packing import TokenPacking, pack_tokens
from headtohead.nn.transformer import Transformer

VOCAB = 19
STEPS: dict[tuple[str, str], Any] = {
    ("embedding", "scale"): ["table", "scale"],
    ("projection", "qk-norm"): ["linear", "qk-norm"],
    ("projection", "query-scale"): ["linear", {"kind": "query-scale", "by": 0.5}],
    ("output", "scale"): ["linear", {"kind": "scale", "by": 0.5}],
    ("output", "softcap"): ["linear", {"kind": "softcap", "cap": 5.0}],
}


def list_tokenwise_kinds() -> list[tuple[str, str]]:
    registry.load_builtin_parts()
    return [
        (part_class.slot, part_class.kind)
        for part_class in registry.list_part_classes()
        if issubclass(part_class, Part)
        and {"is_tokenwise", "ignores_padding"} & vars(part_class).keys()
        and part_class.slot
        and part_class.__module__.startswith("headtohead.")
    ]


def build(num_classes: int | None = 3, **settings: Any) -> Transformer:
    raw = {"width": 16, "layers": 2, "heads": 2, "context": 12, "position": "learned", **settings}
    model = build_model(TransformerConfig.model_validate(raw), VOCAB, num_classes, seed=0)
    assert isinstance(model, Transformer)
    return model.double()


def draw_padded_batch() -> tuple[Tensor, Tensor]:
    """Return token ids and a mask with padding at the end, at the start and inside."""
    ids = torch.randint(VOCAB, (4, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.zeros(4, 12, dtype=torch.bool)
    mask[0, :7], mask[1, 9:], mask[2, :3], mask[3, [0, 4, 5]] = True, True, True, True
    return ids, mask


def compute_loss(model: Transformer, **options: Any) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the outputs at the tokens, and the gradients of their weighted sum."""
    ids, mask = draw_padded_batch()
    model.zero_grad()
    logits = model(ids, mask, **options).logits
    outputs = logits if model.num_classes else logits[mask]
    (outputs * torch.linspace(-1, 1, outputs.numel(), dtype=torch.double).view_as(outputs)).sum().backward()
    return outputs.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def count_packed_passes(model: Transformer, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """Return the number of forward passes that remove padding."""
    calls = []
    original = TokenPacking.pad

    def pad(self: TokenPacking, x: Tensor) -> Tensor:
        calls.append(x)
        return original(self, x)

    with monkeypatch.context() as patch:
        patch.setattr(TokenPacking, "pad", pad)
        model(*draw_padded_batch(), **options)
    return len(calls)


@pytest.mark.parametrize(("slot", "kind"), list_tokenwise_kinds())
def test_outputs_and_gradients_equal_those_of_the_padded_reference(slot, kind, monkeypatch):
    num_classes = None if slot == "output" else 3
    model = build(num_classes, **{slot: STEPS.get((slot, kind), kind)})
    assert count_packed_passes(model, monkeypatch) == 1
    outputs, gradients = compute_loss(model)
    reference_outputs, reference_gradients = compute_loss(model, attn_implementation="eager")
    assert torch.allclose(outputs, reference_outputs, atol=1e-12)
    assert gradients.keys() == reference_gradients.keys()
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, reference_gradients[name], atol=1e-12), name


@pytest.mark.parametrize(
    ("num_classes", "is_causal", "settings"),
    [
        (None, None, {}),
        (None, False, {}),
        (3, None, {"pool": "first"}),
        (3, None, {"pool": "attention", "pattern": {"kind": "window", "size": 2}}),
        (None, None, {"projection": {"kind": "linear", "key_heads": 1}, "position": ["alibi", "rope"]}),
        (3, None, {"embedding_width": 8, "embedding_norm": True}),
    ],
)
def test_decoders_masked_language_models_and_pools_are_equal_too(num_classes, is_causal, settings, monkeypatch):
    raw = {"width": 16, "layers": 2, "heads": 2, "context": 12, **settings}
    model = build_model(TransformerConfig.model_validate(raw), VOCAB, num_classes, is_causal=is_causal, seed=0)
    assert isinstance(model, Transformer)
    model = model.double()
    assert count_packed_passes(model, monkeypatch) == 1
    outputs, gradients = compute_loss(model)
    reference_outputs, reference_gradients = compute_loss(model, attn_implementation="eager")
    assert torch.allclose(outputs, reference_outputs, atol=1e-12)
    for name, gradient in gradients.items():
        assert torch.allclose(gradient, reference_gradients[name], atol=1e-12), name


class UndeclaredFeedForward(MLPFeedForward):
    """May compute anything, because it does not declare that it computes tokens one by one."""


class MeanWithPadding(Pool):
    """Reads the padding."""

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x.mean(1)


def test_parts_that_declare_nothing_dropout_and_attention_weights_use_the_padded_batch(monkeypatch):
    model = build()
    assert count_packed_passes(model, monkeypatch, output_attentions=True) == 0
    model.layers[1].feedforward.__class__ = UndeclaredFeedForward
    assert not declares_capability(model.layers[1].feedforward, "is_tokenwise")
    assert count_packed_passes(model, monkeypatch) == 0
    reads_padding = build()
    reads_padding.pool = MeanWithPadding(model.sizes)
    assert count_packed_passes(reads_padding, monkeypatch) == 0
    with_dropout = build(dropout=0.1)
    assert count_packed_passes(with_dropout.train(), monkeypatch) == 0
    assert count_packed_passes(with_dropout.eval(), monkeypatch) == 1


def test_batches_with_little_padding_or_a_row_without_tokens_are_not_packed():
    mask = torch.ones(4, 10, dtype=torch.bool)
    assert pack_tokens(mask) is None
    mask[0, 6:] = False
    assert pack_tokens(mask) is None
    mask[1, 6:] = False
    assert pack_tokens(mask) is not None
    mask[2] = False
    assert pack_tokens(mask) is None


def test_packing_is_undone_by_padding_forward_and_backward():
    mask = draw_padded_batch()[1]
    packing = pack_tokens(mask)
    assert packing is not None
    hidden_states = torch.randn(*mask.shape, 3, dtype=torch.double, requires_grad=True)
    heads = torch.randn(len(mask), 2, mask.shape[1], 3, dtype=torch.double, requires_grad=True)
    padded = packing.pad(packing.pack(hidden_states))
    assert torch.equal(padded, hidden_states * mask[..., None])
    first, second = packing.pad_heads(packing.pack_heads(heads), packing.pack_heads(2 * heads))
    assert torch.equal(first, heads * mask[:, None, :, None])
    assert torch.equal(second, 2 * first)
    assert torch.autograd.gradcheck(packing.pack_heads, heads)
    assert torch.autograd.gradcheck(packing.pad, packing.pack(hidden_states).detach().requires_grad_())
    assert torch.autograd.gradcheck(packing.pad_heads, packing.pack_heads(heads).detach().requires_grad_())
