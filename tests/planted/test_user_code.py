"""Mistakes in ordinary model code are rejected before training, withhold the verdict, or cause a warning above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.errors import ModelError, RequestError
from headtohead.experiment.schemas import Findings

from . import networks
from .collection import Network, audit_network, shift_right
from .run import compute_findings, write_corpus

USER_CODE = Path(__file__).parent / "user_code.py"
REFUSED = {
    "LayersInList": r"LayersInList\.layers \(Linear in a list\) would be neither trained nor saved",
    "LayersInDict": r"LayersInDict\.by_name \(Linear in a dict\) would be neither trained nor saved",
    "PlainTensor": r"PlainTensor\.scale \(Tensor\) would be neither trained nor saved",
    "WordDropoutInPlace": r"forward\(\) overwrites its input_ids",
    "SoftmaxBeforeLoss": r"forward\(\) returns probabilities, but the loss applies softmax itself",
    "TrainsItself": r"TrainsItself\.forward\(\) changes its weights in training mode \(embedding\.weight\)",
    "TrainsItselfInEvaluation": r"forward\(\) changes its weights in evaluation mode",
    "StepInTrainingLoss": r"changes its weights in a training pass \(embedding\.weight\)",
    "StepInHook": r"changes its weights in a training pass \(head\.weight\)",
    "LayerInForward": r"forward\(\) creates or unfreezes layer\.weight, which would not be trained",
    "GradientsLeftOff": r"GradientsLeftOff\.forward\(\) disables gradients globally",
    "DefaultDtype": r"the model of other changes the default dtype for every model of the experiment",
    "ReplacedLayerNorm": r"the model of other changes LayerNorm.forward for every model of the experiment",
}
"""network: the words of the error"""


@pytest.fixture
def restored_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nn.LayerNorm, "forward", nn.LayerNorm.forward)
    yield
    torch.set_default_dtype(torch.float32)


def compare(folder: Path, variants: dict[str, dict[str, Any]], **settings: Any) -> Findings:
    model = {"module": f"{USER_CODE}:Decoder", "context": 24}
    return compute_findings(folder / "runs", write_corpus(folder / "text"), model=model, variants=variants, **settings)


@pytest.mark.usefixtures("restored_torch")
@pytest.mark.parametrize("network", REFUSED)
def test_mistake_is_rejected_before_training(network: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=REFUSED[network]):
        compare(tmp_path, {"other": {"model": {"module": f"{USER_CODE}:{network}"}}})
    assert not (tmp_path / "runs").exists()


WARNED = {
    "DropoutInEvaluation": ("random scores", "DropoutInEvaluation: repeated passes differ"),
    "DetachedLayers": ("untrained weights", "DetachedLayers: no gradient: "),
    "FrozenBody": (
        "untrained weights",
        "FrozenBody: requires_grad is False: inner.embedding.weight",
    ),
    "LossOfNumber": ("untrained weights", "LossOfNumber: 874 of 874 trainable weights"),
    "LabelsShiftedTwice": ("wrong token", "LabelsShiftedTwice: the loss of the token after the next is "),
    "LabelsNotShifted": ("wrong token", "LabelsNotShifted: the loss of the current token is "),
    "UnseededDropout": ("not repeatable", "UnseededDropout: the loss differs by "),
    "UnseededWeights": ("not repeatable", "UnseededWeights: a second model, built with the same seed, has different"),
    "RepeatedLayer": ("shared layers", "RepeatedLayer: layers has 3 entries, but 1 different layer."),
}
WARNING_KINDS = {kind for kind, _ in WARNED.values()}


UNSAVED = ("AveragedWeights", "DatastoreInDict")
CORRECT = (
    "RegisteredAverage",
    "SharedReferences",
    "LogProbabilities",
    "LocalDtype",
    "LimitedNorm",
    "BinaryWeights",
    "NumpyNoise",
    "TwoTokensAhead",
)


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Compare networks with unsaved state, correct networks, and a network that sets its own seed."""
    networks = (*UNSAVED, "TrainsItselfLater", "TrainsItselfLateInTraining", *CORRECT, "SeedsItself", *WARNED)
    variants: dict[str, dict[str, Any]] = {name: {"model": {"module": f"{USER_CODE}:{name}"}} for name in networks}
    variants["more-rows"] = {"model": {"options": {"width": 16}}, "training": {"batch_size": 16}}
    variants["only-rows"] = {"training": {"batch_size": 16}}
    return compare(tmp_path_factory.mktemp("code"), variants)


