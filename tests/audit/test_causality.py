"""The causality audit passes every causal decoder and detects every kind of look-ahead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.audit.result import CheckResult, format_blocking_reasons
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.pattern import Pattern, WindowSize, compute_distances
from headtohead.nn.tensor_hashes import compute_tensor_hashes


def list_failed_checks(results: Mapping[str, CheckResult]) -> set[str]:
    return {name for name, result in results.items() if result.passed is False}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"merge": "shift"},
        {"merge": "shuffle"},
        {"merge": "causal-reweight"},
        {"position": ["alibi", "rope"], "norm": "rms"},
        {"pattern": {"kind": "window", "size": 3}, "dropout": 0.2},
        {"position": "none", "block": "post", "tie_word_embeddings": True},
    ],
    ids=str,
)
def test_correct_decoders_pass_everything(build_small_model: Any, audit: Any, settings: dict[str, Any]) -> None:
    audits = audit(build_small_model(**settings))
    assert list_failed_checks(audits) == set()
    assert all(
        audits[name].passed
        for name in (
            "causality",
            "batch-independence",
            "determinism",
            "kv-cache",
            "attention-implementations",
            "padding",
        )
    )
    assert format_blocking_reasons(audits.values()) == ""


@pytest.mark.parametrize("classes", [None, 3])
def test_shapes_are_what_they_say(build_small_model: Any, audit_all: Any, classes: int | None) -> None:
    ids = torch.arange(1, 21).view(2, 10)
    assert list_failed_checks(audit_all(build_small_model(classes), classes, input_ids=ids)) == set()


@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"over": "batch"}], ids=str)
def test_reweighting_reads_the_future(build_small_model: Any, audit: Any, options: dict[str, Any]) -> None:
    causality = audit(build_small_model(merge={"kind": "reweight", **options}))["causality"]
    assert causality.passed is False
    assert causality.is_blocking
    assert causality.failure_reason == "reads the future"
    assert "logits up to 11 positions before the change differ" in causality.observation


def test_reweighting_over_the_batch_gives_both_reasons(build_small_model: Any, audit: Any) -> None:
    audits = audit(build_small_model(merge={"kind": "reweight", "over": "batch"}))
    assert format_blocking_reasons(audits.values()) == "reads the future, depends on other rows of the batch"


def test_leak_in_training_only_is_found_and_leaves_the_verdict(build_small_model: Any, audit: Any) -> None:
    model = build_small_model(merge={"kind": "reweight", "at_inference": False})
    audits = audit(model)
    assert audits["causality"].passed is False
    assert not audits["causality"].is_blocking
    assert audits["causality"].failure_reason == "reads the future while training"
    assert audit(model, audit_training_mode=False)["causality"].passed is True


class Peek(Pattern):
    """A causal mask with a hole: one future token is visible, at all positions or at one."""

    at: int | None = None

    @property
    def window_size(self) -> WindowSize:
        return (None, 0)

    def compute_mask(
        self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"], context: ForwardContext
    ) -> Bool[Tensor, "*b query key"]:
        distance = compute_distances(query_at, key_at)
        hole = distance == -1
        return (distance >= 0) | (hole if self.at is None else hole & (query_at == self.at)[..., :, None])


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("at", [None, 7])
def test_one_token_of_the_future_at_one_layer_is_detected(
    build_small_model: Any, audit: Any, layer: int, at: int | None
) -> None:
    model = build_small_model()
    hole = Peek(model.sizes)
    hole.at = at
    model.layers[layer].attention.pattern = hole
    audits = audit(model)
    assert audits["causality"].passed is False
    assert audits["causality"].is_blocking
    assert "logits up to 1 positions before the change differ" in audits["causality"].observation
    assert f"layer {layer + 1}: a weight of" in audits["attention-weights"].observation  # counted from 1 everywhere
    assert "on later positions" in audits["attention-weights"].observation


def test_leak_behind_an_output_of_zeros_is_detected(build_small_model: Any, audit: Any) -> None:
    model = build_small_model(merge="reweight")
    torch.nn.init.zeros_(model.output.weight)
    audits = audit(model)
    assert audits["causality"].passed is False
    assert "all weights were perturbed" in audits["causality"].procedure


def test_leak_behind_a_gate_of_zeros_is_detected(build_small_model: Any, audit: Any) -> None:
    model = build_small_model(merge="reweight")
    for layer in model.layers:
        torch.nn.init.zeros_(layer.attention.output.weight)
        torch.nn.init.zeros_(layer.attention.output.bias)
    assert audit(model)["causality"].passed is False


def test_correct_model_with_an_output_of_zeros_passes(build_small_model: Any, audit: Any) -> None:
    model = build_small_model()
    torch.nn.init.zeros_(model.output.weight)
    assert list_failed_checks(audit(model)) == set()


@pytest.mark.parametrize("merge", ["concat", "reweight"])
def test_large_logits_change_no_finding(build_small_model: Any, audit: Any, merge: str) -> None:
    """Trained models have large logits, and rounding errors grow with them."""
    model = build_small_model(merge=merge, position="alibi")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
    assert audit(model)["causality"].passed is (merge == "concat")


def test_classifier_has_no_future(build_small_model: Any, audit: Any) -> None:
    audits = audit(build_small_model(classes=3), classes=3)
    assert audits["causality"].passed is None
    assert list_failed_checks(audits) == set()


def test_model_is_left_as_it_was(build_small_model: Any, audit: Any) -> None:
    model = build_small_model(dropout=0.3, merge="shuffle").train()
    model.layers[0].eval()
    before, state = compute_tensor_hashes(model), torch.get_rng_state()
    audit(model)
    assert compute_tensor_hashes(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and not model.layers[0].training
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


def test_given_texts_are_the_ones_that_are_tried(build_small_model: Any, audit: Any) -> None:
    """The model leaks only at one specific token, which randomly drawn texts almost never contain."""

    class Cheat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.output = torch.nn.Embedding(5000, 8), torch.nn.Linear(8, 5000)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids)
            x = torch.where((ids == 4321)[..., None], x.roll(-1, 1), x)
            return self.output(x)  # type: ignore[no-any-return]

    assert audit(Cheat(), vocab_size=5000)["causality"].passed is True
    ids = torch.arange(100, 112).repeat(2, 1)
    ids[:, 4] = 4321
    assert audit(Cheat(), vocab_size=5000, input_ids=ids)["causality"].passed is False
