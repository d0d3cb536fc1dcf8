"""ROUGE is rouge-score's own, sentences are split without a download, and copying is counted."""

import random

import pytest

from headtohead.errors import RequestError
from headtohead.text_metrics import rouge

scoring = pytest.importorskip("rouge_score.rouge_scorer")
WORDS = "the a cat cats sat sitting on mat house houses ran running quickly and but Dr. #Person1# 3:30".split()


def _text(draw: random.Random) -> str:
    said = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))).capitalize() + draw.choice(".!?") for _ in range(3)]
    return " ".join(said[: draw.randint(1, 3)])


@pytest.mark.parametrize("stemmer", [True, False])
def test_a_thousand_pairs_have_rouge_scores_own_output(stemmer):
    draw = random.Random(0)
    scorer = scoring.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=stemmer)
    for _ in range(1000 if stemmer else 100):
        text, reference = _text(draw), _text(draw)
        theirs = scorer.score("\n".join(rouge.split_sentences(reference)), "\n".join(rouge.split_sentences(text)))
        ours = rouge.compute_rouge(text, [reference], use_stemmer=stemmer)
        assert ours == {name: theirs[key].fmeasure for name, key in rouge.ROUGE_TYPES.items()}


def test_of_several_references_the_best_counts_as_in_score_multi_or_their_mean():
    draw = random.Random(1)
    scorer = scoring.RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    for _ in range(100):
        text, references = _text(draw), [_text(draw) for _ in range(3)]
        split = ["\n".join(rouge.split_sentences(one)) for one in references]
        theirs = scorer.score_multi(split, "\n".join(rouge.split_sentences(text)))
        assert rouge.compute_rouge(text, references) == {
            name: theirs[key].fmeasure for name, key in rouge.ROUGE_TYPES.items()
        }
        each = [rouge.compute_rouge(text, [one]) for one in references]
        mean = rouge.compute_rouge(text, references, reference_aggregation="mean")
        assert mean["rouge-1"] == pytest.approx(sum(one["rouge-1"] for one in each) / 3)


def test_real_summaries_have_rouge_scores_own_output(shared):
    from headtohead.data.sources.documents import load_summarization_corpus

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


def test_sentences_matter_for_lsum_alone():
    reference = "The cat sat. The dog ran."
    turned, same = "The dog ran. The cat sat.", rouge.compute_rouge(reference, [reference])
    found = rouge.compute_rouge(turned, [reference])
    assert set(same.values()) == {1.0}
    assert found["rouge-lsum"] == 1.0
    assert found["rouge-l"] < 1.0


@pytest.mark.parametrize(
    ("text", "wanted"),
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
def test_sentences(text, wanted):
    assert rouge.split_sentences(text) == wanted


def test_the_signature_tells_all_that_a_figure_depends_on():
    assert rouge.format_signature() == "f-measure|stemmer:porter|sentences:h2h-1|references:best|rouge-score:0.1.2"
    assert rouge.format_signature(use_stemmer=False, reference_aggregation="mean") != rouge.format_signature()


def test_copying_counts_ngrams_that_stand_in_the_document():
    document = "The quick brown fox jumps over the lazy dog."
    assert rouge.compute_copied_ngrams("the quick brown cat", document, 2).value == pytest.approx(2 / 3)
    assert rouge.compute_copied_ngrams("over the lazy dog", document, 4).value == 1.0
    assert rouge.compute_copied_ngrams("short", document, 2).value is None


def test_no_reference_is_said():
    with pytest.raises(RequestError, match="at least one reference"):
        rouge.compute_rouge("text", [])
    assert rouge.compute_rouge("", ["a summary"])["rouge-1"] == 0.0
