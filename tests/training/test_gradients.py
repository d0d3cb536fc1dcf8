"""Precision, accumulation, checkpointing and compilation change only how gradients are computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.nn import functional as F

from headtohead.config.tables.model import TransformerConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.trial_settings import build_trial
from headtohead.data.batches import Batch
from headtohead.errors import RequestError
from headtohead.experiment import loading
from headtohead.experiment.run_folder import Run
from headtohead.json_files import read_json, read_jsonl
from headtohead.model_factory import build_model
from headtohead.tasks.registry import prepare_dataset
from headtohead.training.hardware.precision import is_bfloat16_usable
from headtohead.training.hardware.probe_process import run_probe_code
from headtohead.training.losses.chunked_cross_entropy import chunked_linear_cross_entropy
from headtohead.training.optimization import loss_scaling
from headtohead.training.optimization.gradients import GradientComputation, find_checkpointed_layers
from headtohead.training.optimization.loss_scaling import LossScaler
from headtohead.training.task_objectives.classification import ClassificationObjective
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective
from headtohead.trials.trial import build_training, run_trial

CPU = torch.device("cpu")
VOCAB = 50
OPTIONS = {
    "accumulation": {"gradient_accumulation_steps": 3},
    "checkpointing": {"gradient_checkpointing": True},
    "fp16": {"precision": "fp16"},
}


def build_decoder(**settings: Any) -> nn.Module:
    sizes = {"width": 16, "layers": 3, "heads": 2, "context": 12}
    return build_model(TransformerConfig.model_validate({**sizes, **settings}), VOCAB)


def sample_batch(rows: int = 8, *, is_padded: bool = False) -> Batch:
    ids = torch.randint(VOCAB, (rows, 13), generator=torch.Generator().manual_seed(1))
    labels, mask = ids[:, 1:].clone(), None
    if is_padded:  # rows have between 0 and 7 predictions
        mask = torch.arange(12) < torch.arange(rows)[:, None].clamp_min(1)
        labels[~mask | (torch.arange(rows)[:, None] == 0)] = -100
    return Batch(ids[:, :-1].contiguous(), labels, mask)


def compute_gradients(
    model: nn.Module, batch: Batch, objective: Any = None, **settings: Any
) -> tuple[torch.Tensor, list[Any]]:
    """Return the loss and the gradient of each parameter."""
    backend = settings.pop("compile_backend", "inductor")
    training = TrainingConfig.model_validate(settings)
    computation = GradientComputation(
        model.train(), objective or LanguageModelObjective(), training, CPU, compile_backend=backend
    )
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = None
    torch.manual_seed(0)
    loss = computation.compute_gradients(batch)
    assert computation.unscale_gradients(parameters)
    return loss, [parameter.grad for parameter in parameters]


def measure_relative_difference(gradients: list[Any], expected_gradients: list[Any]) -> float:
    joined, expected = (torch.cat([x.flatten() for x in tensors]) for tensors in (gradients, expected_gradients))
    return float((joined - expected).norm() / expected.norm())


# ---- accumulation


@pytest.mark.parametrize("is_padded", [False, True])
@pytest.mark.parametrize("num_micro_batches", [2, 3, 8])
def test_accumulated_gradients_are_those_of_the_large_batch(num_micro_batches: int, is_padded: bool) -> None:
    model, batch = build_decoder(), sample_batch(is_padded=is_padded)
    loss, gradients = compute_gradients(model, batch, gradient_accumulation_steps=num_micro_batches)
    expected_loss, expected_gradients = compute_gradients(model, batch)
    assert float(loss) == pytest.approx(float(expected_loss), abs=1e-6)
    assert measure_relative_difference(gradients, expected_gradients) < 1e-6


def test_accumulation_in_a_classifier() -> None:
    config = TransformerConfig.model_validate({"width": 16, "layers": 1, "heads": 2, "context": 12})
    model, ids = build_model(config, VOCAB, 3), sample_batch().input_ids
    batch = Batch(ids, torch.arange(8) % 3)
    expected = compute_gradients(model, batch, ClassificationObjective())[1]
    accumulated = compute_gradients(model, batch, ClassificationObjective(), gradient_accumulation_steps=3)[1]
    assert measure_relative_difference(accumulated, expected) < 1e-6


def test_a_batch_of_dependent_rows_is_not_split() -> None:
    with pytest.raises(RequestError, match=r"a batch cannot be split: training\.gradient_accumulation_steps must be 1"):
        compute_gradients(nn.Sequential(nn.BatchNorm1d(4)), sample_batch(), gradient_accumulation_steps=2)


def test_more_micro_batches_than_rows_are_rejected() -> None:
    with pytest.raises(ValidationError, match=r"gradient_accumulation_steps must be at most batch_size \(4\), got 5"):
        TrainingConfig.model_validate({"batch_size": 4, "gradient_accumulation_steps": 5})


# ---- gradient checkpointing


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputed_gradients_have_the_same_bits_and_save_memory(dropout: float) -> None:
    model, batch = build_decoder(dropout=dropout), sample_batch()
    plain_bytes, (plain_loss, plain) = measure_saved_bytes(lambda: compute_gradients(model, batch))
    saved_bytes, (loss, gradients) = measure_saved_bytes(
        lambda: compute_gradients(model, batch, gradient_checkpointing=True)
    )
    assert torch.equal(loss, plain_loss)
    assert all(map(torch.equal, gradients, plain))
    assert saved_bytes < 0.5 * plain_bytes


def measure_saved_bytes(work: Any) -> tuple[int, Any]:
    """Return the bytes that the forward pass of `work` saves for the backward pass outside of checkpoints."""
    num_bytes = 0

    def record(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal num_bytes
        num_bytes += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = work()
    return num_bytes, result


def test_layers_are_the_largest_module_list() -> None:
    model = build_decoder(position=["rope"])
    assert find_checkpointed_layers(model) == list(model.layers)
    with pytest.raises(RequestError, match=r"no nn\.ModuleList of layers"):
        find_checkpointed_layers(nn.Linear(2, 2))


# ---- compilation


COMPILE_CODE = """
import json, sys, torch
from headtohead.config.tables.model import TransformerConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.data.batches import Batch
from headtohead.model_factory import build_model
from headtohead.training.optimization.gradients import GradientComputation
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective
model = build_model(TransformerConfig(width=16, layers=2, heads=2, context=12), 50).train()
ids = torch.randint(50, (8, 13))
batch, before = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()), dict(vars(model))
gradients = []
for options in ({}, {"compile": True}, {"compile": True, "gradient_checkpointing": True}):
    training, objective = TrainingConfig(**options), LanguageModelObjective()
    computation = GradientComputation(model, objective, training, torch.device("cpu"), compile_backend="aot_eager")
    model.zero_grad()
    computation.compute_gradients(batch)
    gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
