"""A loss, parameter groups or a pattern that training would ignore are rejected before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.audit.unused_code import check_unused_code
from headtohead.config.tables import model as config_model
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.errors import ModelError
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.pattern import CausalPattern
from headtohead.parts import AttentionParts, FeedForward, ForwardContext
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer

VOCAB, CONTEXT = 17, 8


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


class Plain(nn.Module):
    """Uses dropout, so that two passes in training mode differ."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding, self.drop, self.head = nn.Embedding(vocab_size, 8), nn.Dropout(0.5), nn.Linear(8, vocab_size)

    def compute(self, idx: Tensor) -> Tensor:
        logits: Tensor = self.head(self.drop(self.embedding(idx)))
        return logits

    def forward(self, idx: Tensor) -> Any:
        return self.compute(idx)


class WithTargets(Plain):
    def own_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> Any:
        logits = self.compute(idx)
        return (logits[:, [-1]], None) if targets is None else (logits, self.own_loss(logits, targets))


class ShiftsLabels(Plain):
    def forward(self, idx: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.compute(idx)
        loss = None if labels is None else F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return logits, loss


class NanoGroups(WithTargets):
    def configure_optimizers(self, weight_decay: float, learning_rate: float, betas: Any, device_type: str) -> Any:
        matrices = [p for p in self.parameters() if p.dim() >= 2]
        others = [p for p in self.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=learning_rate, betas=betas)


class PlainLossMethod(Plain):
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class PlainCriterion(Plain):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.criterion, self.maps = nn.CrossEntropyLoss(), None

    def forward(self, idx: Tensor) -> Any:
        logits = self.compute(idx)
        self.last_logits, self.loss_for_a_plot = logits, logits.mean().detach()
        return logits


class NeedsEightRows(Plain):
    def forward(self, idx: Tensor) -> Any:
        assert len(idx) == 8
        return super().forward(idx)


class SmoothedLoss(WithTargets):
    def own_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.2)


class AuxiliaryOutput(Plain):
    def forward(self, idx: Tensor) -> Any:
        logits = self.compute(idx)
        return logits, 0.01 * logits.square().mean()


class AuxiliaryAttribute(Plain):
    def forward(self, idx: Tensor) -> Any:
        logits = self.compute(idx)
        self.aux_loss = 0.01 * logits.square().mean() if self.training else None
        return logits


class LossMethod(Plain):
    def compute_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.1 * logits.square().mean()


class StrangeLossMethod(Plain):
    def focal_loss(self, *, gamma: float) -> Tensor:
        return self.head.weight.sum() * gamma


class TrainingStep(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        idx, targets = batch
        return 2 * F.cross_entropy(self(idx).flatten(0, 1), targets.flatten())


class Criterion(Plain):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


class OwnGroups(WithTargets):
    def configure_optimizers(self) -> Any:
        groups = [{"params": [self.head.weight], "lr": 1e-2}, {"params": [self.embedding.weight, self.head.bias]}]
        return torch.optim.AdamW(groups, lr=1e-3)


class MarkedParameter(Plain):
    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self.head.weight._no_weight_decay = True  # type: ignore[assignment]


def check(model: nn.Module) -> None:
    ids = torch.randint(0, VOCAB, (6, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    training = TrainingConfig.model_validate({"budget": "3 steps", "optimizer": {"kind": "adamw", "lr": 1e-3}})
    check_unused_code(model, Batch(ids[:, :-1], ids[:, 1:]), ScheduledOptimizer(model, training, 3))


def build_custom(network: type[nn.Module]) -> nn.Module:
    config = config_model.CustomModelConfig(module=f"{Path(__file__).name}:{network.__name__}", context=CONTEXT)
    return build_model(config, VOCAB, base_folder=Path(__file__).parent)


@pytest.mark.parametrize(
    "network", [Plain, WithTargets, ShiftsLabels, NanoGroups, PlainLossMethod, PlainCriterion, NeedsEightRows]
)
def test_networks_whose_code_changes_nothing_are_accepted(network: type[nn.Module]) -> None:
    check(build_custom(network))


@pytest.mark.parametrize(
    ("network", "words"),
    [
        (SmoothedLoss, r"output 1 of forward\(\) \(value .*, cross-entropy .*\) would be ignored: training minimizes"),
        (AuxiliaryOutput, r"output 1 of forward\(\) .*would be ignored"),
        (AuxiliaryAttribute, r"attribute aux_loss .*would be ignored"),
        (LossMethod, r"LossMethod\.compute_loss\(\) \(value .*would be ignored.*h2h judge"),
        (StrangeLossMethod, r"StrangeLossMethod\.focal_loss\(\) would be ignored"),
        (TrainingStep, r"TrainingStep\.training_step\(\) \(value"),
        (Criterion, r"criterion \(CrossEntropyLoss\) would be ignored"),
        (OwnGroups, r"OwnGroups\.configure_optimizers\(\) would be ignored: \[training.optimizer\] sets"),
        (MarkedParameter, r"the exclusion of head\.weight from weight decay would be ignored"),
    ],
)
def test_losses_and_groups_that_would_be_ignored_are_rejected(network: type[nn.Module], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        check(build_custom(network))


class BalancedFeedForward(FeedForward):
    def __init__(self, sizes: Any) -> None:
        super().__init__(sizes)
        self.layer = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        out: Tensor = self.layer(x)
        self.load_balancing_loss = out.square().mean()
        return out


class OwnPattern(MultiHeadAttention):
    """Computes its own causal mask and ignores the pattern."""

    def __init__(self, sizes: Any, parts: AttentionParts) -> None:
        super().__init__(sizes, replace(parts, pattern=CausalPattern(sizes)))


class SamePattern(MultiHeadAttention):
    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return super().forward(x, context)


def build_parts(slot: str, part: type[Any], **settings: Any) -> nn.Module:
    registry.register_part(slot, part.__name__)(part)
    settings = {slot: part.__name__, "width": 16, "layers": 2, "context": CONTEXT, **settings}
    return build_model(config_model.TransformerConfig.model_validate(settings), VOCAB)


def test_an_auxiliary_loss_of_a_part_is_rejected() -> None:
    with pytest.raises(ModelError, match=r"attribute layers\.0\.feedforward\.load_balancing_loss .*would be ignored"):
        check(build_parts("feedforward", BalancedFeedForward))


@pytest.mark.parametrize(
    ("part", "pattern", "is_refused"),
    [
        (OwnPattern, {"kind": "window", "size": 2}, True),
        (OwnPattern, {"kind": "window", "size": 64}, False),  # reaches the whole context
        (OwnPattern, None, False),
        (SamePattern, {"kind": "window", "size": 2}, False),
    ],
)
def test_attention_that_ignores_its_pattern_is_rejected(part: type[Any], pattern: Any, is_refused: bool) -> None:
    model = build_parts("attention", part, pattern=pattern)
    if not is_refused:
        check(model)
        return
    with pytest.raises(ModelError, match=r"model\.pattern would be ignored: attention part 'OwnPattern'"):
        check(model)
