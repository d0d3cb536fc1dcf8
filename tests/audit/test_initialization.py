"""Checks of the initial loss, gradients and position signals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.audit.model_audit import audit_untrained_model
from headtohead.config.tasks import Target
from headtohead.data.batches import Batch
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.position import Position, SinusoidalPosition

VOCAB, CONTEXT = 23, 12


def batch(classes: int | None = None, *, one_class: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(0)
    block = torch.randint(1, VOCAB, (8, CONTEXT + 1), generator=generator)
    if classes is None:
        return Batch(block[:, :-1].contiguous(), block[:, 1:].contiguous())
    labels = torch.zeros(8, dtype=torch.long) if one_class else torch.arange(8) % classes
    return Batch(block[:, :-1].contiguous(), labels, torch.ones(8, CONTEXT, dtype=torch.bool))


@pytest.mark.parametrize("classes", [None, 3])
def test_fresh_models_start_near_chance(build_small_model: Any, classes: int | None) -> None:
    target = Target.NEXT_TOKEN if classes is None else Target.CLASS
    (result,) = audit_untrained_model(
        build_small_model(classes), batch(classes), target=target, vocab_size=VOCAB, num_classes=classes
    )
    assert result.passed is True
    assert f"= {math.log(classes or VOCAB):.3f}" in result.procedure


def test_output_of_zeros_starts_exactly_at_chance(build_small_model: Any) -> None:
    model = build_small_model()
    nn.init.zeros_(model.output.weight)
    nn.init.zeros_(model.output.bias)
    (result,) = audit_untrained_model(model, batch(), target=Target.NEXT_TOKEN, vocab_size=VOCAB)
    assert result.observation == f"{math.log(VOCAB):.3f}, +0.000 from chance"


def test_embedding_that_is_scaled_up_starts_far_from_chance(build_small_model: Any) -> None:
    model = build_small_model(tie_word_embeddings=True, final_norm=False)
    with torch.no_grad():
        model.embedding.weight.mul_(100)  # tied embeddings start with a standard deviation of 0.02
    (result,) = audit_untrained_model(model, batch(), target=Target.NEXT_TOKEN, vocab_size=VOCAB)
    assert result.passed is False
    assert result.failure_reason == "starts far from chance"
    assert not result.is_blocking


def test_model_that_knows_the_answers_starts_below_chance(build_small_model: Any) -> None:
    model = build_small_model(3)
    with torch.no_grad():
        model.classifier[-1].bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    (result,) = audit_untrained_model(
        model, batch(3, one_class=True), target=Target.CLASS, vocab_size=VOCAB, num_classes=3
    )
    assert result.failure_reason == "starts below chance"


def test_parameter_that_is_never_used_is_reported(build_small_model: Any, audit: Any) -> None:
    model = build_small_model()
    model.layers[1].register_parameter("idle", nn.Parameter(torch.ones(5, 2)))
    gradients = audit(model)["gradients"]
    assert gradients.passed is False
    assert "layers.1.idle" in gradients.observation
    assert "10 of 4,025 weights" in gradients.observation


def test_weights_behind_a_gate_of_zeros_are_reached(build_small_model: Any, audit: Any) -> None:
    model = build_small_model()
    for layer in model.layers:
        nn.init.zeros_(layer.attention.output.weight)
    assert audit(model)["gradients"].passed is True


def test_frozen_weights_are_counted_and_no_fault(build_small_model: Any, audit: Any) -> None:
    model = build_small_model()
    model.embedding.weight.requires_grad_(False)
    audits = audit(model)
    assert audits["gradients"].passed is True
    assert "1 more are frozen" in audits["gradients"].observation
    assert audits["causality"].passed is True


def test_signals_of_different_kinds_go_together(build_small_model: Any, audit: Any) -> None:
    result = audit(build_small_model(position=["alibi", "rope"]))["position-signals"]
    assert result.passed is True
    assert result.observation == "alibi (added to the attention scores), rope (rotates queries and keys)"


class Undeclared(Position):
    """Adds a position signal to the input without declaring it."""

    kind = "undeclared"

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.table = nn.Embedding(sizes.context, sizes.width)

    def add_positions(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x + self.table(context.query_positions)


@pytest.mark.parametrize("second", [SinusoidalPosition, Undeclared])
def test_two_signals_added_to_the_input_are_detected(
    build_small_model: Any, audit: Any, second: type[Position]
) -> None:
    model = build_small_model(position="learned")
    model.positions.append(second(model.sizes))
    result = audit(model)["position-signals"]
    assert result.passed is False
    assert result.failure_reason == "two position signals"


class Own(nn.Module):
    """A custom decoder with several kinds of position tables, a square matrix, and tabulated rotations."""

    def __init__(self, tables: tuple[str, ...], scale: float = 1.0, turned: bool = False) -> None:
        super().__init__()
        width, self.tables, self.scale, self.turned = 16, tables, scale, turned
        self.embedding = nn.Embedding(VOCAB, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.loose = nn.Parameter(torch.randn(1, CONTEXT, width))
        self.register_buffer("fixed", torch.randn(40, 1, width))
        self.register_buffer("turn", torch.randn(CONTEXT, width))
        self.matrix = nn.Parameter(torch.randn(width, width) / 4)
        self.output = nn.Linear(width, VOCAB)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        x = self.embedding(ids) * self.scale
        if "places" in self.tables:
            x = x + self.places(torch.arange(length))
        if "loose" in self.tables:
            x = x + self.loose[:, :length]
        if "fixed" in self.tables:
            x = x + self.fixed[:length, 0]  # type: ignore[index]
        x = x @ self.matrix
        if self.turned:
            x = x * self.turn[:length]  # type: ignore[index]
        return self.output(x.cumsum(1).tanh())  # type: ignore[no-any-return]


@pytest.mark.parametrize("scale", [1.0, 4.0])
@pytest.mark.parametrize("tables", [("places", "loose"), ("places", "fixed"), ("loose", "fixed")])
def test_two_tables_in_a_users_network_are_detected(audit: Any, tables: tuple[str, str], scale: float) -> None:
    result = audit(Own(tables, scale))["position-signals"]
    assert result.passed is False
    assert all(name in result.observation for name in tables)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("table", ["places", "loose", "fixed"])
def test_one_table_in_a_users_network_is_no_fault(audit: Any, table: str, turned: bool) -> None:
    """Matrices, token embeddings and rotation tables are not mistaken for position embeddings."""
    result = audit(Own((table,), turned=turned))["position-signals"]
    assert result.passed is True
    assert result.observation.startswith(table)
    assert result.observation.count("added to the input") == 1
