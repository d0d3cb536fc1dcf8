"""Values that a part sets itself are kept, and parts in the slot `init` change all other layers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from headtohead.config.tables import model as config_model
from headtohead.config.tables.training import TrainingConfig
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.seeded_init import list_differently_initialized_tensors
from headtohead.nn.tensor_hashes import compute_tensor_hashes
from headtohead.nn.transformer import Transformer
from headtohead.parts import FeedForward, ForwardContext
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


class TwoLayers(FeedForward):
    def __init__(self, sizes: object) -> None:
        super().__init__(sizes)  # type: ignore[arg-type]
        self.up, self.down = nn.Linear(self.sizes.width, 8), nn.Linear(8, self.sizes.width)
        self.initialize_layers()

    def initialize_layers(self) -> None:
        """Initialize the layers, in subclasses."""

    def forward(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        out: torch.Tensor = self.down(self.up(x).relu())
        return out


class InitializedInPlace(TwoLayers):
    def initialize_layers(self) -> None:
        nn.init.normal_(self.up.weight, std=5.0)


class InitializedThroughData(TwoLayers):
    def initialize_layers(self) -> None:
        self.up.weight.data.normal_(std=5.0)


class ReplacedParameter(TwoLayers):
    def initialize_layers(self) -> None:
        self.up.weight = nn.Parameter(5 * torch.randn_like(self.up.weight))


class AppliedToModules(TwoLayers):
    def initialize_layers(self) -> None:
        self.apply(lambda module: nn.init.zeros_(module.weight) if isinstance(module, nn.Linear) else None)


class Reset(TwoLayers):
    def reset_parameters(self) -> None:
        nn.init.normal_(self.up.weight, std=5.0)


class ResetInConstructor(Reset):
    def initialize_layers(self) -> None:
        self.reset_parameters()


class OwnTensor(TwoLayers):
    def initialize_layers(self) -> None:
        self.scale = nn.Parameter(torch.full((self.sizes.width,), 3.0))

    def forward(self, x: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        return super().forward(x, context) * self.scale


class LibraryAttention(TwoLayers):
    def initialize_layers(self) -> None:
        self.attention = nn.MultiheadAttention(self.sizes.width, 1)


def build(part: type[TwoLayers], **settings: object) -> Transformer:
    registry.register_part("feedforward", part.__name__)(part)
    config = config_model.TransformerConfig.model_validate({"feedforward": part.__name__, "layers": 2, **settings})
    model = build_model(config, 31)
    assert isinstance(model, Transformer)
    return model


@pytest.mark.parametrize("init", ["torch", "gpt2"])
@pytest.mark.parametrize(
    "part", [InitializedInPlace, InitializedThroughData, ReplacedParameter, Reset, ResetInConstructor]
)
def test_values_that_a_part_gives_its_layers_are_kept(part: type[TwoLayers], init: str) -> None:
    for layer in build(part, init=init).layers:
        assert float(layer.feedforward.up.weight.detach().std()) == pytest.approx(5, rel=0.2)


def test_other_tensors_of_a_part_keep_the_values_of_the_constructor() -> None:
    assert bool((build(OwnTensor).layers[1].feedforward.scale == 3).all())
    assert float(build(LibraryAttention).layers[0].feedforward.attention.out_proj.bias.detach().abs().max()) == 0


def test_constants_that_a_part_gives_its_layers_are_kept() -> None:
    for layer in build(AppliedToModules).layers:
        assert not any(bool(layer.feedforward.get_parameter(f"{name}.weight").any()) for name in ("up", "down"))


@pytest.mark.parametrize("part", [InitializedInPlace, ReplacedParameter])
def test_values_drawn_in_a_constructor_depend_on_seed_and_name_only(part: type[TwoLayers]) -> None:
    alone, with_other_parts = build(part), build(part, position="alibi", projection="mlp", block="post")
    weights = [layer.feedforward.up.weight for model in (alone, with_other_parts) for layer in model.layers]
    assert torch.equal(weights[0], weights[2]) and torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[0], weights[1])


def test_gpt2_initialization_is_its_formula() -> None:
    model = build_model(config_model.TransformerConfig(width=128, layers=8, init=("gpt2",)), 512)  # type: ignore[arg-type]
    stds = {name: float(tensor.detach().std()) for name, tensor in model.named_parameters() if tensor.dim() > 1}
    for name, std in stds.items():
        is_residual = name.endswith(("attention.output.weight", "feedforward.down.weight"))
        assert std == pytest.approx(0.02 / (4 if is_residual else 1), rel=0.05), name
    biases = [tensor for name, tensor in model.named_parameters() if name.endswith("bias")]
    assert not any(bool(bias.any()) for bias in biases)
    assert sum(name.endswith(("attention.output.weight", "feedforward.down.weight")) for name in stds) == 16


def test_initializations_are_applied_in_sequence() -> None:
    settings = {"width": 128, "layers": 2, "init": ["gpt2", "zero-residual"]}
    model = build_model(config_model.TransformerConfig.model_validate(settings), 31)
    assert not bool(model.layers[0].attention.output.weight.any())
    assert float(model.layers[0].attention.projection.query.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    scaled = build_model(config_model.TransformerConfig.model_validate({"layers": 2, "init": "residual-scaling"}), 31)
    as_torch = build_model(config_model.TransformerConfig(layers=2), 31)
    down = as_torch.layers[1].feedforward.down.weight / 2
    torch.testing.assert_close(scaled.layers[1].feedforward.down.weight, down)


def test_mup_scales_the_output_and_the_learning_rates_with_the_width() -> None:
    """Yang et al. 2022, table 3: hidden and output learning rates fall as 1 / width, output weights as 1 / fan_in."""
    settings = {"width": 256, "layers": 1, "init": {"kind": "mup", "base_width": 64}}
    model, plain = (
        build_model(config_model.TransformerConfig.model_validate({**settings, **changes}), 31)
        for changes in ({}, {"init": "torch"})
    )
    multipliers = model.compute_lr_multipliers()
    assert plain.compute_lr_multipliers() == {}
    matrices = {name for name, tensor in model.named_parameters() if tensor.dim() > 1}
    assert {name: multipliers.get(name, 1.0) for name in matrices} == {
        name: 1.0 if name.startswith(("embedding", "positions")) else 0.25 for name in matrices
    }
    torch.testing.assert_close(model.output.weight, plain.output.weight / 2)
    optimizer = ScheduledOptimizer(model, TrainingConfig(), 1).optimizers[0]
    lrs = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert lrs[id(model.output.weight)] == pytest.approx(0.25e-3)
    assert lrs[id(model.output.bias)] == pytest.approx(1e-3)


def test_tensors_that_start_differently_on_purpose_are_declared() -> None:
    settings = {
        "embedding": {"kind": "table", "std": 0.02},
        "output": {"kind": "linear", "bias": "frequencies", "init": "zero"},
        "position": {"kind": "learned", "std": 0.02},
    }
    model = build_model(config_model.TransformerConfig.model_validate(settings), 31)
    declared = ["embedding.weight", "positions.0.table.weight", "output.weight", "output.bias"]
    assert list_differently_initialized_tensors(model) == declared
    assert list_differently_initialized_tensors(build_model(config_model.TransformerConfig(), 31)) == []


def test_tied_tensors_are_listed_once() -> None:
    config = config_model.TransformerConfig.model_validate({"tie_word_embeddings": True, "layers": 1})
    names = compute_tensor_hashes(build_model(config, 31))
    assert "embedding.weight" in names and "output.weight" not in names and "output.bias" in names
