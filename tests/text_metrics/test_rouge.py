"""ROUGE equals the package rouge-score, sentences are split without a download, and copied text is measured."""

import random

import pytest

from headtohead.errors import RequestError
from headtohead.text_metrics import rouge
from headtohead.text_metrics.ngram_metrics import compute_copied_ngrams

scoring = pytest.importorskip("rouge_score.rouge_scorer")
WORDS = "the a cat cats sat sitting on mat house houses ran running quickly and but Dr. #Person1# 3:30".split()


def _draw_summary(rng: random.Random) -> str:
    sentences = [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))).capitalize() + rng.choice(".!?") for _ in range(3)]
    return " ".join(sentences[: rng.randint(1, 3)])


@pytest.mark.parametrize("stemmer", [True, False])
def test_rouge_equals_that_of_rouge_score_on_random_summaries(stemmer):
    rng = random.Random(0)
    scorer = scoring.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=stemmer)
    for _ in range(1000 if stemmer else 100):
        text, reference = _draw_summary(rng), _draw_summary(rng)
        scores = scorer.score("\n".join(rouge.split_sentences(reference)), "\n".join(rouge.split_sentences(text)))
        ours = rouge.compute_rouge(text, [reference], use_stemmer=stemmer)
        assert ours == {name: scores[key].fmeasure for name, key in rouge.ROUGE_TYPES.items()}


def test_several_references_are_aggregated_by_the_best_or_the_mean():
    rng = random.Random(1)
    scorer = scoring.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    for _ in range(100):
        text, references = _draw_summary(rng), [_draw_summary(rng) for _ in range(3)]
        split = ["\n".join(rouge.split_sentences(reference)) for reference in references]
        theirs = scorer.score_multi(split, "\n".join(rouge.split_sentences(text)))
        assert rouge.compute_rouge(text, references) == {
            name: theirs[key].fmeasure for name, key in rouge.ROUGE_TYPES.items()
        }
        rouges = [rouge.compute_rouge(text, [reference]) for reference in references]
        mean = rouge.compute_rouge(text, references, reference_aggregation="mean")
        assert mean["rouge-1"] == pytest.approx(sum(reference["rouge-1"] for reference in rouges) / 3)


def test_rouge_equals_that_of_rouge_score_on_real_summaries(shared):
    from headtohead.data.sources.summarization import load_summarization_corpus

    documents = load_summarization_corpus(shared("summaries/dialogsum")).splits["test"]
    scorer = scoring.RougeScorer(["rouge1", "rougeLsum"], use_stemmer=True)
    for document in documents:
        first, *others = document.summaries
        theirs = scorer.score_multi(
            ["\n".join(rouge.split_sentences(x)) for x in others], "\n".join(rouge.split_sentences(first))
        )
        ours = rouge.compute_rouge(first, others)
        assert ours["rouge-1"] == theirs["rouge1"].fmeasure
        assert ours["rouge-lsum"] == theirs["rougeLsum"].fmeasure


def test_only_rouge_lsum_depends_on_sentence_order():
    reference = "The cat sat. The dog ran."
    rotated, same = "The dog ran. The cat sat.", rouge.compute_rouge(reference, [reference])
    result = rouge.compute_rouge(rotated, [reference])
    assert set(same.values()) == {1.0}
    assert result["rouge-lsum"] == 1.0
    assert result["rouge-l"] < 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Smith met J. Doe at 3.30 p.m. today. He left.", ["Dr. Smith met J. Doe at 3.30 p.m. today.", "He left."]),
        ('He said "Go." #Person2# went.', ['He said "Go."', "#Person2# went."]),
        ("no end\nnew line", ["no end", "new line"]),
        ("", []),
        ("  \n ", []),
        ("and so on ... but no. really", ["and so on ... but no. really"]),
    ],
)
def test_texts_are_split_into_sentences(text, expected):
    assert rouge.split_sentences(text) == expected


def test_the_signature_contains_all_settings_of_a_score():
    assert rouge.format_signature() == "f-measure|stemmer:porter|sentences:h2h-1|references:best|rouge-score:0.1.2"
    assert rouge.format_signature(use_stemmer=False, reference_aggregation="mean") != rouge.format_signature()


def test_copied_ngrams_are_those_that_occur_in_the_document():
    document = "The quick brown fox jumps over the lazy dog."
    assert compute_copied_ngrams("the quick brown cat", document, 2).value == pytest.approx(2 / 3)
    assert compute_copied_ngrams("over the lazy dog", document, 4).value == 1.0
    assert compute_copied_ngrams("short", document, 2).value is None


def test_a_missing_reference_is_reported():
    with pytest.raises(RequestError, match="at least one reference"):
        rouge.compute_rouge("text", [])
    assert rouge.compute_rouge("", ["a summary"])["rouge-1"] == 0.0
