"""Parts of training: values compared with their formulas, and resuming after a kill."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.config.base import ComponentConfig
from headtohead.config.tables import model as config_model
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import Target
from headtohead.data.batches import Batch, BatchSchedule
from headtohead.data.encoding import TokenStream
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenization.tokenizers import train_tokenizer
from headtohead.model_factory import build_model
from headtohead.nn.parts import registry
from headtohead.nn.parts.base import ModelSizes
from headtohead.nn.parts.context import ForwardContext, TrainingContext
from headtohead.nn.parts.feedforward import FeedForward
from headtohead.nn.protocol import ModelOutput
from headtohead.nn.transformer import Transformer
from headtohead.training import tensor_files
from headtohead.training.loop import Trainer
from headtohead.training.optimization.scheduled_optimizer import ScheduledOptimizer
from headtohead.training.parts.average import TensorState
from headtohead.training.parts.objective import Objective
from headtohead.training.parts.optimizer import Optimizer, TrainableParameter, UpdateContext
from headtohead.training.task_objectives.base import add_auxiliary_losses
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective

VOCAB, CONTEXT = 11, 8


@pytest.fixture(autouse=True)
def restore_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.load_builtin_parts()
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))


def build(slot: str, kind: str, *arguments: Any, **options: Any) -> Any:
    return registry.build_part(slot, ComponentConfig(kind=kind, **options), *arguments)


def build_decoder(**settings: Any) -> Transformer:
    small = {"width": 8, "heads": 2, "layers": 1, "context": CONTEXT, "feedforward": {"kind": "mlp", "hidden": 8}}
    model = build_model(config_model.TransformerConfig.model_validate({**small, **settings}), VOCAB)
    assert isinstance(model, Transformer)
    return model


def build_batch(seed: int = 0, padding: int = 0) -> Batch:
    token_ids = torch.randint(VOCAB, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(seed))
    labels = token_ids[:, 1:].clone()
    labels[0, CONTEXT - padding :] = -100
    mask = torch.ones_like(labels, dtype=torch.bool)
    mask[0, CONTEXT - padding :] = False
    return Batch(token_ids[:, :-1], labels, mask if padding else None)


def build_schedule(training: TrainingConfig) -> BatchSchedule:
    words = Corpus(False, {"train": Split("train", "train", ("a b c",), None)}, (), ("a b c",), "here", "")
    tokens = torch.randint(VOCAB, (80,), generator=torch.Generator().manual_seed(0))
    arguments = (training, DataConfig(), CONTEXT, 0, train_tokenizer(DataConfig(), words))
    return BatchSchedule(TokenStream("train", tokens), Target.NEXT_TOKEN, *arguments)


def train(folder: Path, model: Transformer, stop_at: int | None = None, **training: Any) -> Trainer:
    """Train for 6 steps. `stop_at` simulates a kill at that step."""
    raw = {"budget": "6 steps", "batch_size": 3, "eval_every": 2, "checkpoint_every": 2, **training}
    settings = TrainingConfig.model_validate(raw)
    folder.mkdir(exist_ok=True)
    trainer = Trainer(model, LanguageModelObjective(), build_schedule(settings), settings, 0, folder)
    if stop_at is not None:
        train_step = trainer.train_step

        def step(number: int) -> None:
            if number == stop_at:
                raise RuntimeError("killed")
            train_step(number)

        trainer.train_step = step  # type: ignore[method-assign]
        with pytest.raises(RuntimeError, match="killed"):
            trainer.run()
    else:
        trainer.run()
    return trainer


# Schedules


@pytest.mark.parametrize("step", range(12))
def test_schedules_are_their_formulas(step: int) -> None:
    context = TrainingContext(step, 10)
    warmup = min(1, (step + 1) / 4)
    smallest = min(1, max(0, step - 3) / 7)
    assert build("schedule", "constant", warmup=3).get_factor(context) == pytest.approx(warmup)
    cosine = build("schedule", "cosine", warmup=3, final=0.1).get_factor(context)
    assert cosine == pytest.approx(warmup * (0.1 + 0.9 * (1 + math.cos(math.pi * smallest)) / 2))
    linear = build("schedule", "linear", warmup=3, final=0.1).get_factor(context)
    assert linear == pytest.approx(warmup * (1 - 0.9 * smallest))


# Optimizers and averages


class PlainDescent(Optimizer):
    """Gradient descent with momentum, written as an update rule."""

    def __init__(self, parameters: list[TrainableParameter], *, lr: float = 0.1, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, lr=lr, weight_decay=weight_decay)

    def update(self, parameter: Tensor, gradient: Tensor, state: TensorState, context: UpdateContext) -> None:
        gradient = gradient + context.weight_decay * parameter
        momentum = state.setdefault("momentum", torch.zeros_like(parameter))
        momentum.mul_(0.9).add_(gradient)
        parameter.add_(momentum, alpha=-context.lr)


class AverageInOptimizer(PlainDescent):
    """Evaluates the running mean of the weights."""

    def update(self, parameter: Tensor, gradient: Tensor, state: TensorState, context: UpdateContext) -> None:
        super().update(parameter, gradient, state, context)
        state.setdefault("mean", parameter.clone()).lerp_(parameter, 1 / (1 + context.step))

    def get_evaluation_weight(self, parameter: Tensor, state: TensorState) -> Tensor:
        return state["mean"]


def run_steps(model: nn.Module, config: dict[str, Any], steps: int = 5) -> None:
    optimizer = ScheduledOptimizer(model, TrainingConfig.model_validate(config), steps)
    for step in range(steps):
        LanguageModelObjective().compute_loss(model, build_batch(step)).backward()
        optimizer.step(step)


def test_a_rule_equals_the_optimizer_of_torch_with_schedule_decay_and_multipliers() -> None:
    registry.register_part("optimizer", "plain-descent")(PlainDescent)
    init = {"kind": "mup", "base_width": 2}
    models = build_decoder(init=init), build_decoder(init=init)
    settings = {"schedule": "linear", "max_grad_norm": 0.5}
    run_steps(models[0], {**settings, "optimizer": {"kind": "plain-descent", "lr": 0.3, "weight_decay": 0.1}})
    torch_options = {"kind": "sgd", "lr": 0.3, "momentum": 0.9, "weight_decay": 0.1}
    run_steps(models[1], {**settings, "optimizer": torch_options})
    for (name, ours), theirs in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, msg=name)


@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": "plain-descent"},
        {"optimizer": "average-in-optimizer"},
        {"average": {"kind": "ema", "decay": 0.5}},
        {"average": {"kind": "lawa", "every": 2, "count": 2}},
        {"objective": ["cross-entropy", "second-head"]},
        {"average": "ema", "load_best_model_at_end": True},
    ],
    ids=str,
)
def test_a_killed_run_resumes_bit_for_bit(tmp_path: Path, training: dict[str, Any]) -> None:
    for slot, kind, part in PARTS:
        registry.register_part(slot, kind)(part)
    complete, process, resumed = build_decoder(), build_decoder(), build_decoder()
    train(tmp_path / "whole", complete, **training)
    train(tmp_path / "killed", process, stop_at=5, **training)
    train(tmp_path / "killed", resumed, **training)
    assert complete.state_dict().keys() == build_decoder().state_dict().keys()
    for name, tensor in complete.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[name]), name


def track_weights(model: Transformer, training: dict[str, Any], steps: int) -> tuple[list[Tensor], ScheduledOptimizer]:
    """Return the embedding after each step, and the optimizer."""
    optimizer = ScheduledOptimizer(model, TrainingConfig.model_validate(training), steps)
    weights = []
    for step in range(steps):
        LanguageModelObjective().compute_loss(model, build_batch(step)).backward()
        optimizer.step(step)
        weights.append(model.embedding.weight.detach().clone())
    return weights, optimizer


def test_averages_are_their_formulas_and_leave_training_alone() -> None:
    plain, _ = track_weights(build_decoder(), {}, 20)
    for options, expected in (
        ({"kind": "lawa", "every": 3, "count": 2}, lambda w: (w[14] + w[17]) / 2),
        ({"kind": "ema", "decay": 0.3}, average_exponentially),
    ):
        formula: Callable[[list[Tensor]], Tensor] = expected  # type: ignore[assignment]
        model = build_decoder()
        weights, optimizer = track_weights(model, {"average": options}, 20)
        assert torch.equal(weights[-1], plain[-1])
        with optimizer.use_evaluation_weights(20):
            torch.testing.assert_close(model.embedding.weight.detach(), formula(weights))
        assert torch.equal(model.embedding.weight, weights[-1])


def average_exponentially(weights: list[Tensor]) -> Tensor:
    """Return the moving average with decay min(0.3, (1 + t) / (10 + t))."""
    mean = weights[0]
    for step, weight in enumerate(weights):
        decay = min(0.3, (1 + step) / (10 + step))
        mean = decay * mean + (1 - decay) * weight
    return mean


def test_the_averaged_weights_are_evaluated_and_kept(tmp_path: Path) -> None:
    model = build_decoder()
    trainer = train(tmp_path, model, average={"kind": "lawa", "every": 1, "count": 2})
    state = trainer.optimizer._average_states[0]["latest"]
    assert torch.equal(model.embedding.weight, state.mean(0))
    saved = tensor_files.read_safetensors(tmp_path / "checkpoint-000006" / "model.safetensors")
    assert torch.equal(saved["embedding.weight"], state[-1])  # training continues from the weights of the last step


# Objectives


class SecondHead(Objective):
    """Predicts the next token with a second head, as multi-token prediction does for later tokens."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.head = nn.Linear(sizes.width, sizes.vocab_size)

    def forward(self, model: nn.Module, output: ModelOutput, labels: Tensor, context: ForwardContext) -> Tensor:
        assert output.last_hidden_state is not None
        return F.cross_entropy(self.head(output.last_hidden_state).flatten(0, 1), labels.flatten())