@pytest.mark.parametrize("network", UNSAVED)
def test_scores_of_values_that_are_not_saved_are_not_judged(findings: Findings, network: str) -> None:
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == network]
    assert verdict.outcome == "not comparable"
    assert "depends on values that are not saved with its weights" in verdict.summary


def test_weights_that_change_while_scoring_are_reported(findings: Findings) -> None:
    """Each of its updates is too small to change a score by more than the limit."""
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == "TrainsItselfLater"]
    assert verdict.outcome == "not comparable"
    assert "changes its weights while it is scored" in verdict.summary


def test_weights_that_change_late_in_training_are_reported(findings: Findings) -> None:
    """Its code takes no step yet when it is checked before training."""
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == "TrainsItselfLateInTraining"]
    assert verdict.withheld == ("changes its weights outside the optimizer of the experiment file",)


@pytest.mark.parametrize("network", CORRECT)
def test_correct_code_is_judged(findings: Findings, network: str) -> None:
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == network]
    assert verdict.outcome != "not comparable", verdict.summary


def test_seeds_that_share_weights_of_transformers_and_other_budgets_are_reported(findings: Findings) -> None:
    messages = {row.kind: row.message for row in findings.warnings if row.kind in ("equal seeds", "different budget")}
    assert messages == {
        "equal seeds": "SeedsItself starts from the same weights with all 2 seeds.",
        "different budget": "more-rows is trained on 2 times as many rows as the baseline, and also changes "
        "model.options.",
    }


def test_mistakes_that_withhold_nothing_are_named_above_the_verdict(findings: Findings) -> None:
    """No correct network has a warning of these kinds."""
    warnings = {row.variant: row for row in findings.warnings if row.kind in WARNING_KINDS}
    assert set(warnings) == {*WARNED, "TrainsItselfLater"}
    for network, (kind, message) in WARNED.items():
        assert warnings[network].kind == kind
        assert warnings[network].message.startswith(message)


def test_numbers_from_numpy_and_python_are_repeated(tmp_path: Path) -> None:
    """Training did not seed these generators: a repeated run had other weights."""
    model = {"module": f"{USER_CODE}:NumpyNoise", "context": 24}
    corpus = write_corpus(tmp_path / "text")
    for name in "ab":
        compute_findings(tmp_path / name, corpus, seeds=1, model=model, variants={})
    first, second = (tmp_path / name / "baseline" / "seed-0" / "model.safetensors" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_a_warmup_that_is_longer_than_training_is_rejected(tmp_path: Path) -> None:
    training = {
        "budget": "20 steps",
        "batch_size": 8,
        "optimizer": {"kind": "adamw", "lr": 0.02},
        "schedule": {"kind": "cosine", "warmup": 10_000},
    }
    with pytest.raises(RequestError, match=r"the factor of cosine is at most 0\.002 in 20 steps"):
        compare(tmp_path, {}, training=training)


class ShiftedTwice(networks.Decoder):
    """Shifts the input to the right, although the labels are already shifted."""

    def embed(self, input_ids: Tensor) -> Tensor:
        return super().embed(shift_right(input_ids))


@pytest.mark.parametrize(("network", "is_named"), [(ShiftedTwice, True), (networks.Decoder, False)])
def test_a_network_that_ignores_the_last_token_is_reported(network: Network, is_named: bool) -> None:
    (result,) = [result for result in audit_network(network, num_steps=2) if result.name == "current-token"]
    assert result.passed is not is_named
