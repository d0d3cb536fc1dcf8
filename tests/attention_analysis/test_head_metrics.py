"""Head metrics of constructed attention weights, induction scores, and ablated heads against zeroed weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from headtohead.attention_analysis import head_metrics
from headtohead.attention_analysis.analysis import analyze_attention
from headtohead.config.tables import model as config_model
from headtohead.data.batches import Batch
from headtohead.errors import ModelError
from headtohead.experiment.schemas import HeadMeasures
from headtohead.model_factory import build_model
from headtohead.nn.protocol import ModelOutput
from headtohead.pretrained.pretrained_model import PretrainedModel
from headtohead.saved_models.open_model import open_model

from .test_map_checks import LENGTH, make_maps

VOCAB = 40


def compute_metrics(weights: np.ndarray, num_padding: int = 0) -> HeadMeasures:
    """Return the metrics of a single bidirectional head with the given weights."""
    maps = make_maps(weights.astype(np.float32), is_causal=False, reach=(None, None), num_padding=num_padding)
    return head_metrics.compute_text_head_metrics(maps)[0]


def test_metrics_of_a_previous_token_head() -> None:
    head = compute_metrics(np.eye(LENGTH, k=-1) + np.eye(LENGTH)[:, [0]] * np.eye(LENGTH)[0])
    assert head.model_dump(exclude_unset=True) == {
        "layer": 1,
        "head": 1,
        "entropy": 0.0,
        "distance": 1.0,
        "first": pytest.approx(1 / (LENGTH - 1)),
        "itself": 0.0,
        "previous": 1.0,
        "padding": 0.0,
    }


def test_metrics_of_a_uniform_head() -> None:
    head = compute_metrics(np.full((LENGTH, LENGTH), 1 / LENGTH))
    assert head.entropy == pytest.approx(np.log2(LENGTH), rel=1e-6)
    mean_distance = np.abs(np.arange(LENGTH)[:, None] - np.arange(LENGTH))[1:].mean()
    assert head.distance == pytest.approx(mean_distance, rel=1e-6)
    assert head.first == head.itself == head.previous == pytest.approx(1 / LENGTH)


def test_weight_on_padding_is_measured_and_padding_queries_are_ignored() -> None:
    weights = np.zeros((LENGTH, LENGTH))
    weights[:, 0], weights[:, 5] = 0.75, 0.25
    weights[4:] = 0.5  # padding queries
    head = compute_metrics(weights, num_padding=2)
    assert (head.first, head.padding) == (0.75, 0.25)


def test_a_text_of_one_token_has_no_metrics(decoders: dict[str, Path]) -> None:
    assert analyze_attention(decoders["baseline"], "people").measures[0].entropy is None


def build_tiny_model(is_causal: bool = True, **settings: Any) -> Any:
    config = config_model.TransformerConfig.model_validate(
        {"width": 16, "layers": 2, "heads": 4, "context": 12, **settings}
    )
    return build_model(config, VOCAB, None if is_causal else 3, seed=1).eval()


def make_batches(length: int = 12) -> list[Batch]:
    sequences = torch.randint(1, VOCAB, (6, length + 1), generator=torch.Generator().manual_seed(0))
    return [Batch(token_ids[:, :-1], token_ids[:, 1:], None) for token_ids in sequences.split(4)]


def test_metrics_do_not_depend_on_batch_size_and_padding() -> None:
    model = build_tiny_model()
    heads = head_metrics.compute_batch_head_metrics(model, make_batches())
    assert len(heads) == 8
    input_ids = torch.cat([batch.input_ids for batch in make_batches()])
    single_batch_heads = head_metrics.compute_batch_head_metrics(model, [Batch(input_ids, input_ids, None)])
    for head, expected in zip(heads, single_batch_heads, strict=True):
        assert head.model_dump(exclude_none=True) == pytest.approx(expected.model_dump(exclude_none=True), rel=1e-6)
    padded_ids = torch.cat((input_ids, torch.zeros(6, 3, dtype=torch.long)), 1)
    attention_mask = torch.arange(15)[None].expand(6, -1) < 12
    long_model = build_tiny_model(context=15, position="sinusoidal")
    short_model = build_tiny_model(context=12, position="sinusoidal")
    for head, expected in zip(
        head_metrics.compute_batch_head_metrics(long_model, [Batch(padded_ids, padded_ids, attention_mask)]),
        head_metrics.compute_batch_head_metrics(short_model, [Batch(input_ids, input_ids, None)]),
        strict=True,
    ):
        assert head.model_dump(exclude_none=True) == pytest.approx(
            expected.model_dump(exclude_none=True), rel=1e-4, abs=1e-6
        )


# ---- induction heads


class InductionModel(nn.Module):
    """A model with two heads: an induction head, and a head that attends to a fixed distance."""

    def __init__(self, distance: int) -> None:
        super().__init__()
        self.distance = distance

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, output_attentions: bool = False
    ) -> ModelOutput:
        batch_size, length = input_ids.shape
        weights = torch.zeros(batch_size, 2, length, length)
        for batch_index, token_ids in enumerate(input_ids.tolist()):
            for query, token_id in enumerate(token_ids):
                occurrences = [key for key in range(query) if token_ids[key] == token_id]
                weights[batch_index, 0, query, occurrences[-1] + 1 if occurrences else query] = 1
                weights[batch_index, 1, query, max(0, query - self.distance)] = 1
        return ModelOutput(torch.zeros(batch_size, length, 3), (weights,))


def test_the_control_separates_induction_heads_from_heads_with_a_fixed_distance() -> None:
    half_length = 8
    model = InductionModel(distance=half_length - 1)
    score, control = head_metrics.compute_induction_scores(model, VOCAB, length=2 * half_length)
    assert score[0].tolist() == [1.0, 1.0]
    assert control[0].tolist() == [0.0, 1.0]
    assert [head_metrics.is_induction_head(*pair) for pair in zip(score[0], control[0], strict=True)] == [True, False]
    assert head_metrics.is_induction_head(None, 0.5) is None


def test_induction_sequences_have_distinct_tokens() -> None:
    sequences = head_metrics._sample_distinct_tokens([2, 3, 5, 7, 11, 13], 6, 5, seed=0)
    assert all(sorted(token_ids) == [2, 3, 5, 7, 11, 13] for token_ids in sequences.tolist())
    assert len({tuple(token_ids) for token_ids in sequences.tolist()}) > 1


def test_induction_scores_are_undefined_for_a_tiny_vocabulary() -> None:
    score, control = head_metrics.compute_induction_scores(
        build_tiny_model(), VOCAB, length=12, special_ids=range(1, VOCAB)
    )
    assert score.shape == control.shape == (2, 4)
    assert np.isnan(score).all()


# ---- ablation


@pytest.mark.parametrize("settings", [{}, {"projection": {"kind": "linear", "key_heads": 2}}])
@torch.no_grad()
def test_ablating_a_head_equals_zeroing_its_output_weights(settings: dict[str, Any]) -> None:
    model, zeroed_model = build_tiny_model(**settings), build_tiny_model(**settings)
    input_ids = make_batches()[0].input_ids
    zeroed_model.layers[1].attention.output.weight[:, 8:12] = 0
    logits = model(input_ids).logits
    with head_metrics.ablate_head(model, 1, 2):
        ablated_logits = model(input_ids).logits
    assert torch.allclose(ablated_logits, zeroed_model(input_ids).logits, atol=1e-6)
    assert not torch.allclose(ablated_logits, logits, atol=1e-4)
    assert torch.equal(model(input_ids).logits, logits), "the model is restored"


@torch.no_grad()
def test_heads_are_ablated_before_a_merge_that_permutes_them() -> None:
    model, zeroed_model = build_tiny_model(merge="shift"), build_tiny_model(merge="shift")
    input_ids = make_batches()[0].input_ids
    zeroed_model.layers[0].attention.output.weight[:, 4:8] = 0  # position of head 0 after the shift
    with head_metrics.ablate_head(model, 0, 0):
        assert torch.allclose(model(input_ids).logits, zeroed_model(input_ids).logits, atol=1e-6)


@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@torch.no_grad()
def test_heads_of_pretrained_models_can_be_ablated(kind: str) -> None:
    sizes = {"vocab_size": VOCAB, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24}
    torch.manual_seed(0)
    if kind == "gpt2":
        inner = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
        output_weight = inner.transformer.h[1].attn.c_proj.weight  # Conv1D, shape (input, output)
        head_weight = output_weight[8:16]
    else:
        inner = transformers.BertModel(transformers.BertConfig(**sizes, intermediate_size=20))
        output_weight = inner.encoder.layer[1].attention.output.dense.weight
        head_weight = output_weight[:, 8:16]
    model = PretrainedModel(inner.eval())
    input_ids = torch.arange(1, 9)[None]
    with head_metrics.ablate_head(model, 1, 1):
        ablated_logits = model(input_ids).logits
    assert not torch.allclose(ablated_logits, model(input_ids).logits, atol=1e-5)
    head_weight.zero_()
    assert torch.allclose(ablated_logits, model(input_ids).logits, atol=1e-6)


def test_models_without_separate_heads_cannot_be_ablated() -> None:
    with pytest.raises(ModelError, match="cannot ablate heads"), head_metrics.ablate_head(nn.Linear(2, 2), 0, 0):
        pass


def test_loss_increase_is_the_difference_between_ablated_and_original_loss(decoders: dict[str, Path]) -> None:
    text = "the people will build new schools ."
    attention = analyze_attention(decoders["baseline"], text, ablate_heads=True)
    bundle = open_model(decoders["baseline"])
    input_ids = torch.tensor([bundle.tokenizer.encode(text)])

    def compute_loss() -> float:
        logits = bundle.model(input_ids).logits[0, :-1]
        return float(nn.functional.cross_entropy(logits, input_ids[0, 1:]))

    with torch.no_grad():
        loss = compute_loss()
        with head_metrics.ablate_head(bundle.model, 1, 0):
            ablated_loss = compute_loss()
    assert attention.measures[2].rise == pytest.approx(ablated_loss - loss, abs=1e-6)
    assert len({head.rise for head in attention.measures}) == 4


def test_loss_increase_of_a_classifier(classifiers: dict[str, Path]) -> None:
    attention = analyze_attention(classifiers["baseline"], "the people will build jobs .", ablate_heads=True)
    assert all(np.isfinite(head.rise) for head in attention.measures)
    assert attention.measures[0].induction is None, "only decoders are tested for induction"


def test_a_head_is_idle_if_its_whole_interval_is_negligible() -> None:
    assert head_metrics.is_idle_head([-0.002, 0.009]) is True
    assert head_metrics.is_idle_head([-0.002, 0.02]) is False
    assert head_metrics.is_idle_head(None) is None
