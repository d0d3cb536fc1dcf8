"""Sizes: the published parameter counts to the last one, and costs against a formula worked out by hand."""

from typing import Any

import pytest
import torch

from headtohead.config import model
from headtohead.model_cost import compute_model_cost
from headtohead.model_factory import build_model

VOCAB = 5755
DECODER = {"feedforward": {"kind": "mlp", "hidden": 100}}
ENCODER: dict[str, Any] = {}
# Report A: q, k and v of total width 4 (two heads of 2), feed-forward 100, no final norm in the encoder.
DECODER_A = {"head_dim": 2, "feedforward": {"kind": "mlp", "hidden": 100}}
ENCODER_A = {**DECODER_A, "final_norm": False}


def made(settings: dict[str, Any]) -> model.TransformerConfig:
    return model.TransformerConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("settings", "classes", "published"),
    [
        (DECODER, None, 863_243),
        (ENCODER, 3, 576_467),
        (DECODER_A, None, 801_803),
        (ENCODER_A, 3, 434_403),
    ],
    ids=["B decoder", "B classifier", "A decoder", "A classifier"],
)
def test_published_sizes_are_hit_exactly(settings: dict[str, Any], classes: int | None, published: int) -> None:
    assert compute_model_cost(made(settings), VOCAB, classes).parameters == published
    real = build_model(made(settings), VOCAB, classes)
    assert sum(parameter.numel() for parameter in real.parameters()) == published


@pytest.mark.parametrize(
    ("settings", "published"), [(ENCODER, 569_664), (ENCODER_A, 427_600)], ids=["B encoder", "A encoder"]
)
def test_published_sizes_without_the_classifier(settings: dict[str, Any], published: int) -> None:
    model = build_model(made(settings), VOCAB, 3)
    head = sum(p.numel() for name, p in model.named_parameters() if name.startswith("classifier"))
    assert head == 64 * 100 + 100 + 100 * 3 + 3
    assert sum(p.numel() for p in model.parameters()) - head == published


def by_hand(width: int, layers: int, hidden: int, out: int, seen: int) -> int:
    """A multiplication and an addition for every weight that a token meets, and for every pair of query and key, twice
    (the scores and the sum of the values)."""
    projections = 4 * width * width
    feedforward = 2 * width * hidden
    attention = 2 * seen * width
    return 2 * (layers * (projections + feedforward + attention) + width * out)


def test_flops_of_the_base_decoder_are_those_of_the_formula() -> None:
    counted = compute_model_cost(made(DECODER), VOCAB)
    assert counted.flops_per_token == by_hand(64, 4, 100, VOCAB, seen=32)


def test_flops_of_the_base_classifier_are_those_of_the_formula() -> None:
    counted = compute_model_cost(made(ENCODER), VOCAB, 3)
    head = 2 * (64 * 100 + 100 * 3)  # once a text
    assert counted.flops_per_token == (by_hand(64, 4, 256, 0, seen=32) * 32 + head) // 32


@pytest.mark.parametrize("context", [64, 256, 1024])
def test_flops_of_a_window_do_not_grow_with_the_context(context: int) -> None:
    """A block of 16 queries looks at itself and at the block before it, however long the text is."""
    windowed = made({**DECODER, "context": context, "position": "alibi", "pattern": {"kind": "window", "size": 9}})
    full = made({**DECODER, "context": context, "position": "alibi"})
    assert compute_model_cost(windowed, VOCAB).flops_per_token == by_hand(64, 4, 100, VOCAB, seen=32)
    assert compute_model_cost(full, VOCAB).flops_per_token == by_hand(64, 4, 100, VOCAB, seen=context)


@pytest.mark.parametrize("classes", [None, 3])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"heads": 4, "projection": {"kind": "linear", "key_heads": 1, "bias": True}},
        {"projection": {"kind": "mlp", "depth": 2}, "norm": "rms", "feedforward": "swiglu"},
        {"position": ["alibi", "rope"], "block": "parallel", "feedforward": "none", "merge": "shuffle"},
        {"embedding_norm": True, "classifier_hidden": None, "pool": "attention", "output_bias": False},
        {"tie_word_embeddings": True},
    ],
    ids=str,
)
def test_count_agrees_with_the_real_model(settings: dict[str, Any], classes: int | None) -> None:
    counted = compute_model_cost(made(settings), 101, classes, batch_size=8)
    real = build_model(made(settings), 101, classes)
    parameters = sum(parameter.numel() for parameter in real.parameters())
    logits = 8 * (32 * 101 if classes is None else classes)
    assert counted.parameters == parameters
    assert counted.weights_bytes == sum(p.numel() * p.element_size() for p in real.parameters())
    assert counted.training_bytes == 4 * (4 * parameters + 2 * logits)


def test_tied_weights_are_counted_once() -> None:
    untied = compute_model_cost(made({"output_bias": False}), VOCAB).parameters
    assert (
        compute_model_cost(made({"output_bias": False, "tie_word_embeddings": True}), VOCAB).parameters
        == untied - VOCAB * 64
    )


def test_counting_makes_no_weights() -> None:
    """A model of 100 billion parameters is counted in no time and no memory."""
    big = made({"width": 36864, "layers": 5, "heads": 96, "context": 16, "position": "rope"})
    assert compute_model_cost(big, 50_000).parameters > 80e9


def test_counting_leaves_the_random_state_alone() -> None:
    before = torch.get_rng_state()
    compute_model_cost(made(DECODER), VOCAB)
    assert torch.equal(before, torch.get_rng_state())


class NeedsValues(torch.nn.Module):
    """Reads a value and creates a tensor without a device, which fails on the meta device."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding, self.output = torch.nn.Embedding(vocab_size, 8), torch.nn.Linear(8, vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(input_ids) * (1.0 + 0 * input_ids.float().mean().item())
        x = x + torch.arange(input_ids.shape[1]).float()[:, None]
        query = x[:, None]
        x = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True)[:, 0]
        logits: torch.Tensor = self.output(x)
        return logits


class NeedsTwoRows(NeedsValues):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert len(input_ids) > 1
        return super().forward(input_ids)


class NeedsFiveRows(NeedsValues):
    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        assert len(input_ids) > 4
        return super().forward(input_ids)


@pytest.mark.parametrize(("network", "flops"), [("NeedsValues", 688), ("NeedsTwoRows", 688), ("NeedsFiveRows", None)])
def test_code_of_users_runs_on_a_real_device_or_is_not_counted(network: str, flops: int | None) -> None:
    config = model.CustomModelConfig(module=f"{__file__}:{network}", context=16)
    cost = compute_model_cost(config, 11)
    assert cost.flops_per_token == flops  # 2 * 8 * 11 for the output, 2 * 2 * 16 * 8 for the attention
    assert cost.parameters == 2 * 8 * 11
