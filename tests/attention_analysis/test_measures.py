"""The measures of heads that were made by hand, and of silence that can be checked in the weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from headtohead.attention_analysis import api, head_metrics
from headtohead.config import model as config_model
from headtohead.data.batches import Batch
from headtohead.errors import ModelError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.model_factory import build_model
from headtohead.nn.protocol import ModelOutput
from headtohead.pretrained.loading import PretrainedModel

from .test_checks import LENGTH, uniform_maps

VOCAB = 40


def one_row(weights: np.ndarray, pads: int = 0) -> HeadMeasures:
    return head_metrics.measure_maps(
        uniform_maps(weights.astype(np.float32), causal=False, reach=(None, None), pads=pads)
    )[0]


def test_a_head_that_looks_at_the_token_before() -> None:
    row = one_row(np.eye(LENGTH, k=-1) + np.eye(LENGTH)[:, [0]] * np.eye(LENGTH)[0])
    assert row.model_dump(exclude_unset=True) == {
        "layer": 1,
        "head": 1,
        "entropy": 0.0,
        "distance": 1.0,
        "first": pytest.approx(1 / (LENGTH - 1)),
        "itself": 0.0,
        "previous": 1.0,
        "padding": 0.0,
    }


def test_a_head_that_looks_evenly_is_as_wide_as_its_row() -> None:
    row = one_row(np.full((LENGTH, LENGTH), 1 / LENGTH))
    assert row.entropy == pytest.approx(np.log2(LENGTH), rel=1e-6)
    apart = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))[1:].mean()
    assert row.distance == pytest.approx(apart, rel=1e-6)
    assert row.first == row.itself == row.previous == pytest.approx(1 / LENGTH)


def test_padding_is_measured_and_not_counted() -> None:
    weights = np.zeros((LENGTH, LENGTH))
    weights[:, 0], weights[:, 5] = 0.75, 0.25
    weights[4:] = 0.5  # rows of padding: whatever they hold
    row = one_row(weights, pads=2)
    assert (row.first, row.padding) == (0.75, 0.25)


def test_a_text_of_one_token_has_no_measures(decoders: dict[str, Path]) -> None:
    assert api.analyze_attention(decoders["baseline"], "people").measures[0].entropy is None


def model(causal: bool = True, **settings: Any) -> Any:
    chosen = {"width": 16, "layers": 2, "heads": 4, "context": 12, **settings}
    return build_model(
        config_model.TransformerConfig.model_validate(chosen), VOCAB, None if causal else 3, seed=1
    ).eval()


def batches(length: int = 12) -> list[Batch]:
    ids = torch.randint(1, VOCAB, (6, length + 1), generator=torch.Generator().manual_seed(0))
    return [Batch(rows[:, :-1], rows[:, 1:], None) for rows in ids.split(4)]


def test_means_over_rows_weigh_every_token_alike() -> None:
    """In batches of any size, and padded or not."""
    net = model()
    whole = head_metrics.measure_heads(net, batches())
    ids = torch.cat([one.input_ids for one in batches()])
    assert len(whole) == 8
    single = head_metrics.measure_heads(net, [Batch(ids, ids, None)])
    padded = torch.cat((ids, torch.zeros(6, 3, dtype=torch.long)), 1)
    mask = torch.arange(15)[None].expand(6, -1) < 12
    longer = model(context=15, position="sinusoidal"), model(context=12, position="sinusoidal")
    for one, other in zip(whole, single, strict=True):
        assert one.model_dump(exclude_none=True) == pytest.approx(other.model_dump(exclude_none=True), rel=1e-6)
    for one, other in zip(
        head_metrics.measure_heads(longer[0], [Batch(padded, padded, mask)]),
        head_metrics.measure_heads(longer[1], [Batch(ids, ids, None)]),
        strict=True,
    ):
        assert one.model_dump(exclude_none=True) == pytest.approx(
            other.model_dump(exclude_none=True), rel=1e-4, abs=1e-6
        )


# ---- copying


class Copier(nn.Module):
    """Two heads: one looks at what came after the same token before, one always so many places back."""

    def __init__(self, back: int) -> None:
        super().__init__()
        self.back = back

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, output_attentions: bool = False
    ) -> ModelOutput:
        rows, length = input_ids.shape
        weights = torch.zeros(rows, 2, length, length)
        for row, tokens in enumerate(input_ids.tolist()):
            for at, token in enumerate(tokens):
                before = [i for i in range(at) if tokens[i] == token]
                weights[row, 0, at, before[-1] + 1 if before else at] = 1
                weights[row, 1, at, max(0, at - self.back)] = 1
        return ModelOutput(torch.zeros(rows, length, 3), (weights,))


def test_a_head_that_copies_is_told_from_one_that_counts() -> None:
    half = 8
    score, control = head_metrics.compute_induction_scores(Copier(half - 1), VOCAB, length=2 * half)
    assert score[0].tolist() == [1.0, 1.0], "on repeated tokens both look at the right place"
    assert control[0].tolist() == [0.0, 1.0], "on new ones only the one that counts still does"
    assert [head_metrics.is_induction_head(*pair) for pair in zip(score[0], control[0], strict=True)] == [True, False]
    assert head_metrics.is_induction_head(None, 0.5) is None


def test_random_rows_never_repeat_and_spare_special_tokens() -> None:
    drawn = head_metrics._sample_distinct_tokens([2, 3, 5, 7, 11, 13], 6, 5, seed=0)
    assert all(sorted(row) == [2, 3, 5, 7, 11, 13] for row in drawn.tolist())
    assert len({tuple(row) for row in drawn.tolist()}) > 1


def test_a_vocabulary_too_small_to_try_gives_no_score() -> None:
    score, control = head_metrics.compute_induction_scores(model(), VOCAB, length=12, special_ids=range(1, VOCAB))
    assert score.shape == control.shape == (2, 4)
    assert np.isnan(score).all()


# ---- silence


@pytest.mark.parametrize("settings", [{}, {"projection": {"kind": "linear", "key_heads": 2}}])
@torch.no_grad()
def test_a_silenced_head_is_one_whose_output_weights_are_zero(settings: dict[str, Any]) -> None:
    net, twin = model(**settings), model(**settings)
    ids = batches()[0].input_ids
    twin.layers[1].attention.output.weight[:, 8:12] = 0
    whole = net(ids).logits
    with head_metrics.ablate_head(net, 1, 2):
        silent = net(ids).logits
    assert torch.allclose(silent, twin(ids).logits, atol=1e-6)
    assert not torch.allclose(silent, whole, atol=1e-4)
    assert torch.equal(net(ids).logits, whole), "afterwards it is as it was"


@torch.no_grad()
def test_a_head_is_silent_before_the_merge_moves_it() -> None:
    net, twin = model(merge="shift"), model(merge="shift")
    ids = batches()[0].input_ids
    twin.layers[0].attention.output.weight[:, 4:8] = 0  # where head 0 comes to stand
    with head_metrics.ablate_head(net, 0, 0):
        assert torch.allclose(net(ids).logits, twin(ids).logits, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@torch.no_grad()
def test_heads_of_pretrained_models_can_be_silenced_too(kind: str) -> None:
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24}
    torch.manual_seed(0)
    if kind == "gpt2":
        inner = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        place = inner.transformer.h[1].attn.c_proj.weight  # theirs are stored input first
        zeroed = place[8:16]
    else:
        inner = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=20))
        place = inner.encoder.layer[1].attention.output.dense.weight
        zeroed = place[:, 8:16]
    net = PretrainedModel(inner.eval())
    ids = torch.arange(1, 9)[None]
    with head_metrics.ablate_head(net, 1, 1):
        silent = net(ids).logits
    assert not torch.allclose(silent, net(ids).logits, atol=1e-5)
    zeroed.zero_()
    assert torch.allclose(silent, net(ids).logits, atol=1e-6)


def test_heads_that_cannot_be_told_apart_cannot_be_silenced() -> None:
    with pytest.raises(ModelError, match="cannot ablate heads"), head_metrics.ablate_head(nn.Linear(2, 2), 0, 0):
        pass


def test_the_loss_rises_by_what_the_head_is_worth(decoders: dict[str, Path]) -> None:
    text = "the people will build new schools ."
    seen = api.analyze_attention(decoders["baseline"], text, ablate_heads=True)
    opened = api.open_model(decoders["baseline"])
    ids = torch.tensor([opened.tokenizer.encode(text)])

    def loss() -> float:
        logits = opened.model(ids).logits[0, :-1]
        return float(nn.functional.cross_entropy(logits, ids[0, 1:]))

    with torch.no_grad():
        whole = loss()
        with head_metrics.ablate_head(opened.model, 1, 0):
            silent = loss()
    assert seen.measures[2].rise == pytest.approx(silent - whole, abs=1e-6)
    assert len({row.rise for row in seen.measures}) == 4


def test_a_classifier_has_a_rise_too(classifiers: dict[str, Path]) -> None:
    seen = api.analyze_attention(classifiers["baseline"], "the people will build jobs .", ablate_heads=True)
    assert all(np.isfinite(row.rise) for row in seen.measures)
    assert seen.measures[0].induction is None, "an encoder has nothing to copy forward"


def test_a_head_does_nothing_when_its_whole_interval_is_too_small() -> None:
    assert head_metrics.is_idle_head([-0.002, 0.009]) is True
    assert head_metrics.is_idle_head([-0.002, 0.02]) is False
    assert head_metrics.is_idle_head(None) is None
