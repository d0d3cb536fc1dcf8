"""The scoring audit measures changes in nats on scored tokens, and a missing required audit withholds the verdict."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.audit.rescoring import ModelRescorer
from headtohead.audit.result import CheckResult, list_blocking_reasons
from headtohead.audit.scoring_audit import run_scoring_checks
from headtohead.config.tasks import LANGUAGE_MODEL, Target
from headtohead.data.batches import Batch
from headtohead.findings.audits import merge_audits_over_seeds
from headtohead.nn.protocol import ModelOutput
from headtohead.training.task_objectives.evaluation_pass import Evaluation
from headtohead.training.task_objectives.language_modeling import LanguageModelObjective

VOCAB, LENGTH = 19, 12


class Mean(nn.Module):
    """Mean of the embeddings so far. Subclasses modify it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(VOCAB, 8), nn.Linear(8, VOCAB)

    def mix(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None]

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> ModelOutput:
        return ModelOutput(self.head(self.mix(self.embedding(input_ids))))


class NoisyMean(Mean):
    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x + torch.randn_like(x))


class FourierMean(Mean):
    def mix(self, x: Tensor) -> Tensor:
        kernel = torch.fft.rfft(torch.ones(x.shape[1]), 2 * x.shape[1])[:, None]
        return torch.fft.irfft(torch.fft.rfft(x, 2 * x.shape[1], dim=1) * kernel, dim=1)[:, : x.shape[1]] / x.shape[1]


class BatchMean(Mean):
    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) - x.mean(0, keepdim=True)


class NextToken(Mean):
    def mix(self, x: Tensor) -> Tensor:
        return super().mix(x) + torch.roll(x, -1, 1)


class CountsPasses(Mean):
    passes = 0

    def mix(self, x: Tensor) -> Tensor:
        self.passes += 1
        return super().mix(x) + 0.1 * self.passes


class FixedBatch(Mean):
    def mix(self, x: Tensor) -> Tensor:
        if len(x) != 8:
            raise ValueError("eight rows, please")
        return super().mix(x)


def audit(model: nn.Module, **settings: Any) -> dict[str, CheckResult]:
    ids = torch.randint(0, VOCAB, (16, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    batches = [Batch(rows[:, :-1], rows[:, 1:]) for rows in ids.split(8)]
    rescorer = ModelRescorer(
        model,
        LanguageModelObjective(),
        batches,
        target=Target.NEXT_TOKEN,
        device=torch.device("cpu"),
        **settings,
    )
    return {result.name: result for result in run_scoring_checks(rescorer)}


@pytest.mark.parametrize("network", [Mean, NoisyMean, FourierMean])
@pytest.mark.parametrize("is_trained", [True, False])
def test_correct_networks_pass(network: type[nn.Module], is_trained: bool) -> None:
    results = audit(network(), is_trained=is_trained)
    assert all(result.passed for result in results.values()), [str(result) for result in results.values()]
    assert {name: result.passed for name, result in results.items()} == {
        "scored-batches": True,
        "scored-causality": True,
        "predicted-token": True,
        "scored-order": True,
    }


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (BatchMean, "depends on other rows of the batch"),
        (NextToken, "reads the future"),
        (CountsPasses, "depends on texts that were scored before"),
    ],
)
def test_violations_are_reported(network: type[nn.Module], reason: str) -> None:
    assert reason in list_blocking_reasons(audit(network()).values())


def test_recorded_scores_that_the_model_does_not_give_are_reported() -> None:
    recorded = torch.full((16,), 5.0, dtype=torch.float64)
    assert "recorded scores" in audit(Mean(), recorded_losses=recorded)["scored-order"].observation
    assert audit(Mean(), recorded_losses=recorded)["scored-order"].passed is False


def test_a_crash_names_the_line_of_the_model() -> None:
    result = audit(FixedBatch())["scored-batches"]
    assert result.passed is True and "eight rows, please (test_scoring_audit.py, line" in result.procedure


def test_infinite_and_missing_losses_are_outcomes_with_a_sentence() -> None:
    columns = {"losses": torch.tensor([1.0, torch.inf, torch.nan]).double().numpy()}
    rescorer = ModelRescorer(
        Mean(),
        LanguageModelObjective(),
        [Batch(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.long))],
        target=Target.NEXT_TOKEN,
        device=torch.device("cpu"),
    )
    finite = run_scoring_checks(rescorer, [Evaluation(columns)])[0]
    assert finite.passed is False and finite.observation == "1 are NaN and 1 are infinite"
    assert "probability 0" in finite.interpretation


def test_a_required_audit_without_a_result_withholds_the_verdict() -> None:
    passed = [CheckResult(name, True, "", "") for name in LANGUAGE_MODEL.required_audits]
    crashed = [CheckResult("scored-causality", None, "", "ValueError: no (net.py, line 3)", "Change it."), *passed[1:]]
    required = LANGUAGE_MODEL.required_audits

    def reasons(*runs: list[CheckResult] | None) -> list[str]:
        return list_blocking_reasons(
            merge_audits_over_seeds(
                {seed: SimpleNamespace(audits=audits) for seed, audits in enumerate(runs)}, required
            )  # type: ignore[misc]
        )

    assert reasons(passed, passed) == []
    assert reasons(passed, passed[1:]) == ["has no result of the required audit scored-causality for seed 1"]
    assert reasons(crashed, passed) == ["has no result of the required audit scored-causality for seed 0"]
    assert len(reasons(passed, None)) == 4
    failed = [CheckResult("scored-causality", False, "", "", "", True, "reads the future"), *passed[1:]]
    assert reasons(passed, failed) == ["reads the future"]
