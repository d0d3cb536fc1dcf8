"""Optimizers, schedules and objectives of published ideas equal another implementation, or a slow transcription."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tools.catalog import EXAMPLE_PARTS_FOLDER
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.config.base import ComponentConfig
from headtohead.config.tables import model as config_model
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.context import ForwardContext, TrainingContext
from headtohead.training.hardware.precision import is_bfloat16_usable
from headtohead.training.optimization.hessian import estimate_hessian_diagonal
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer

STEPS, LR = 12, 0.03


@pytest.fixture(autouse=True, scope="module")
def examples() -> Any:
    registry.load_builtin_parts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_registry", dict(registry._registry))
        patch.setattr(registry, "_plugin_files", dict(registry._plugin_files))
        for file in EXAMPLE_PARTS_FOLDER.glob("*.py"):
            registry.load_plugin(file)
        yield


class Quadratic(nn.Module):
    """A matrix in float64; its gradients come from a fixed list."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def draw_gradients() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    trend = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return [trend + torch.randn(4, 3, generator=generator, dtype=torch.float64) for _ in range(STEPS)]


def run_optimizer(hessians: dict[int, Tensor] | None = None, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Return the first weight, the weight after the steps, and the weight that is evaluated."""
    model = Quadratic()
    start = model.weight.detach().clone()
    training = TrainingConfig.model_validate({"optimizer": {"lr": LR, "weight_decay": 0.1, **options}})
    optimizer = ScheduledOptimizer(model, training, STEPS)
    for step, gradient in enumerate(draw_gradients()):
        model.weight.grad = gradient.clone()
        hessian = {model.weight: hessians[step]} if hessians and step in hessians else {}
        optimizer.step(step, hessian)
    last = model.weight.detach().clone()
    with optimizer.use_evaluation_weights(STEPS):
        return start, last, model.weight.detach().clone()


def assert_equal(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert float((actual - expected).abs().max()) < tolerance


def test_lion() -> None:
    w, last, _ = run_optimizer(kind="lion")
    m = torch.zeros_like(w)
    for g in draw_gradients():
        w = w - LR * ((0.9 * m + 0.1 * g).sign() + 0.1 * w)
        m = 0.99 * m + 0.01 * g
    assert_equal(last, w)


def test_ademamix() -> None:
    w, last, _ = run_optimizer(kind="ademamix", alpha=5.0, slow=0.999)
    m1, m2, v = (torch.zeros_like(w) for _ in range(3))
    for t, g in enumerate(draw_gradients(), start=1):
        half_life = 1 / ((1 - t / STEPS) / math.log(0.9) + t / STEPS / math.log(0.999))  # interpolated 1 / log(beta)
        beta3 = math.exp(half_life)
        m1, m2, v = 0.9 * m1 + 0.1 * g, beta3 * m2 + (1 - beta3) * g, 0.999 * v + 0.001 * g**2
        mean = m1 / (1 - 0.9**t) + 5 * t / STEPS * m2
        w = w - LR * (mean / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + 0.1 * w)
    assert_equal(last, w)


@pytest.mark.parametrize("cautious_decay", [False, True])
def test_cautious_adamw(cautious_decay: bool) -> None:
    w, last, _ = run_optimizer(kind="cautious-adamw", cautious_decay=cautious_decay)
    m, v = torch.zeros_like(w), torch.zeros_like(w)
    for t, g in enumerate(draw_gradients(), start=1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        update = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
        num_agreeing, new = int(((update > 0) == (g > 0)).sum()), w.clone()
        for i, j in torch.cartesian_prod(torch.arange(4), torch.arange(3)).tolist():
            if not cautious_decay or update[i, j] * w[i, j] > 0:
                new[i, j] -= LR * 0.1 * w[i, j]
            if update[i, j] * g[i, j] > 0:
                new[i, j] -= LR * update[i, j] * 12 / num_agreeing
        w = new
    assert_equal(last, w)


def test_cautious_decay_applies_to_weights_that_the_update_leaves_alone() -> None:
    """For example the embeddings of tokens that have not occurred yet."""
    model = Quadratic()
    start = model.weight.detach().clone()
    training = TrainingConfig.model_validate(
        {"optimizer": {"kind": "cautious-adamw", "lr": LR, "weight_decay": 0.1, "cautious_decay": True}}
    )
    model.weight.grad = torch.zeros_like(start)
    ScheduledOptimizer(model, training, STEPS).step(0)
    assert_equal(model.weight.detach(), start * (1 - LR * 0.1))


def test_adopt() -> None:
    w, last, _ = run_optimizer(kind="adopt", beta=0.9)
    first, *gradients = draw_gradients()
    m, v = torch.zeros_like(w), first**2
    for t, g in enumerate(gradients, start=1):
        m = 0.9 * m + 0.1 * torch.clamp(g / torch.maximum(v.sqrt(), torch.tensor(1e-6)), -(t**0.25), t**0.25)
        w = w - LR * (m + 0.1 * w)
        v = 0.9 * v + 0.1 * g**2
    assert_equal(last, w)


def test_schedule_free() -> None:
    """With a constant rate, the evaluated weight is the mean of all z."""
    w, last, evaluated = run_optimizer(kind="schedule-free", beta=0.8)
    y, z, v, zs = w, w, torch.zeros_like(w), []
    for t, g in enumerate(draw_gradients(), start=1):
        v = 0.999 * v + 0.001 * g**2
        z = z - LR * (g / ((v / (1 - 0.999**t)).sqrt() + 1e-8) + 0.1 * y)
        zs.append(z)
        y = 0.2 * z + 0.8 * torch.stack(zs).mean(0)
    assert_equal(last, y)
    assert_equal(evaluated, torch.stack(zs).mean(0))


def test_sophia() -> None:
    estimates = {step: draw_gradients()[step].square() * 50 for step in (0, 5, 10)}
    w, last, _ = run_optimizer(estimates, kind="sophia", every=5)
    m, h = torch.zeros_like(w), torch.zeros_like(w)
    is_clipped = []
    for step, g in enumerate(draw_gradients()):
        m = 0.96 * m + 0.04 * g
        if step in estimates:
            h = 0.99 * h + 0.01 * estimates[step]
        ratio = m / torch.maximum(0.01 * h, torch.tensor(1e-12))
        is_clipped.append(ratio.abs() > 1)
        w = w - LR * 0.1 * w
        w = w - LR * ratio.clamp(-1, 1)
    assert_equal(last, w)
    assert 0 < float(torch.stack(is_clipped).double().mean()) < 1


def test_sophia_asks_for_the_hessian_in_every_tenth_step() -> None:
    training = TrainingConfig.model_validate({"optimizer": {"kind": "sophia"}})
    optimizer = ScheduledOptimizer(Quadratic(), training, STEPS)
    assert [step for step in range(25) if optimizer.needs_hessian(step)] == [0, 10, 20]


def test_the_diagonal_of_the_hessian_is_estimated_without_bias() -> None:
    """For a softmax without hidden layers, the mean estimate is the Gauss-Newton matrix's diagonal."""
    torch.manual_seed(0)
    config = config_model.TransformerConfig.model_validate(
        {"width": 4, "layers": 1, "heads": 1, "context": 6, "feedforward": "none", "output": {"kind": "linear"}}
    )
    model = build_model(config, 3)
    bias: Any = model.output.bias  # type: ignore[union-attr]
    ids = torch.randint(3, (4, 6))
    batch = Batch(ids, ids.masked_fill(torch.arange(6) < 2, -100))  # two of six positions are not predicted
    kept = torch.ones_like(bias)
    bias.grad = kept

    def backward(sampled: Batch) -> None:
        assert bool((sampled.labels[:, :2] == -100).all())
        logits = model(sampled.input_ids).logits
        F.cross_entropy(logits.flatten(0, 1), sampled.labels.flatten(), ignore_index=-100).backward()

    draws = [estimate_hessian_diagonal(model, batch, backward, [bias])[bias] for _ in range(800)]
    assert bias.grad is kept
    probabilities = model(ids).logits.softmax(-1)[:, 2:].detach().flatten(0, 1)
    expected = (probabilities * (1 - probabilities)).mean(0)
    assert torch.stack(draws).mean(0).tolist() == pytest.approx(expected.tolist(), rel=0.15)


def test_soap() -> None:
    """Without rotation it is Adam with both decays 0.95; with it, the same in the eigenbasis of the mean of g g'."""
    w, last, _ = run_optimizer(kind="soap", every=4)
    start, m, v = w, torch.zeros_like(w), torch.zeros_like(w)
    left, right = torch.zeros(4, 4).double(), torch.zeros(3, 3).double()
    for t, g in enumerate(draw_gradients()):
        m = 0.95 * m + 0.05 * g
        left, right = 0.95 * left + 0.05 * g @ g.T, 0.95 * right + 0.05 * g.T @ g
        if t == 0:
            bases = torch.linalg.eigh(left)[1], torch.linalg.eigh(right)[1]
        elif t % 4 == 0:
            bases = torch.linalg.qr(left @ bases[0])[0], torch.linalg.qr(right @ bases[1])[0]
        rotated, mean = (torch.einsum("ij,ia,jb->ab", x, *bases) for x in (g, m))
        v = 0.95 * v + 0.05 * rotated**2
        correction = 1 - 0.95 ** (t + 1)
        update = mean / correction / ((v / correction).sqrt() + 1e-8)
        w = w - LR * (torch.einsum("ab,ia,jb->ij", update, *bases) + 0.1 * w)
    assert_equal(last, w, 1e-6)  # the first eigenvectors are those of nearly singular matrices
    _, adam, _ = run_optimizer(kind="soap", max_size=1)
    assert_equal(adam, run_optimizer(kind="adamw", betas=(0.95, 0.95))[1])
    assert float((adam - last).abs().max()) > 0.01
    assert float((adam - start).abs().max()) > 0.01


def test_muon_is_that_of_torch() -> None:
    """Matrices inside the layers are updated as by torch.optim.Muon, all others as by AdamW."""
    if not (hasattr(torch.optim, "Muon") and is_bfloat16_usable()):
        pytest.skip("muon needs torch 2.9, and bfloat16, which crashes on some machines")
    config = config_model.TransformerConfig.model_validate({"width": 8, "layers": 1, "heads": 2, "context": 4})
    ours, theirs = build_model(config, 5), build_model(config, 5)
    optimizer = ScheduledOptimizer(ours, TrainingConfig.model_validate({"optimizer": "muon"}), STEPS)
    named = dict(theirs.named_parameters())
    matrices = [parameter for name, parameter in named.items() if name.startswith("layers.") and parameter.dim() == 2]
    others = [parameter for parameter in named.values() if not any(parameter is matrix for matrix in matrices)]
    muon = torch.optim.Muon(matrices, lr=0.02, momentum=0.95, weight_decay=0.1)
    adamw = torch.optim.AdamW(
        [
            {"params": [parameter for parameter in others if parameter.dim() > 1], "weight_decay": 0.01},
            {"params": [parameter for parameter in others if parameter.dim() < 2], "weight_decay": 0.0},
        ],
        lr=1e-3,
    )
    for step in range(3):
        for model in (ours, theirs):
            ids = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(step))
            F.cross_entropy(model(ids).logits.flatten(0, 1), ids.flatten()).backward()
        optimizer.step(step)
        for reference in (muon, adamw):
            reference.step()
        theirs.zero_grad()
    for name, parameter in ours.named_parameters():
        assert torch.allclose(parameter, named[name], atol=1e-5), name


