"""Measures of texts, against counts made by hand and independent implementations."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import sacrebleu
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from headtohead.data.tokenizers import CorpusTokenizer
from headtohead.errors import MissingExtraError, ModelError
from headtohead.generation import likelihood
from headtohead.pretrained.loading import PretrainedModel
from headtohead.text_metrics import diversity

VOCAB, CONTEXT = 11, 16
SENTENCES = ["He went to the park.", "He went to the old park.", "She stayed at home all day."]
Texts = st.lists(st.lists(st.sampled_from("abc"), max_size=12).map(" ".join), max_size=5)


def test_words_are_words_and_signs_in_lower_case() -> None:
    assert diversity.split_words("He didn’t -- it's Ryan's, No. 9!") == (
        *("he", "didn’t", "-", "-", "it's", "ryan's", ",", "no", ".", "9", "!"),
    )


@given(Texts, st.integers(1, 4))
def test_distinct_and_repetition_equal_a_naive_count(texts: list[str], n: int) -> None:
    seen: list[str] = []
    again = held = 0
    for text in texts:
        split = text.split()
        own: list[str] = []
        for at in range(len(split)):
            gram = " ".join(split[at : at + n])
            if at + n <= len(split):
                again += gram in own
                held += 1
                own.append(gram)
        seen += own
    assert diversity.compute_distinct_n(texts, n) == diversity.Ratio(len(set(seen)), len(seen))
    assert diversity.compute_repetition(texts, n) == diversity.Ratio(again, held)


def test_distinct_and_repetition_by_hand() -> None:
    texts = ["the dog saw the dog", "the dog ran"]
    assert diversity.compute_distinct_n(texts, 1) == diversity.Ratio(4, 8)
    assert diversity.compute_distinct_n(texts, 2) == diversity.Ratio(
        4, 6
    )  # the dog (3 times), dog saw, saw the, dog ran
    assert diversity.compute_repetition(["a b c d a b c d a", "a b c d"]) == diversity.Ratio(2, 7)
    assert diversity.compute_distinct_n(["", "word"], 2).value is None


def test_self_bleu_is_sacrebleu_of_each_sample_against_the_others() -> None:
    wanted = sum(
        sacrebleu.sentence_bleu(text, [other for other in SENTENCES if other != text], use_effective_order=True).score
        for text in SENTENCES
    )
    found = diversity.compute_self_bleu([f" {text}" for text in SENTENCES])
    assert found.total == pytest.approx(wanted)
    assert found.denominator == 3
    assert 0 < wanted / 3 < 100


def test_self_bleu_of_equal_samples_is_100_and_of_one_sample_unknown() -> None:
    assert diversity.compute_self_bleu(["yes sir"] * 3).value == 100
    exact = sacrebleu.sentence_bleu("yes sir", ["yes sir"] * 2, use_effective_order=True).score
    assert exact == pytest.approx(100)
    assert diversity.compute_self_bleu(["one", "  "]).value is None
    assert diversity.compute_self_bleu([*SENTENCES, ""]) == diversity.compute_self_bleu(SENTENCES)


def test_nearness_is_sacrebleus_chrf() -> None:
    people = "He missed his train and went to the park."
    wanted = [sacrebleu.sentence_chrf(text, [people]).score for text in SENTENCES]
    assert diversity.compute_chrf([f" {text}" for text in SENTENCES], f" {people}") == pytest.approx(wanted)
    assert diversity.compute_chrf([people, ""], people) == pytest.approx([100, 0])


def test_signatures_say_how_sacrebleu_counted() -> None:
    found = diversity.get_sacrebleu_signatures()
    assert "tok:13a" in found["self-BLEU"] and "eff:yes" in found["self-BLEU"]
    assert "nc:6" in found["chrF"]
    assert not any("nrefs" in said for said in found.values())


def test_without_sacrebleu_the_pip_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    diversity._load_sacrebleu_metrics.cache_clear()
    for name in ("sacrebleu.metrics.bleu", "sacrebleu.metrics.chrf"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtraError, match=r"sacrebleu; install it with: pip install 'headtohead\[pretrained\]'"):
        diversity.check_sacrebleu_installed()


# ---- likelihood


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


def naive(model: Any, begun: Sequence[int], written: Sequence[int]) -> float:
    """One token at a time, from the whole text before it."""
    total = 0.0
    for at, token in enumerate(written):
        with torch.no_grad():
            logits = model(torch.tensor([[*begun, *written[:at]]])).logits[0, -1].double()
        total -= float(logits.log_softmax(-1)[token])
    return total


def test_losses_equal_those_of_one_token_at_a_time(model: PretrainedModel) -> None:
    begun = [[1, 2, 3], [4, 5], [1, 2, 3], [6], [4, 5]]
    written = [[4, 4, 1], [7], [0, 9, 10], [1, 2, 3, 4], []]
    found = likelihood.compute_continuation_losses(model, begun, written)
    assert found == pytest.approx([naive(model, a, b) for a, b in zip(begun, written, strict=True)], rel=1e-5)
    assert found[-1] == 0


def test_losses_equal_what_transformers_gives_for_its_labels(model: PretrainedModel) -> None:
    begun, written = [3, 1, 4], [1, 5, 9, 2, 6]
    labels = torch.tensor([[-100] * len(begun) + written])
    with torch.no_grad():
        theirs = float(model.inner(input_ids=torch.tensor([begun + written]), labels=labels).loss) * len(written)
    assert likelihood.compute_continuation_losses(model, [begun], [written]) == pytest.approx([theirs], rel=1e-5)


def test_the_quick_road_equals_the_plain_one(model: PretrainedModel) -> None:
    begun, written = [(1, 2, 3), (4, 5, 6), (1, 2, 3)], torch.tensor([[7, 8, 9], [1, 1, 2], [3, 5, 8]])
    with torch.inference_mode():
        quick = likelihood.compute_losses_cached(model, model.create_cache(), begun, written)
        plain = likelihood.compute_losses_uncached(model, torch.cat((torch.tensor(begun), written), 1), 3)
    torch.testing.assert_close(quick, plain, rtol=1e-5, atol=1e-5)


@given(st.integers(2, 80), st.integers(1, 40), st.integers(2, 20))
def test_windows_ask_for_every_token_once_with_enough_before_it(length: int, first: int, context: int) -> None:
    first = min(first, length - 1)
    asked: list[int] = []
    for begin, start, end in likelihood.iter_sliding_windows(length, first, context):
        assert end - 1 - begin <= context, "more than the model can read"
        assert start - begin >= min(start, max(1, context // 2))
        asked += range(start, end)
    assert asked == list(range(first, length))


def test_a_text_longer_than_the_context_is_read_in_windows(model: PretrainedModel) -> None:
    ids = [int(i) for i in torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1))]
    (found,) = likelihood.compute_continuation_losses(model, [ids[:4]], [ids[4:]])
    assert math.isfinite(found)
    wanted = sum(
        naive(model, ids[begin:start], ids[start:end])
        for begin, start, end in likelihood.iter_sliding_windows(40, 4, CONTEXT)
    )
    assert found == pytest.approx(wanted, rel=1e-5)


def word_level(*words: str) -> CorpusTokenizer:
    backend = Backend(models.WordLevel({word: i for i, word in enumerate(["<unk>", *words])}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return CorpusTokenizer(backend)


def test_another_model_cuts_the_text_its_own_way_and_counts_bytes(model: PretrainedModel) -> None:
    tokenizer = word_level("he", "went", "home", "é")
    found = likelihood.compute_text_likelihoods(model, tokenizer, ["he went"] * 3, [" home é", " away", " home é"])
    assert [one.tokens for one in found] == [2, 1, 2]
    assert [one.bytes for one in found] == [8, 5, 8]
    assert [one.unknown for one in found] == [0, 1, 0]
    assert found[0].loss == pytest.approx(naive(model, [1, 2], [3, 4]), rel=1e-5)
    assert found[0] == found[2]


def test_a_token_across_the_border_is_the_continuations() -> None:
    tokenizer = word_level("he", "went", "wentward")
    assert likelihood.encode_pair(tokenizer, "he went", "ward") == ([1], [3])


def test_an_empty_prompt_without_a_start_token_is_refused(model: PretrainedModel) -> None:
    with pytest.raises(ModelError, match="the prompt is empty"):
        likelihood.compute_continuation_losses(model, [[]], [[1, 2]])


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6))
def test_tallies_add_up(rows: list[tuple[int, int]]) -> None:
    total = diversity.EMPTY_RATIO
    for row in rows:
        total += diversity.Ratio(*row)
    assert (total.total, total.denominator) == (sum(a for a, _ in rows), sum(b for _, b in rows))
