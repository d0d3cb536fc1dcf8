"""Each check fails on a model that violates exactly that property."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.audit import probe
from headtohead.audit.model_checks import causality
from headtohead.audit.result import CheckResult, format_blocking_reasons
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.parts import attention_functions
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import SlidingWindowPattern, compute_distances
from headtohead.nn.parts.pool import Pool


def failed(found: Mapping[str, CheckResult]) -> set[str]:
    return {name for name, one in found.items() if one.passed is False}


class AcrossBatch(Merge):
    """Takes the mean over the batch away: honest in time, but a row depends on its neighbours."""

    def forward(self, heads: Tensor, valid: Tensor | None = None, past: Tensor | None = None) -> tuple[Tensor, None]:
        return heads - heads.mean(0, keepdim=True), None


def test_merge_over_the_batch_depends_on_neighbours_and_not_on_the_future(make: Any, audit: Any) -> None:
    model = make()
    model.layers[0].attention.merge = AcrossBatch(model.sizes)
    found = audit(model)
    assert found["batch-independence"].passed is False
    assert found["batch-independence"].is_blocking
    assert found["causality"].passed is True
    assert format_blocking_reasons(found.values()) == "depends on other rows of the batch"


def test_batch_normalisation_is_told_and_leaves_the_verdict(make: Any, audit: Any) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm, self.output = nn.Embedding(23, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            keep = torch.ones_like(ids) if attention_mask is None else attention_mask
            pooled = (self.embedding(ids) * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
            return self.output(self.norm(pooled))  # type: ignore[no-any-return]

    found = audit(Normalised(), classes=3)
    assert found["batch-independence"].passed is False
    assert found["batch-independence"].failure_reason == "depends on other rows of the batch while training"
    assert format_blocking_reasons(found.values()) == ""


def test_running_statistics_do_not_hide_what_training_does(audit: Any) -> None:
    """A pass in training changes a buffer that the next one reads: each pass must start from the same."""

    class Running(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.output = nn.Embedding(23, 8), nn.Linear(8, 23)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, ids: Tensor) -> Tensor:
            x = self.embedding(ids)
            if self.training:
                self.mean.mul_(0.5).add_(x.detach().mean((0, 1)))  # type: ignore[operator]
            return self.output(x.cumsum(1) - self.mean)  # type: ignore[no-any-return, operator]

    found = audit(Running())
    assert found["causality"].failure_reason == "reads the future while training"
    assert found["batch-independence"].failure_reason == "depends on other rows of the batch while training"


def test_shuffle_at_every_pass_violates_determinism_only_and_is_not_blocking(make: Any, audit: Any) -> None:
    found = audit(make(merge={"kind": "shuffle", "draw": "every-pass"}, heads=4))
    assert failed(found) == {"determinism"}
    assert found["determinism"].failure_reason == "nondeterministic"
    assert format_blocking_reasons(found.values()) == ""


class Careless(nn.Module):
    """A user's decoder that forgets to switch dropout off; with `leak` it also reads the next token."""

    def __init__(self, leak: bool = False) -> None:
        super().__init__()
        self.embedding, self.output, self.leak = nn.Embedding(23, 8), nn.Linear(8, 23), leak

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x.cumsum(1) + (x.roll(-1, 1) if self.leak else 0)
        return self.output(F.dropout(x, 0.3))  # type: ignore[no-any-return]


@pytest.mark.parametrize("leak", [False, True])
def test_noise_is_not_taken_for_a_leak_and_hides_none(audit: Any, leak: bool) -> None:
    found = audit(Careless(leak))
    assert found["determinism"].passed is False
    assert found["causality"].passed is not leak
    assert found["batch-independence"].passed is True


def test_answers_that_depend_on_what_was_asked_before_take_the_verdict(audit: Any) -> None:
    class Counting(Careless):
        calls = 0

        def forward(self, ids: Tensor) -> Tensor:
            self.calls += 1
            return self.output(self.embedding(ids)) * self.calls  # type: ignore[no-any-return]

    found = audit(Counting())
    assert found["determinism"].is_blocking
    assert found["causality"].passed is None
    assert format_blocking_reasons(found.values()) == "nondeterministic"


