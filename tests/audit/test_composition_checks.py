"""The conformance suite names the fault of parts that do not work together with the rest of a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.errors import ModelError
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.base import ModelSizes, Part
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.registry import register_part
from headtohead.testing import check_part


@pytest.fixture
def register_broken_part(monkeypatch: pytest.MonkeyPatch, unchecked: None) -> Callable[[str, type[Part]], None]:
    """Register a class as the part "broken" of a slot for the duration of a test."""
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    return lambda slot, part_class: register_part(slot, "broken")(part_class) and None


def find_failures(slot: str, *checks: str) -> list[str]:
    return [result.observation for result in check_part(slot, "broken", checks=checks) if not result.passed]


class CausalOnly(MultiHeadAttention):
    """Ignores its pattern and biases: always causal."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: ForwardContext) -> tuple[Tensor, None]:
        mask = context.key_positions[..., None, :] <= context.query_positions[..., :, None]
        return F.scaled_dot_product_attention(q, k, v, mask), None


class IgnoresMerge(MultiHeadAttention):
    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        q, k, v = self.project(x, context)
        for part in self.positions:
            q, k = part.rotate(q, k, context)
        out: Tensor = self.output(self.attend(q, k, v, context)[0].transpose(1, 2).flatten(2))
        return out


class IgnoresBias(MultiHeadAttention):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.bias_parts = ()


class IgnoresRotation(MultiHeadAttention):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.positions = ()


@pytest.mark.parametrize(
    ("part_class", "slot"),
    [
        (CausalOnly, "pattern"),
        (IgnoresMerge, "merge"),
        (IgnoresBias, "position"),
        (IgnoresRotation, "position (rotation of queries and keys)"),
    ],
)
def test_attention_that_ignores_a_part_is_reported(
    register_broken_part: Any, part_class: type[Part], slot: str
) -> None:
    register_broken_part("attention", part_class)
    assert any(
        failure.startswith(f"attention ignores its {slot}:") for failure in find_failures("attention", "composition")
    )


def test_attention_may_declare_what_it_does_not_use(register_broken_part: Any) -> None:
    class Declared(IgnoresMerge):
        unused_slots = frozenset({"merge"})

    register_broken_part("attention", Declared)
    assert find_failures("attention", "composition") == []


def test_attention_may_refuse_what_it_cannot_use(register_broken_part: Any) -> None:
    class Refuses(IgnoresMerge):
        def __init__(self, sizes: ModelSizes, parts: Any) -> None:
            super().__init__(sizes, parts)
            if parts.merges[0].kind != "concat":
                raise ModelError("no merges")

    register_broken_part("attention", Refuses)
    assert find_failures("attention", "composition") == []


class PreviousToken(Merge):
    """Adds the head outputs of the previous token, which it keeps on itself while decoding."""

    def forward(self, head_outputs: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
        is_start = context.cache is None or context.layer_cache.length == head_outputs.shape[2]  # type: ignore[union-attr]
        last = torch.zeros_like(head_outputs[:, :, :1]) if is_start else self.last
        self.last = head_outputs[:, :, -1:]
        return head_outputs + torch.cat((last, head_outputs[:, :, :-1]), dim=2)


def test_decoding_state_outside_the_cache_is_reported(register_broken_part: Any) -> None:
    register_broken_part("merge", PreviousToken)
    (failure,) = find_failures("merge", "row-selection")
    assert "after selecting rows [3, 2, 1, 0]" in failure
    assert "Decoding state outside the cache is not selected" in failure


def test_decoding_state_in_the_cache_is_selected(register_broken_part: Any) -> None:
    class Kept(Merge):
        def forward(self, head_outputs: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
            return head_outputs + context.shift(head_outputs)

    register_broken_part("merge", Kept)
    results = check_part("merge", "broken", checks=("row-selection",))
    assert [result.passed for result in results] == [True]  # a decoder; encoders do not decode


def test_training_state_outside_buffers_is_reported(register_broken_part: Any) -> None:
    class Warmup(FeedForward):
        """Its output grows with the number of training passes, which it counts in a Python attribute."""

        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.layer, self.passes = nn.Linear(sizes.width, sizes.width), 0

        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            self.passes += context.is_training
            out: Tensor = self.layer(x) * (1 + 0.1 * self.passes)
            return out

    register_broken_part("feedforward", Warmup)
    failures = find_failures("feedforward", "resume")
    assert failures
    assert all("keep what changes in training in parameters or buffers" in failure for failure in failures)


class OwnLinear(nn.Linear):
    """A layer that is not torch's own: its values are drawn again after construction."""


@pytest.mark.parametrize("kind", ["constant", "spread", "numpy"])
def test_initial_values_that_are_overwritten_are_reported(register_broken_part: Any, kind: str) -> None:
    class Overwritten(FeedForward):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.layer = (nn.Linear if kind == "numpy" else OwnLinear)(sizes.width, sizes.width)
            if kind == "constant":
                nn.init.zeros_(self.layer.weight)
            elif kind == "spread":
                nn.init.normal_(self.layer.weight, std=2.0)
            else:
                self.layer.weight.detach().numpy()[:] = 0.0

        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            out: Tensor = self.layer(x)
            return out

    register_broken_part("feedforward", Overwritten)
    failures = find_failures("feedforward", "initialization")
    assert failures
    assert all(
        "initial values that a constructor sets are overwritten: layers.0.feedforward.layer.weight" in failure
        for failure in failures
    )


def test_auxiliary_losses_in_evaluation_are_reported(register_broken_part: Any) -> None:
    class Always(FeedForward):
        def __init__(self, sizes: ModelSizes) -> None:
            super().__init__(sizes)
            self.layer = nn.Linear(sizes.width, sizes.width)

        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            out: Tensor = self.layer(x)
            context.losses["size"] = out.square().mean()
            return out

    register_broken_part("feedforward", Always)
    failures = find_failures("feedforward", "auxiliary-losses")
    assert failures
    assert all(failure.startswith("auxiliary losses in evaluation: size;") for failure in failures)


class Experts(FeedForward):
    """Four experts. The router never chooses the last two."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.router = nn.Linear(sizes.width, 2)

    def choose(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return F.pad(weights * F.one_hot(weights.argmax(-1), 2), (0, 2))


class ListedExperts(Experts):
    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.experts = nn.ModuleList(nn.Linear(sizes.width, sizes.width) for _ in range(4))

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        out: Tensor = (torch.stack([expert(x) for expert in self.experts], -1) * self.choose(x)[..., None, :]).sum(-1)
        return out


class StackedExperts(Experts):
    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.experts = nn.Parameter(torch.randn(4, sizes.width, sizes.width))

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return torch.einsum("blw,ewo,ble->blo", x, self.experts, self.choose(x))


@pytest.mark.parametrize("part_class", [ListedExperts, StackedExperts])
def test_experts_that_no_token_chose_are_reported(register_broken_part: Any, part_class: type[Part]) -> None:
    register_broken_part("feedforward", part_class)
    failures = find_failures("feedforward", "gradients")
    assert failures
    assert all("if these are experts, no token chose them" in failure for failure in failures)
