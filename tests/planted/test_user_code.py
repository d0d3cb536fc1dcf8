"""Mistakes of ordinary model code are refused before training, withhold the verdict, or are stated above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.errors import ModelError
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
def test_mistake_is_refused_before_training(network: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=REFUSED[network]):
        compare(tmp_path, {"other": {"model": {"module": f"{USER_CODE}:{network}"}}})
    assert not (tmp_path / "runs").exists()


WARNED = {
    "DropoutInEvaluation": ("random scores", "DropoutInEvaluation: repeated passes differ"),
    "DetachedLayers": ("untrained weights", "DetachedLayers: no gradient: "),
}


@pytest.fixture(scope="module")
def findings(tmp_path_factory: pytest.TempPathFactory) -> Findings:
    """Compare networks with values that are not saved, honest networks, and a network that seeds itself."""
    networks = ("AveragedWeights", "DatastoreInDict", "RegisteredAverage", "SharedReferences", "LogProbabilities")
    variants: dict[str, dict[str, Any]] = {
        name: {"model": {"module": f"{USER_CODE}:{name}"}} for name in (*networks, "LocalDtype", "SeedsItself", *WARNED)
    }
    variants["more-rows"] = {"model": {"options": {"width": 16}}, "training": {"batch_size": 16}}
    variants["only-rows"] = {"training": {"batch_size": 16}}
    return compare(tmp_path_factory.mktemp("code"), variants)


@pytest.mark.parametrize("network", ["AveragedWeights", "DatastoreInDict"])
def test_scores_of_values_that_are_not_saved_are_not_judged(findings: Findings, network: str) -> None:
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == network]
    assert verdict.outcome == "not comparable"
    assert "depends on values that are not saved with its weights" in verdict.summary


@pytest.mark.parametrize("network", ["RegisteredAverage", "SharedReferences", "LogProbabilities", "LocalDtype"])
def test_honest_code_is_judged(findings: Findings, network: str) -> None:
    (verdict,) = [verdict for verdict in findings.verdicts if verdict.variant == network]
    assert verdict.outcome != "not comparable", verdict.summary


def test_seeds_that_share_their_weights_and_other_budgets_are_named(findings: Findings) -> None:
    messages = {row.kind: row.message for row in findings.warnings if row.kind in ("equal seeds", "other budget")}
    assert messages == {
        "equal seeds": "SeedsItself starts from the same weights with all 2 seeds.",
        "other budget": "more-rows is trained on 2 times as many rows as the baseline, and also changes model.options.",
    }


def test_random_scores_and_untrained_weights_are_named_above_the_verdict(findings: Findings) -> None:
    warnings = {row.variant: row for row in findings.warnings if row.kind in ("random scores", "untrained weights")}
    assert set(warnings) == set(WARNED)
    for network, (kind, message) in WARNED.items():
        assert warnings[network].kind == kind
        assert warnings[network].message.startswith(message)


class ShiftedTwice(networks.Decoder):
    """Shifts the input to the right, although labels are shifted already."""

    def embed(self, input_ids: Tensor) -> Tensor:
        return super().embed(shift_right(input_ids))


@pytest.mark.parametrize(("network", "is_named"), [(ShiftedTwice, True), (networks.Decoder, False)])
def test_a_network_that_ignores_the_last_token_is_named(network: Network, is_named: bool) -> None:
    (result,) = [result for result in audit_network(network, steps=2) if result.name == "current-token"]
    assert result.passed is not is_named
