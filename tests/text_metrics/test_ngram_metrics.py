"""Diversity metrics against hand counts, naive counts and sacrebleu."""

import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from headtohead.errors import MissingExtraError
from headtohead.text_metrics import ngram_metrics

SENTENCES = ["He went to the park.", "He went to the old park.", "She stayed at home all day."]
Texts = st.lists(st.lists(st.sampled_from("abc"), max_size=12).map(" ".join), max_size=5)


def test_words_are_lowercase_words_and_punctuation_marks() -> None:
    assert ngram_metrics.split_words("He didn’t -- it's Ryan's, No. 9!") == (
        *("he", "didn’t", "-", "-", "it's", "ryan's", ",", "no", ".", "9", "!"),
    )


@given(Texts, st.integers(1, 4))
def test_distinct_and_repetition_equal_a_naive_count(texts: list[str], n: int) -> None:
    all_ngrams: list[str] = []
    num_repeated = 0
    for text in texts:
        words = text.split()
        ngrams = [" ".join(words[i : i + n]) for i in range(len(words) - n + 1)]
        num_repeated += sum(ngram in ngrams[:i] for i, ngram in enumerate(ngrams))
        all_ngrams += ngrams
    assert ngram_metrics.compute_distinct_n(texts, n) == ngram_metrics.Ratio(len(set(all_ngrams)), len(all_ngrams))
    assert ngram_metrics.compute_repetition(texts, n) == ngram_metrics.Ratio(num_repeated, len(all_ngrams))


def test_distinct_and_repetition_by_hand() -> None:
    texts = ["the dog saw the dog", "the dog ran"]
    assert ngram_metrics.compute_distinct_n(texts, 1) == ngram_metrics.Ratio(4, 8)
    assert ngram_metrics.compute_distinct_n(texts, 2) == ngram_metrics.Ratio(
        4, 6
    )  # the dog (3 times), dog saw, saw the, dog ran
    assert ngram_metrics.compute_repetition(["a b c d a b c d a", "a b c d"]) == ngram_metrics.Ratio(2, 7)
    assert ngram_metrics.compute_distinct_n(["", "word"], 2).value is None


def test_self_bleu_is_sacrebleu_of_each_sample_against_the_others() -> None:
    total = sum(
        sacrebleu.sentence_bleu(text, [other for other in SENTENCES if other != text], use_effective_order=True).score
        for text in SENTENCES
    )
    self_bleu = ngram_metrics.compute_self_bleu([f" {text}" for text in SENTENCES])
    assert self_bleu.total == pytest.approx(total)
    assert self_bleu.denominator == 3
    assert 0 < total / 3 < 100


def test_self_bleu_of_equal_samples_is_100_and_of_one_sample_unknown() -> None:
    assert ngram_metrics.compute_self_bleu(["yes sir"] * 3).value == 100
    exact = sacrebleu.sentence_bleu("yes sir", ["yes sir"] * 2, use_effective_order=True).score
    assert exact == pytest.approx(100)
    assert ngram_metrics.compute_self_bleu(["one", "  "]).value is None
    assert ngram_metrics.compute_self_bleu([*SENTENCES, ""]) == ngram_metrics.compute_self_bleu(SENTENCES)


def test_chrf_is_that_of_sacrebleu() -> None:
    human_text = "He missed his train and went to the park."
    scores = [sacrebleu.sentence_chrf(text, [human_text]).score for text in SENTENCES]
    assert ngram_metrics.compute_chrf([f" {text}" for text in SENTENCES], f" {human_text}") == pytest.approx(scores)
    assert ngram_metrics.compute_chrf([human_text, ""], human_text) == pytest.approx([100, 0])


def test_signatures_contain_the_settings_of_sacrebleu() -> None:
    sacrebleu_signatures = ngram_metrics.get_sacrebleu_signatures()
    assert "tok:13a" in sacrebleu_signatures["self-BLEU"] and "eff:yes" in sacrebleu_signatures["self-BLEU"]
    assert "nc:6" in sacrebleu_signatures["chrF"]
    assert not any("nrefs" in output for output in sacrebleu_signatures.values())


def test_without_sacrebleu_the_command_that_installs_it_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    ngram_metrics._load_sacrebleu_metrics.cache_clear()
    for name in ("sacrebleu.metrics.bleu", "sacrebleu.metrics.chrf"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(MissingExtraError, match=r"sacrebleu; install it with: pip install 'headtohead\[pretrained\]'"):
        ngram_metrics.check_sacrebleu_installed()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=6))
def test_ratios_are_added_component_wise(pairs: list[tuple[int, int]]) -> None:
    ratio = ngram_metrics.EMPTY_RATIO
    for pair in pairs:
        ratio += ngram_metrics.Ratio(*pair)
    assert (ratio.total, ratio.denominator) == (sum(a for a, _ in pairs), sum(b for _, b in pairs))
