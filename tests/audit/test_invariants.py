"""Each check fails on a model that violates exactly that property."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from headtohead.audit import audited_model
from headtohead.audit.model_checks import causality
from headtohead.audit.result import CheckResult, format_blocking_reasons
from headtohead.nn.kv_cache import KVCache
from headtohead.nn.parts import attention_functions
from headtohead.nn.parts.attention import MultiHeadAttention
from headtohead.nn.parts.context import ForwardContext
from headtohead.nn.parts.merge import Merge
from headtohead.nn.parts.pattern import SlidingWindowPattern, compute_distances
from headtohead.nn.parts.pool import Pool


def list_failed_checks(results: Mapping[str, CheckResult]) -> set[str]:
    return {name for name, result in results.items() if result.passed is False}


class AcrossBatch(Merge):
    """Subtracts the mean over the batch: causal, but rows depend on each other."""

    def forward(self, heads: Tensor, x: Tensor, context: ForwardContext) -> Tensor:
        return heads - heads.mean(0, keepdim=True)


def test_merge_over_the_batch_depends_on_neighbours_and_not_on_the_future(build_small_model: Any, audit: Any) -> None:
    model = build_small_model()
    model.layers[0].attention.merge = AcrossBatch(model.sizes)
    audits = audit(model)
    assert audits["batch-independence"].passed is False
    assert audits["batch-independence"].is_blocking
    assert audits["causality"].passed is True
    assert format_blocking_reasons(audits.values()) == "depends on other rows of the batch"


def test_batch_normalization_is_reported_without_withholding_the_verdict(build_small_model: Any, audit: Any) -> None:
    class Normalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.norm, self.output = nn.Embedding(23, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

        def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            keep = torch.ones_like(ids) if attention_mask is None else attention_mask
            pooled = (self.embedding(ids) * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
            return self.output(self.norm(pooled))  # type: ignore[no-any-return]

    audits = audit(Normalised(), classes=3)
    assert audits["batch-independence"].passed is False
    assert audits["batch-independence"].failure_reason == "depends on other rows of the batch while training"
    assert format_blocking_reasons(audits.values()) == ""


def test_running_statistics_do_not_hide_what_training_does(audit: Any) -> None:
    """A training-mode pass changes a buffer that the next pass reads, so every pass must start from the same state."""

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

    audits = audit(Running())
    assert audits["causality"].failure_reason == "reads the future while training"
    assert audits["batch-independence"].failure_reason == "depends on other rows of the batch while training"


def test_shuffle_at_every_pass_violates_determinism_only_and_is_not_blocking(
    build_small_model: Any, audit: Any
) -> None:
    audits = audit(build_small_model(merge={"kind": "shuffle", "draw": "every-pass"}, heads=4))
    assert list_failed_checks(audits) == {"determinism"}
    assert audits["determinism"].failure_reason == "nondeterministic"
    assert format_blocking_reasons(audits.values()) == ""


class Careless(nn.Module):
    """A custom decoder that applies dropout in evaluation mode. With `leak` it also reads the next token."""

    def __init__(self, leak: bool = False) -> None:
        super().__init__()
        self.embedding, self.output, self.leak = nn.Embedding(23, 8), nn.Linear(8, 23), leak

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x.cumsum(1) + (x.roll(-1, 1) if self.leak else 0)
        return self.output(F.dropout(x, 0.3))  # type: ignore[no-any-return]


@pytest.mark.parametrize("leak", [False, True])
def test_noise_is_not_taken_for_a_leak_and_hides_none(audit: Any, leak: bool) -> None:
    audits = audit(Careless(leak))
    assert audits["determinism"].passed is False
    assert audits["causality"].passed is not leak
    assert audits["batch-independence"].passed is True


def test_answers_that_depend_on_what_was_asked_before_withholds_the_verdict(audit: Any) -> None:
    class Counting(Careless):
        calls = 0

        def forward(self, ids: Tensor) -> Tensor:
            self.calls += 1
            return self.output(self.embedding(ids)) * self.calls  # type: ignore[no-any-return]

    audits = audit(Counting())
    assert audits["determinism"].is_blocking
    assert audits["causality"].passed is None
    assert format_blocking_reasons(audits.values()) == "nondeterministic"


class LeakyMean(Pool):
    """Mean over all positions, including padding."""

    def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
        return x.mean(1)


def test_padding_that_leaks_through_the_pool_is_detected(build_small_model: Any, audit: Any) -> None:
    model = build_small_model(classes=3)
    assert audit(model, classes=3)["padding"].passed is True
    model.pool = LeakyMean(model.sizes)
    audits = audit(model, classes=3)
    assert list_failed_checks(audits) == {"padding"}


def test_unmasked_padding_is_a_flaw_and_keeps_its_verdict(build_small_model: Any, audit: Any) -> None:
    audits = audit(build_small_model(classes=3, mask_padding=False), classes=3)
    assert list_failed_checks(audits) == {"padding", "attention-weights"}
    assert audits["padding"].failure_reason == "sees padding"
    assert "on padding" in audits["attention-weights"].observation
    assert format_blocking_reasons(audits.values()) == ""


def test_amount_of_padding_alone_is_detected(build_small_model: Any, audit: Any) -> None:
    """The content of padding is ignored, but the result is divided by the padded length."""

    class Divided(Pool):
        def forward(self, x: Tensor, context: ForwardContext) -> Tensor:
            valid = context.get_attention_mask()
            return (x * valid[..., None]).sum(1) / valid.shape[1]

    model = build_small_model(classes=3)
    model.pool = Divided(model.sizes)
    padding = audit(model, classes=3)["padding"]
    assert padding.passed is False
    assert "more positions of padding" in padding.observation or "or none" in padding.observation


def test_cache_that_is_off_by_one_is_detected(
    build_small_model: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_small_model()
    assert audit(model)["kv-cache"].passed is True
    append_positions = KVCache.append_positions

    def late(self: KVCache, at: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor | None]:
        visited, padding = append_positions(self, at, valid)
        return visited + 1, padding

    monkeypatch.setattr(KVCache, "append_positions", late)
    audits = audit(model)
    assert list_failed_checks(audits) == {"kv-cache"}
    assert not audits["kv-cache"].is_blocking


def test_sdpa_with_another_scale_fails(build_small_model: Any, audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(q: Tensor, k: Tensor, v: Tensor, dropout: float = 0.0) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.01 * q.shape[-1] ** -0.5)

    monkeypatch.setattr(attention_functions, "causal_sdpa_attention", other)
    audits = audit(build_small_model())
    assert audits["attention-implementations"].passed is False
    assert format_blocking_reasons(audits.values()) == "attention implementations differ"
    assert audits["causality"].passed is True


def test_rows_that_do_not_sum_to_one_are_detected(
    build_small_model: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = MultiHeadAttention.attend

    def scaled(*given: Any) -> tuple[Tensor, Tensor | None]:
        out, weights = right(*given)
        return out, None if weights is None else 1.01 * weights

    monkeypatch.setattr(MultiHeadAttention, "attend", scaled)
    audits = audit(build_small_model())
    assert list_failed_checks(audits) == {"attention-weights"}
    assert "a row sums to 1.0100" in audits["attention-weights"].observation


def test_window_that_is_one_too_wide_is_detected(
    build_small_model: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wide(self: SlidingWindowPattern, query_at: Tensor, key_at: Tensor, context: ForwardContext) -> Tensor:
        distance = compute_distances(query_at, key_at)
        return (distance <= self.size) & (distance >= 0)

    model = build_small_model(pattern={"kind": "window", "size": 3})
    monkeypatch.setattr(SlidingWindowPattern, "compute_mask", wide)
    result = audit(model)["attention-weights"]
    assert result.passed is False
    assert "on positions more than 2 behind" in result.observation


def test_blocked_attention_is_checked_if_the_context_allows(
    build_small_model: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build_small_model(pattern={"kind": "window", "size": 4}, context=70)
    assert audit(model, context=70)["attention-implementations"].passed is True
    monkeypatch.setattr(attention_functions, "blocked_attention", lambda q, *given, **more: torch.zeros_like(q))
    assert audit(model, context=70)["attention-implementations"].passed is False


def test_large_models_are_checked_on_shorter_texts_but_windows_with_blocked_attention(
    build_small_model: Any, audit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audited_model, "MAX_PARAMETER_TOKENS", 10**4)
    monkeypatch.setattr(causality, "MAX_PARAMETER_TOKENS", 10**4)
    result = audit(build_small_model(context=90), context=90)["causality"]
    assert result.passed is True
    assert "from 6 positions of a sequence of 32" in result.procedure
    assert (
        audit(
            build_small_model(context=90, pattern={"kind": "window", "size": 4}), context=90
        ).audited_model.input_length
        == 71
    )
    assert audit(build_small_model(context=90, merge="reweight"), context=90)["causality"].passed is False