@pytest.mark.parametrize(("step", "factor"), [(0, 0.2), (3, 0.8), (4, 1.0), (79, 1.0), (85, 0.5), (100, 0.0)])
def test_wsd(step: int, factor: float) -> None:
    schedule: Any = registry.build_part("schedule", ComponentConfig.model_validate({"kind": "wsd", "warmup": 4}))
    assert schedule.get_factor(TrainingContext(step, 100)) == pytest.approx(factor)


@torch.no_grad()
def test_multi_token_prediction() -> None:
    config = config_model.TransformerConfig.model_validate({"width": 8, "layers": 1, "heads": 2, "context": 6})
    model: Any = build_model(config, 7)
    choice = ComponentConfig.model_validate({"kind": "multi-token", "ahead": 2})
    part: Any = registry.build_part("objective", choice, model.sizes)
    ids = torch.randint(7, (2, 7), generator=torch.Generator().manual_seed(0))
    inputs, labels = ids[:, :-1], ids[:, 1:]
    context = ForwardContext.create(inputs, is_training=True)
    output, expected = model(inputs), 0.0
    for ahead, head in enumerate(part.heads, start=1):
        losses = [
            -model.output(head(output.last_hidden_state[row, t]), context).log_softmax(-1)[ids[row, t + 1 + ahead]]
            for row in range(2)
            for t in range(6 - ahead)
        ]
        expected += float(torch.stack(losses).mean())
    assert float(part(model, output, labels, context)) == pytest.approx(expected, rel=1e-5)
