"""Custom networks are audited with and without the model protocol, and violations are detected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headtohead.audit.model_audit import audit_model
from headtohead.audit.result import format_blocking_reasons
from headtohead.config.tables import model as config_model
from headtohead.config.tasks import Target
from headtohead.errors import ModelError
from headtohead.model_factory import build_model
from headtohead.nn.custom_model import CustomModel

SOURCE = '''
import torch
from torch import nn
from torch.nn import functional as F

class Decoder(nn.Module):
    """As such networks are written: one block, maps kept for a plot, the last position only without targets."""

    def __init__(self, vocab_size, block_size, peek=0, width=16):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.place = nn.Embedding(block_size, width)
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.head = nn.Linear(width, vocab_size)
        self.register_buffer("mask", torch.tril(torch.ones(block_size, block_size), diagonal=peek))

    def forward(self, idx, targets=None):
        length = idx.shape[1]
        x = self.embedding(idx) + self.place(torch.arange(length))
        q, k, v = self.mix(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / 4).masked_fill(self.mask[:length, :length] == 0, float("-inf"))
        self.last_maps = scores.softmax(-1)
        x = x + self.last_maps @ v
        if targets is None:
            return self.head(x[:, [-1]]), None
        logits = self.head(x)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())
'''


@pytest.fixture
def own(tmp_path: Path) -> Any:
    (tmp_path / "mine.py").write_text(SOURCE, encoding="utf-8")

    def made(**options: Any) -> CustomModel:
        model = build_model(
            config_model.CustomModelConfig(module="mine.py:Decoder", context=12, options=options),
            23,
            base_folder=tmp_path,
        )
        assert isinstance(model, CustomModel)
        return model

    return made


@pytest.mark.parametrize("bare", [False, True])
def test_correct_network_passes_and_is_told_what_does_not_apply(own: Any, audit: Any, bare: bool) -> None:
    model = own().inner if bare else own()
    audits = audit(model)
    assert {name for name, item in audits.items() if item.passed is False} == set()
    assert {name for name, item in audits.items() if item.passed is None} == {
        "kv-cache",
        "attention-implementations",
        "attention-weights",
    }
    assert "in float64 on a copy" in audits["causality"].procedure
    assert "not supported" not in audits["causality"].procedure


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("peek", [1, 11])
def test_network_that_cheats_is_detected(own: Any, audit: Any, bare: bool, peek: int) -> None:
    model = own(peek=peek)
    audits = audit(model.inner if bare else model)
    assert format_blocking_reasons(audits.values()) == "reads the future"
    assert f"logits up to {peek} positions before" in audits["causality"].observation


def test_network_with_maps_left_over_from_a_pass_can_be_audited(own: Any, audit: Any) -> None:
    model = own()
    model(torch.ones(1, 4, dtype=torch.long))
    assert model.inner.last_maps.grad_fn is not None
    assert audit(model)["causality"].passed is True


class Simple(nn.Module):
    """Causal mean of the embeddings. Each test breaks one property."""

    def __init__(self, out: int = 23) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(23, 8), nn.Linear(8, out)

    def mean(self, x: Tensor) -> Tensor:
        return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[None, :, None]

    def forward(self, input_ids: Tensor) -> Any:
        return self.output(self.mean(self.embedding(input_ids)))


def test_mean_over_the_whole_text_reads_the_future(audit: Any) -> None:
    class Whole(Simple):
        def mean(self, x: Tensor) -> Tensor:
            return x + 1e-4 * x.mean(1, keepdim=True)

    assert audit(Simple())["causality"].passed is True
    assert audit(Whole())["causality"].failure_reason == "reads the future"


def test_mask_of_padding_that_replaces_the_causal_mask_is_detected(audit: Any) -> None:
    """The bug only appears if a padding mask is passed."""

    class Replaced(Simple):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
            x, length = self.embedding(input_ids), input_ids.shape[1]
            allowed = torch.ones(length, length).tril().bool()[None]
            if attention_mask is not None and not attention_mask.all():
                allowed = attention_mask[:, None, :].bool()
            scores = (x @ x.transpose(1, 2)).masked_fill(~allowed, -torch.inf)
            return self.output(scores.softmax(-1) @ x)

    result = audit(Replaced())["causality"]
    assert result.passed is False
    assert "with padding" in result.observation


def test_network_without_an_embedding_layer_is_caught_by_value(audit: Any) -> None:
    class OneHot(Simple):
        def forward(self, input_ids: Tensor) -> Any:
            x = nn.functional.one_hot(input_ids, 23).to(self.output.weight.dtype) @ self.embedding.weight
            return self.output(x + x.roll(-1, 1))

    result = audit(OneHot())["causality"]
    assert result.passed is False
    assert "not supported by the model: gradients (no embedding layer receives the token ids)" in result.procedure


def test_network_that_rejects_float64_is_audited_in_float32(audit: Any) -> None:
    class Single(Simple):
        leak = False

        def forward(self, input_ids: Tensor) -> Any:
            x = self.embedding(input_ids) @ torch.eye(8)
            return self.output(self.mean(x) + (0.01 * x.roll(-1, 1) if self.leak else 0))

    model = Single()
    result = audit(model)["causality"]
    assert result.passed is True
    assert "in float32 (float64 is not supported by the model) on a copy" in result.procedure
    model.leak = True
    assert audit(model)["causality"].passed is False


def test_network_that_takes_one_length_only_is_audited_at_that(audit_all: Any) -> None:
    class Fixed(Simple):
        def forward(self, input_ids: Tensor) -> Any:
            assert input_ids.shape[1] == 12, "only whole contexts"
            return super().forward(input_ids)

    audits = audit_all(Fixed())
    assert audits["causality"].passed is True
    assert "sequences of 7 tokens" in audits["causality"].procedure
    assert audits["batch-independence"].passed is True
    assert audits["position-signals"].passed is None
    assert "AssertionError: only whole contexts" in audits["position-signals"].observation


class Classifier(Simple):
    """Recognizes padding by its token instead of a mask."""

    masks = True

    def __init__(self) -> None:
        super().__init__(3)

    def forward(self, input_ids: Tensor) -> Any:
        keep = (input_ids != 0)[..., None] if self.masks else torch.ones(*input_ids.shape, 1)
        return self.output((self.embedding(input_ids) * keep).sum(1) / keep.sum(1))


@pytest.mark.parametrize("masks", [True, False])
def test_padding_known_by_its_token_is_audited_with_that_token(audit: Any, masks: bool) -> None:
    model = Classifier()
    model.masks = masks
    assert audit(model, classes=3)["padding"].passed is masks
    assert audit(model, classes=3, pad_id=None)["padding"].passed is None


@pytest.mark.parametrize("masks", [True, False])
def test_what_stands_under_padding_is_changed_even_at_one_length(audit: Any, masks: bool) -> None:
    class Fixed(Classifier):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
            assert input_ids.shape[1] == 12, "only whole contexts"
            keep = torch.ones_like(input_ids) if attention_mask is None else attention_mask
            weight = (keep if masks else torch.ones_like(keep))[..., None]
            return self.output((self.embedding(input_ids) * weight).sum(1) / keep.sum(1, keepdim=True))

    result = audit(Fixed(), classes=3)["padding"]
    assert result.passed is masks
    assert masks or "other tokens under the padding" in result.observation


def test_model_that_gives_no_numbers_has_no_verdict(build_small_model: Any, audit_all: Any) -> None:
    model = build_small_model()
    nn.init.constant_(model.output.bias, torch.nan)
    audits = audit_all(model)
    assert format_blocking_reasons(audits.values()) == "logits are NaN"


def test_logits_that_are_minus_infinity_for_padding_are_numbers(audit: Any) -> None:
    class Never(Simple):
        def forward(self, input_ids: Tensor) -> Any:
            logits = super().forward(input_ids)
            return logits.masked_fill(torch.arange(23) == 0, -torch.inf)

    audits = audit(Never())
    assert audits["causality"].passed is True
    assert audits["batch-independence"].passed is True


def test_what_cannot_be_audited_is_rejected_with_a_message(build_small_model: Any, audit: Any) -> None:
    with pytest.raises(ModelError, match="fails: IndexError"):
        audit(build_small_model(), vocab_size=99)
    with pytest.raises(ModelError, match="input_ids must be between 0 and 22, got 1 to 77"):
        audit(build_small_model(), input_ids=torch.tensor([[1, 2, 77]]))
    with pytest.raises(ModelError, match="auditing a classifier requires num_classes"):
        audit_model(Classifier(), target=Target.CLASS, vocab_size=23, context=12)