PARTS: list[tuple[str, str, Any]] = [
    ("optimizer", "plain-descent", PlainDescent),
    ("optimizer", "average-in-optimizer", AverageInOptimizer),
    ("objective", "second-head", SecondHead),
]


def compute_loss(model: Transformer, batch: Batch, *objective: Any) -> float:
    task = LanguageModelObjective()
    parts = [ComponentConfig.model_validate(part) for part in objective]
    task.loss_parts = [registry.build_part("objective", part, model.sizes) for part in parts]
    return float(task.compute_loss(model, batch).detach())


@pytest.mark.parametrize("padding", [0, 3])
def test_objectives_are_their_formulas(padding: int) -> None:
    model, batch = build_decoder(), build_batch(padding=padding)
    is_predicted = batch.labels != -100
    model.requires_grad_(False)
    log_probabilities = model(batch.input_ids, batch.attention_mask).logits.log_softmax(-1)[is_predicted]
    target = log_probabilities.gather(1, batch.labels[is_predicted][:, None])[:, 0]
    cross_entropy = float(-target.mean())
    assert compute_loss(model, batch) == pytest.approx(cross_entropy)
    assert compute_loss(model, batch, "cross-entropy") == pytest.approx(cross_entropy)
    smoothed = float(-(0.9 * target + 0.1 * log_probabilities.mean(-1)).mean())
    smoothing = {"kind": "cross-entropy", "label_smoothing": 0.1}
    assert compute_loss(model, batch, smoothing) == pytest.approx(smoothed)
    normalizer = model(batch.input_ids, batch.attention_mask).logits.exp().sum(-1).log()[is_predicted]
    z_loss = {"kind": "z-loss", "weight": 0.5}
    expected = cross_entropy + 0.5 * float(normalizer.square().mean())
    assert compute_loss(model, batch, "cross-entropy", z_loss) == pytest.approx(expected)


class Balanced(FeedForward):
    """Adds an auxiliary loss in every mode."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__(sizes)
        self.layer = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        context.add_loss("balance", torch.tensor(2.0))
        out: Tensor = self.layer(x)
        return out


@pytest.mark.parametrize("objective", [(), ("cross-entropy",)])
def test_auxiliary_losses_of_parts_are_trained_and_never_scored(objective: tuple[str, ...]) -> None:
    registry.register_part("feedforward", "balanced")(Balanced)
    model, batch = build_decoder(feedforward="balanced", layers=3), build_batch()
    in_evaluation = compute_loss(model.eval(), batch, *objective)
    scores = LanguageModelObjective().score_batch(model, batch)
    assert float(scores["losses"].sum() / scores["counts"].sum()) == pytest.approx(in_evaluation)
    assert compute_loss(model.train(), batch, *objective) == pytest.approx(in_evaluation + 6)
    assert model(batch.input_ids).losses == {"balance": torch.tensor(6.0)}
    assert add_auxiliary_losses(torch.tensor(1.0), {}) == 1