differences = [float((other - gradients[0]).norm() / gradients[0].norm()) for other in gradients[1:]]
frames = torch._dynamo.utils.counters["frames"]["ok"]
print(json.dumps({"differences": differences, "frames": frames, "is_plain": dict(vars(model)) == before}))
"""


def test_compiled_gradients_agree_and_the_module_stays_plain() -> None:
    """Runs in a child process without run-time type checks, which Dynamo cannot trace, and without code generation."""
    result = run_probe_code(COMPILE_CODE, timeout_seconds=600)
    assert result.output is not None, result.exit_description
    assert max(result.output["differences"]) < 1e-6
    assert result.output["is_plain"] and result.output["frames"] > 0


@pytest.mark.slow
def test_a_compiled_trial(small: Any, tmp_path: Path) -> None:
    """Trains with the default backend in a child process, whose threads end with it."""
    plain = run_settings(small, tmp_path / "plain")
    compiled = run_in_child(small, tmp_path, {"compile": True})
    assert read_json(plain / "start.json")["tensor_hashes"] == read_json(compiled / "start.json")["tensor_hashes"]
    assert_scores_are_close(plain, compiled, 1e-4)
    assert all(check["passed"] is not False for check in read_json(compiled / "audits.json")["audits"])


# ---- precision


def test_low_precision_loss_agrees_with_the_plain_one() -> None:
    """Uses float16 products, which every CPU supports."""
    hidden, layer = torch.randn(300, 16, requires_grad=True), nn.Linear(16, VOCAB)
    labels = torch.randint(VOCAB, (300,))
    plain_loss = F.cross_entropy(layer(hidden), labels)
    expected = torch.autograd.grad(plain_loss, [hidden, *layer.parameters()])
    with torch.autocast("cpu", torch.float16):
        loss = chunked_linear_cross_entropy(layer, hidden, labels)
    gradients = torch.autograd.grad(loss, [hidden, *layer.parameters()])
    assert loss.item() == pytest.approx(plain_loss.item(), abs=2e-3)
    for gradient, reference in zip(gradients, expected, strict=True):
        assert gradient.dtype is torch.float32
        assert (gradient - reference).norm() < 5e-3 * reference.norm()


def test_loss_scale_is_halved_by_an_overflow_and_doubled_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_scaling, "GROWTH_INTERVAL", 3)
    scaler, weight = LossScaler(), nn.Parameter(torch.ones(2))
    scaler.factor = 8.0
    scaler.scale_loss((weight * 3).sum()).backward()
    assert weight.grad.tolist() == [24, 24]
    assert scaler.unscale_gradients([weight]) and weight.grad.tolist() == [3, 3]
    weight.grad = torch.tensor([1.0, float("inf")])
    assert not scaler.unscale_gradients([weight])
    assert weight.grad is None and scaler.factor == 4.0
    for _ in range(3):
        weight.grad = torch.ones(2)
        assert scaler.unscale_gradients([weight])
    assert scaler.factor == 8.0
    other, tensors = LossScaler(), {**scaler.collect_state_tensors(), "0.0.step": torch.zeros(())}
    other.pop_state_tensors(tensors)
    assert (other.factor, other.steps_since_change, list(tensors)) == (8.0, 0, ["0.0.step"])


def test_an_overflowing_step_changes_nothing(small: Any, tmp_path: Path) -> None:
    trial = build_trial(small(training={"precision": "fp16"}), "baseline", 0)
    model, trainer = build_training(trial, prepare_dataset(trial.data, trial.task), tmp_path, CPU)
    model.train()
    trainer.gradients.loss_scaler.factor = float("inf")
    before = [parameter.clone() for parameter in model.parameters()]
    trainer.train_step(0)
    assert all(map(torch.equal, before, model.parameters()))


def test_bfloat16_trains_and_is_scored_in_float32(small: Any, tmp_path: Path) -> None:
    if not is_bfloat16_usable():
        pytest.skip("bfloat16 crashes on this machine")
    plain, low = run_settings(small, tmp_path / "plain"), run_in_child(small, tmp_path, {"precision": "bf16"})
    assert read_json(plain / "start.json")["tensor_hashes"] == read_json(low / "start.json")["tensor_hashes"]
    first = [next(line for line in read_jsonl(folder / "metrics.jsonl") if line["split"] == "validation")
             for folder in (plain, low)]  # fmt: skip
    assert first[0]["loss"] == first[1]["loss"]  # before the first step, bit for bit
    assert_scores_are_close(plain, low, 0.05)
    assert read_json(plain / "result.json")["scores"] != read_json(low / "result.json")["scores"]


PARTS = [
    {"position": ["alibi"]},
    {"position": ["rope"], "norm": "rms", "feedforward": "swiglu"},
    {"pattern": {"kind": "window", "size": 3}, "context": 96},
    {"merge": "shuffle", "block": "parallel"},
    {"projection": {"kind": "mlp", "depth": 2}, "final_norm": False},
]


def test_parts_run_in_low_precision() -> None:
    """Uses float16, which every CPU supports. The gradients of each combination of parts are close to float32."""
    for settings in PARTS:
        model = build_decoder(**settings)
        ids = torch.randint(VOCAB, (4, settings.get("context", 12) + 1), generator=torch.Generator().manual_seed(2))
        batch = Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss, gradients = compute_gradients(model, batch, precision="fp16")
        plain_loss, plain = compute_gradients(model, batch)
        used = [i for i, gradient in enumerate(plain) if gradient is not None]
        assert float(loss) == pytest.approx(float(plain_loss), abs=0.02), settings
        difference = measure_relative_difference([gradients[i] for i in used], [plain[i] for i in used])
        assert difference < 0.05, settings


# ---- trials with every option


@pytest.mark.parametrize("name", OPTIONS)
def test_a_resumed_run_has_the_same_bits(small: Any, tmp_path: Path, name: str) -> None:
    trial = build_trial(small(training={**OPTIONS[name], "budget": "20 steps"}, model={"dropout": 0.1}), "baseline", 0)

    run_trial(trial, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt, match="step"):
        run_trial(trial, tmp_path / "resumed", on_progress=interrupt_at_step_10)
    assert list((tmp_path / "resumed").glob("checkpoint-*"))
    run_trial(trial, tmp_path / "resumed")
    complete, resumed = (Run(tmp_path / folder) for folder in ("whole", "resumed"))
    assert (complete.folder / "model.safetensors").read_bytes() == (resumed.folder / "model.safetensors").read_bytes()
    assert complete.result.scores == resumed.result.scores


def interrupt_at_step_10(progress: Any) -> None:
    """Raise KeyboardInterrupt after the checkpoint of step 10."""
    if progress.step > 10:
        raise KeyboardInterrupt(f"step {progress.step}")


@pytest.mark.parametrize("name", OPTIONS)
def test_options_do_not_change_pairing_or_audits(small: Any, tmp_path: Path, name: str) -> None:
    plain, other = (run_settings(small, tmp_path / key, **settings)
                    for key, settings in (("plain", {}), ("other", OPTIONS[name])))  # fmt: skip
    starts = [read_json(folder / "start.json") for folder in (plain, other)]
    assert starts[0]["tensor_hashes"] == starts[1]["tensor_hashes"]
    assert starts[0]["schedule_digest"] == starts[1]["schedule_digest"]
    outcomes = [
        [(check["name"], check["passed"]) for check in read_json(folder / "audits.json")["audits"]]
        for folder in (plain, other)
    ]
    assert outcomes[0] == outcomes[1]
    assert_scores_are_close(plain, other, 0.05 if name == "fp16" else 1e-4)


def run_settings(small: Any, folder: Path, **settings: Any) -> Path:
    run_trial(build_trial(small(training={"budget": "20 steps", **settings}), "baseline", 0), folder)
    return folder


CHILD_CODE = """
import json, sys
from pathlib import Path
from headtohead.config.trial_settings import build_trial
from headtohead.experiment.loading import build_experiment
from headtohead.trials.trial import run_trial
run_trial(build_trial(build_experiment(json.loads(sys.argv[1]), "small"), "baseline", 0), Path(sys.argv[2]))
print(json.dumps({}))
"""


def run_in_child(small: Any, tmp_path: Path, settings: dict[str, Any]) -> Path:
    """Run the trial in a child process, which may crash."""
    experiment = small(training={"budget": "20 steps", **settings})
    raw = json.loads(experiment.model_dump_json(exclude={"name", "variants"}, exclude_unset=True))
    result = run_probe_code(CHILD_CODE, json.dumps(raw), str(tmp_path / "child"), timeout_seconds=600)
    assert result.output is not None, result.exit_description
    return tmp_path / "child"


def assert_scores_are_close(folder: Path, other: Path, tolerance: float) -> None:
    losses = [read_json(path / "result.json")["scores"]["test"]["loss"] for path in (folder, other)]
    assert losses[0] == pytest.approx(losses[1], abs=tolerance)


def test_the_child_gets_the_same_experiment(small: Any) -> None:
    experiment = small()
    raw = json.loads(experiment.model_dump_json(exclude={"name", "variants"}, exclude_unset=True))
    assert loading.build_experiment(raw, "small").training == experiment.training
