"""Losses of continuations against one token at a time and against transformers."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from headtohead.data.tokenization.tokenizers import CorpusTokenizer
from headtohead.errors import ModelError
from headtohead.generation import likelihood, prompt_encoding
from headtohead.pretrained.pretrained_model import PretrainedModel

VOCAB = 11
CONTEXT = 16


@pytest.fixture(scope="module")
def model() -> PretrainedModel:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        n_embd=16,
        n_layer=2,
        n_head=2,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=0,
    )
    return PretrainedModel(transformers.GPT2LMHeadModel(config)).eval()


def compute_naive_loss(model: Any, begun: Sequence[int], written: Sequence[int]) -> float:
    """Compute the losses one token at a time from the full preceding text."""
    total = 0.0
    for at, token in enumerate(written):
        with torch.no_grad():
            logits = model(torch.tensor([[*begun, *written[:at]]])).logits[0, -1].double()
        total -= float(logits.log_softmax(-1)[token])
    return total


def test_losses_equal_those_of_one_token_at_a_time(model: PretrainedModel) -> None:
    contexts = [[1, 2, 3], [4, 5], [1, 2, 3], [6], [4, 5]]
    continuations = [[4, 4, 1], [7], [0, 9, 10], [1, 2, 3, 4], []]
    continuation_losses = likelihood.compute_continuation_losses(model, contexts, continuations)
    assert continuation_losses == pytest.approx(
        [compute_naive_loss(model, a, b) for a, b in zip(contexts, continuations, strict=True)], rel=1e-5
    )
    assert continuation_losses[-1] == 0


def test_losses_equal_the_loss_of_transformers(model: PretrainedModel) -> None:
    context, continuation = [3, 1, 4], [1, 5, 9, 2, 6]
    labels = torch.tensor([[-100] * len(context) + continuation])
    with torch.no_grad():
        mean_loss = float(model.inner(input_ids=torch.tensor([context + continuation]), labels=labels).loss)
        expected = mean_loss * len(continuation)
    assert likelihood.compute_continuation_losses(model, [context], [continuation]) == pytest.approx(
        [expected], rel=1e-5
    )


def test_cached_losses_equal_uncached_losses(model: PretrainedModel) -> None:
    contexts = [(1, 2, 3), (4, 5, 6), (1, 2, 3)]
    continuations = torch.tensor([[7, 8, 9], [1, 1, 2], [3, 5, 8]])
    with torch.inference_mode():
        cached_losses = likelihood.compute_losses_cached(model, model.create_cache(), contexts, continuations)
        uncached_losses = likelihood.compute_losses_uncached(
            model, torch.cat((torch.tensor(contexts), continuations), 1), 3
        )
    torch.testing.assert_close(cached_losses, uncached_losses, rtol=1e-5, atol=1e-5)


@given(st.integers(2, 80), st.integers(1, 40), st.integers(2, 20))
def test_sliding_windows_predict_every_token_once_with_enough_context(length: int, first: int, context: int) -> None:
    first = min(first, length - 1)
    predicted: list[int] = []
    for window_start, start, end in likelihood.iter_sliding_windows(length, first, context):
        assert end - 1 - window_start <= context, "longer than the context"
        assert start - window_start >= min(start, max(1, context // 2))
        predicted += range(start, end)
    assert predicted == list(range(first, length))


def test_sequences_longer_than_the_context_are_scored_in_windows(model: PretrainedModel) -> None:
    ids = [int(i) for i in torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1))]
    (result,) = likelihood.compute_continuation_losses(model, [ids[:4]], [ids[4:]])
    assert math.isfinite(result)
    total = sum(
        compute_naive_loss(model, ids[window_start:start], ids[start:end])
        for window_start, start, end in likelihood.iter_sliding_windows(40, 4, CONTEXT)
    )
    assert result == pytest.approx(total, rel=1e-5)


def build_word_tokenizer(*words: str) -> CorpusTokenizer:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(["<unk>", *words])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return CorpusTokenizer(backend)


def test_text_likelihoods_use_the_tokenizer_of_the_scoring_model(model: PretrainedModel) -> None:
    tokenizer = build_word_tokenizer("he", "went", "home", "é")
    text_likelihoods = likelihood.compute_text_likelihoods(
        model, tokenizer, ["he went"] * 3, [" home é", " away", " home é"]
    )
    assert [item.tokens for item in text_likelihoods] == [2, 1, 2]
    assert [item.bytes for item in text_likelihoods] == [8, 5, 8]
    assert [item.unknown for item in text_likelihoods] == [0, 1, 0]
    assert text_likelihoods[0].loss == pytest.approx(compute_naive_loss(model, [1, 2], [3, 4]), rel=1e-5)
    assert text_likelihoods[0] == text_likelihoods[2]


def test_a_token_across_the_boundary_belongs_to_the_continuation() -> None:
    tokenizer = build_word_tokenizer("he", "went", "wentward")
    assert prompt_encoding.encode_prompt_and_continuation(tokenizer, "he went", "ward") == ([1], [3])


def test_an_empty_prompt_without_a_start_token_is_rejected(model: PretrainedModel) -> None:
    with pytest.raises(ModelError, match="the prompt is empty"):
        likelihood.compute_continuation_losses(model, [[]], [[1, 2]])
