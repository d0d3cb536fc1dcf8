"""A part's own initialisation is used, or refused before training; it is never silently replaced."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headtohead.config import model as config_model
from headtohead.errors import ModelError
from headtohead.model_factory import build_model
from headtohead.nn.init import compute_tensor_hashes
from headtohead.nn.parts import FeedForward, registry
from headtohead.nn.transformer import Transformer


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


class TwoLayers(FeedForward):
    def __init__(self, sizes: object) -> None:
        super().__init__(sizes)  # type: ignore[arg-type]
        self.up, self.down = nn.Linear(self.sizes.width, 8), nn.Linear(8, self.sizes.width)
        self.construct()

    def construct(self) -> None:
        """Initialise the layers, in subclasses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return out


class Normal(TwoLayers):
    def construct(self) -> None:
        nn.init.normal_(self.up.weight, std=5.0)


class ByData(TwoLayers):
    def construct(self) -> None:
        self.up.weight.data.normal_(std=5.0)


class Replaced(TwoLayers):
    def construct(self) -> None:
        self.up.weight = nn.Parameter(5 * torch.randn_like(self.up.weight))


class Applied(TwoLayers):
    def construct(self) -> None:
        self.apply(lambda module: nn.init.zeros_(module.weight) if isinstance(module, nn.Linear) else None)


class Reset(TwoLayers):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.up.weight, std=5.0)


class ResetInConstructor(Reset):
    def construct(self) -> None:
        self.reset_parameters()


class OwnTensor(TwoLayers):
    def construct(self) -> None:
        self.scale = nn.Parameter(torch.full((self.sizes.width,), 3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


class LibraryAttention(TwoLayers):
    def construct(self) -> None:
        self.attention = nn.MultiheadAttention(self.sizes.width, 1)


def build(part: type[TwoLayers]) -> Transformer:
    registry.register_part("feedforward", part.__name__)(part)
    config = config_model.TransformerConfig.model_validate({"feedforward": part.__name__, "layers": 2})
    model = build_model(config, 31)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize("part", [Normal, ByData, Replaced, Applied])
def test_initialization_in_a_constructor_is_refused(part: type[TwoLayers]) -> None:
    with pytest.raises(ModelError, match=r"layers\.0\.feedforward\.up\.weight.*Override reset_parameters"):
        build(part)


@pytest.mark.parametrize("part", [Reset, ResetInConstructor])
def test_reset_parameters_of_a_part_initializes_the_layers_inside_it(part: type[TwoLayers]) -> None:
    for layer in build(part).layers:
        assert float(layer.feedforward.up.weight.detach().std()) == pytest.approx(5, rel=0.2)


def test_other_tensors_of_a_part_keep_the_values_of_the_constructor() -> None:
    assert bool((build(OwnTensor).layers[1].feedforward.scale == 3).all())
    assert float(build(LibraryAttention).layers[0].feedforward.attention.out_proj.bias.detach().abs().max()) == 0


def test_tied_tensors_are_listed_once() -> None:
    config = config_model.TransformerConfig.model_validate({"tie_word_embeddings": True, "layers": 1})
    names = compute_tensor_hashes(build_model(config, 31))
    assert "embedding.weight" in names and "output.weight" not in names and "output.bias" in names
