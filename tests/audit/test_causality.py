"""The causality audit passes every honest decoder and catches every kind of look into the future."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from headtohead.audit.result import CheckResult, format_blocking_reasons
from headtohead.nn.init import compute_tensor_hashes
from headtohead.nn.parts.pattern import Pattern, WindowSize, compute_distances


def failed(found: Mapping[str, CheckResult]) -> set[str]:
    return {name for name, one in found.items() if one.passed is False}


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
def test_honest_decoders_pass_everything(make: Any, audit: Any, settings: dict[str, Any]) -> None:
    found = audit(make(**settings))
    assert failed(found) == set()
    assert all(
        found[name].passed
        for name in (
            "causality",
            "batch-independence",
            "determinism",
            "kv-cache",
            "attention-implementations",
            "padding",
        )
    )
    assert format_blocking_reasons(found.values()) == ""


@pytest.mark.parametrize("classes", [None, 3])
def test_shapes_are_what_they_say(make: Any, audit_all: Any, classes: int | None) -> None:
    ids = torch.arange(1, 21).view(2, 10)
    assert failed(audit_all(make(classes), classes, input_ids=ids)) == set()


@pytest.mark.parametrize("options", [{}, {"normalise": True}, {"over": "batch"}], ids=str)
def test_reweighting_reads_the_future(make: Any, audit: Any, options: dict[str, Any]) -> None:
    causality = audit(make(merge={"kind": "reweight", **options}))["causality"]
    assert causality.passed is False
    assert causality.is_blocking
    assert causality.failure_reason == "reads the future"
    assert "logits up to 11 positions before the change differ" in causality.observation


def test_reweighting_over_the_batch_gives_both_reasons(make: Any, audit: Any) -> None:
    found = audit(make(merge={"kind": "reweight", "over": "batch"}))
    assert format_blocking_reasons(found.values()) == "reads the future, depends on other rows of the batch"


def test_leak_in_training_only_is_found_and_leaves_the_verdict(make: Any, audit: Any) -> None:
    model = make(merge={"kind": "reweight", "at_inference": False})
    found = audit(model)
    assert found["causality"].passed is False
    assert not found["causality"].is_blocking
    assert found["causality"].failure_reason == "reads the future while training"
    assert audit(model, audit_training_mode=False)["causality"].passed is True


class Peek(Pattern):
    """A causal mask with a hole: one token of the future, everywhere or at one place."""

    at: int | None = None

    @property
    def window_size(self) -> WindowSize:
        return (None, 0)

    def compute_mask(
        self, query_at: Int[Tensor, "*b query"], key_at: Int[Tensor, "*b key"]
    ) -> Bool[Tensor, "*b query key"]:
        distance = compute_distances(query_at, key_at)
        hole = distance == -1
        return (distance >= 0) | (hole if self.at is None else hole & (query_at == self.at)[..., :, None])


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("at", [None, 7])
def test_one_token_of_the_future_at_one_layer_is_caught(make: Any, audit: Any, layer: int, at: int | None) -> None:
    model = make()
    hole = Peek(model.sizes)
    hole.at = at
    model.layers[layer].attention.pattern = hole
    found = audit(model)
    assert found["causality"].passed is False
    assert found["causality"].is_blocking
    assert "logits up to 1 positions before the change differ" in found["causality"].observation
    assert f"layer {layer}: a weight of" in found["attention-weights"].observation
    assert "on later positions" in found["attention-weights"].observation


def test_leak_behind_an_output_of_zeros_is_caught(make: Any, audit: Any) -> None:
    model = make(merge="reweight")
    torch.nn.init.zeros_(model.output.weight)
    found = audit(model)
    assert found["causality"].passed is False
    assert "all weights were perturbed" in found["causality"].procedure


def test_leak_behind_a_gate_of_zeros_is_caught(make: Any, audit: Any) -> None:
    model = make(merge="reweight")
    for layer in model.layers:
        torch.nn.init.zeros_(layer.attention.output.weight)
        torch.nn.init.zeros_(layer.attention.output.bias)
    assert audit(model)["causality"].passed is False


def test_honest_model_with_an_output_of_zeros_passes(make: Any, audit: Any) -> None:
    model = make()
    torch.nn.init.zeros_(model.output.weight)
    assert failed(audit(model)) == set()


@pytest.mark.parametrize("merge", ["concat", "reweight"])
def test_large_logits_change_no_finding(make: Any, audit: Any, merge: str) -> None:
    """A trained model's logits are large, and rounding grows with them."""
    model = make(merge=merge, position="alibi")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(6)
    assert audit(model)["causality"].passed is (merge == "concat")


def test_classifier_has_no_future(make: Any, audit: Any) -> None:
    found = audit(make(classes=3), classes=3)
    assert found["causality"].passed is None
    assert failed(found) == set()


def test_model_is_left_as_it_was(make: Any, audit: Any) -> None:
    model = make(dropout=0.3, merge="shuffle").train()
    model.layers[0].eval()
    before, state = compute_tensor_hashes(model), torch.get_rng_state()
    audit(model)
    assert compute_tensor_hashes(model) == before
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training and not model.layers[0].training
    assert all(p.grad is None and p.dtype == torch.float32 for p in model.parameters())


def test_given_texts_are_the_ones_that_are_tried(make: Any, audit: Any) -> None:
    """Here the model leaks only where a certain token stands, which texts drawn at random nearly never hold."""

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
