"""Initial loss, gradients, and position signals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.audit.model_checks.initialization import audit_untrained_model
from headtohead.config.tasks import Target
from headtohead.data.batches import Batch
from headtohead.nn.parts.base import ModelSizes
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
def test_fresh_models_start_near_chance(make: Any, classes: int | None) -> None:
    target = Target.NEXT_TOKEN if classes is None else Target.CLASS
    (found,) = audit_untrained_model(
        make(classes), batch(classes), target=target, vocab_size=VOCAB, num_classes=classes
    )
    assert found.passed is True
    assert f"= {math.log(classes or VOCAB):.3f}" in found.procedure


def test_output_of_zeros_starts_exactly_at_chance(make: Any) -> None:
    model = make()
    nn.init.zeros_(model.output.weight)
    nn.init.zeros_(model.output.bias)
    (found,) = audit_untrained_model(model, batch(), target=Target.NEXT_TOKEN, vocab_size=VOCAB)
    assert found.observation == f"{math.log(VOCAB):.3f}, +0.000 from chance"


def test_embedding_that_is_scaled_up_starts_far_from_chance(make: Any) -> None:
    model = make(tie_word_embeddings=True, final_norm=False)
    with torch.no_grad():
        model.embedding.weight.mul_(100)  # tied embeddings start with a standard deviation of 0.02
    (found,) = audit_untrained_model(model, batch(), target=Target.NEXT_TOKEN, vocab_size=VOCAB)
    assert found.passed is False
    assert found.failure_reason == "starts far from chance"
    assert not found.is_blocking


def test_model_that_knows_the_answers_starts_below_chance(make: Any) -> None:
    model = make(3)
    with torch.no_grad():
        model.classifier[-1].bias.copy_(torch.tensor([5.0, 0.0, 0.0]))
    (found,) = audit_untrained_model(
        model, batch(3, one_class=True), target=Target.CLASS, vocab_size=VOCAB, num_classes=3
    )
    assert found.failure_reason == "starts below chance"


def test_parameter_that_is_never_used_is_named(make: Any, audit: Any) -> None:
    model = make()
    model.layers[1].register_parameter("idle", nn.Parameter(torch.ones(5, 2)))
    found = audit(model)["gradients"]
    assert found.passed is False
    assert "layers.1.idle" in found.observation
    assert "10 of 4,025 weights" in found.observation


def test_weights_behind_a_gate_of_zeros_are_reached(make: Any, audit: Any) -> None:
    model = make()
    for layer in model.layers:
        nn.init.zeros_(layer.attention.output.weight)
    assert audit(model)["gradients"].passed is True


def test_frozen_weights_are_counted_and_no_fault(make: Any, audit: Any) -> None:
    model = make()
    model.embedding.weight.requires_grad_(False)
    found = audit(model)
    assert found["gradients"].passed is True
    assert "1 more are frozen" in found["gradients"].observation
    assert found["causality"].passed is True


def test_signals_of_different_kinds_go_together(make: Any, audit: Any) -> None:
    found = audit(make(position=["alibi", "rope"]))["position-signals"]
    assert found.passed is True
    assert found.observation == "alibi (added to the attention scores), rope (rotates queries and keys)"


class Undeclared(Position):
    """Adds a signal to the input and does not say so."""

    kind = "undeclared"

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.table = nn.Embedding(sizes.context, sizes.width)

    def add_positions(self, x: Tensor, at: Tensor) -> Tensor:
        return x + self.table(at)


@pytest.mark.parametrize("second", [SinusoidalPosition, Undeclared])
def test_two_signals_added_to_the_input_are_caught(make: Any, audit: Any, second: type[Position]) -> None:
    model = make(position="learned")
    model.positions.append(second(model.sizes))
    found = audit(model)["position-signals"]
    assert found.passed is False
    assert found.failure_reason == "two position signals"


class Own(nn.Module):
    """A user's decoder with position tables of several kinds, a square matrix, and rotations by table."""

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
def test_two_tables_in_a_users_network_are_caught(audit: Any, tables: tuple[str, str], scale: float) -> None:
    found = audit(Own(tables, scale))["position-signals"]
    assert found.passed is False
    assert all(name in found.observation for name in tables)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("table", ["places", "loose", "fixed"])
def test_one_table_in_a_users_network_is_no_fault(audit: Any, table: str, turned: bool) -> None:
    """Matrices, tables of tokens and tables that turn are not taken for positions added to the input."""
    found = audit(Own((table,), turned=turned))["position-signals"]
    assert found.passed is True
    assert found.observation.startswith(table)
    assert found.observation.count("added to the input") == 1