class LeakyMean(Pool):
    """The mean over all positions, padding as well."""

    def forward(self, x: Tensor, valid: Tensor) -> Tensor:
        return x.mean(1)


def test_padding_that_leaks_through_the_pool_is_caught(make: Any, audit: Any) -> None:
    model = make(classes=3)
    assert audit(model, classes=3)["padding"].passed is True
    model.pool = LeakyMean(model.sizes)
    found = audit(model, classes=3)
    assert failed(found) == {"padding"}


def test_unmasked_padding_is_a_flaw_and_keeps_its_verdict(make: Any, audit: Any) -> None:
    found = audit(make(classes=3, mask_padding=False), classes=3)
    assert failed(found) == {"padding", "attention-weights"}
    assert found["padding"].failure_reason == "sees padding"
    assert "on padding" in found["attention-weights"].observation
    assert format_blocking_reasons(found.values()) == ""


def test_amount_of_padding_alone_is_noticed(make: Any, audit: Any) -> None:
    """Nothing under the padding is read, but its length is divided by."""

    class Divided(Pool):
        def forward(self, x: Tensor, valid: Tensor) -> Tensor:
            return (x * valid[..., None]).sum(1) / valid.shape[1]

    model = make(classes=3)
    model.pool = Divided(model.sizes)
    padding = audit(model, classes=3)["padding"]
    assert padding.passed is False
    assert "more positions of padding" in padding.observation or "or none" in padding.observation


def test_cache_that_is_off_by_one_is_caught(make: Any, audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make()
    assert audit(model)["kv-cache"].passed is True
    append_positions = KVCache.append_positions

    def late(self: KVCache, at: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        seen, padding = append_positions(self, at, valid)
        return seen + 1, padding

    monkeypatch.setattr(KVCache, "append_positions", late)
    found = audit(model)
    assert failed(found) == {"kv-cache"}
    assert not found["kv-cache"].is_blocking


def test_sdpa_with_another_scale_fails(make: Any, audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.01 * q.shape[-1] ** -0.5)

    monkeypatch.setattr(attention_functions, "causal_sdpa_attention", other)
    found = audit(make())
    assert found["attention-implementations"].passed is False
    assert format_blocking_reasons(found.values()) == "attention implementations differ"
    assert found["causality"].passed is True


def test_rows_that_do_not_sum_to_one_are_caught(make: Any, audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = attention_functions.eager_attention

    def scaled(*given: Any) -> tuple[Tensor, Tensor]:
        out, weights = right(*given)
        return out, 1.01 * weights

    monkeypatch.setattr(attention_functions, "eager_attention", scaled)
    found = audit(make())
    assert failed(found) == {"attention-weights"}
    assert "a row sums to 1.0100" in found["attention-weights"].observation


def test_window_that_is_one_too_wide_is_caught(make: Any, audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(self: SlidingWindowPattern, query_at: Tensor, key_at: Tensor) -> Tensor:
        distance = compute_distances(query_at, key_at)
        return (distance <= self.size) & (distance >= 0)

    model = make(pattern={"kind": "window", "size": 3})
    monkeypatch.setattr(SlidingWindowPattern, "compute_mask", wide)
    found = audit(model)["attention-weights"]
    assert found.passed is False
    assert "on positions more than 2 behind" in found.observation


def test_blocked_attention_is_checked_if_the_context_allows(
    make: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(pattern={"kind": "window", "size": 4}, context=70)
    assert audit(model, context=70)["attention-implementations"].passed is True
    monkeypatch.setattr(attention_functions, "blocked_attention", lambda q, *given, **more: torch.zeros_like(q))
    assert audit(model, context=70)["attention-implementations"].passed is False


def test_large_models_are_checked_on_shorter_texts_but_windows_with_blocked_attention(
    make: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "MAX_PARAMETER_TOKENS", 10**4)
    monkeypatch.setattr(causality, "MAX_PARAMETER_TOKENS", 10**4)
    found = audit(make(context=90), context=90)["causality"]
    assert found.passed is True
    assert "from 6 positions of a text of 32" in found.procedure
    assert audit(make(context=90, pattern={"kind": "window", "size": 4}), context=90).probe.length == 71
    assert audit(make(context=90, merge="reweight"), context=90)["causality"].passed is False
