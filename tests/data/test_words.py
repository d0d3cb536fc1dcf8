"""Word tokenization equals `word_tokenize` of NLTK."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tokenize import NLTKWordTokenizer

from headtohead.data.tokenization.treebank import build_decoder, build_normalizer

NORMALIZER = build_normalizer(lowercase=False)
NLTK = NLTKWordTokenizer()


def split_into_words(text: str) -> list[str]:
    return NORMALIZER.normalize_str(text).split()


PIECES = st.sampled_from(
    """We don't know . , ? ! it's they're I'd can't won't cannot gonna Wanna gotta lemme 'tis 1,000 $5 5% 3.14 a:b 12:30
    "quoted" (aside) [Applause] {x} <y> well-known -- -and... ... ; # @ & * 'single' workers' Bush's you'll we've
    “curly” ‘so’ don’t «a» `` '' end. U.S. forces Mr.Smith x,y e-mail O'Neil 'em rock'n'roll""".split()
)


@given(st.lists(PIECES, min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_pieces_are_cut_as_nltk_cuts_them(pieces: list[str]) -> None:
    # NLTK's rules know one period that ends a sentence, the last; ends inside are for the tests below.
    text = " ".join(piece.rstrip(".") or "so" for piece in pieces) + " done."
    assert split_into_words(text) == NLTK.tokenize(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I don't.", "I do n't ."),
        ("We're here; it's Bush's.", "We 're here ; it 's Bush 's ."),
        ('He said "go" -- twice.', "He said `` go '' -- twice ."),
        ("It costs $5, or 1,000%.", "It costs $ 5 , or 1,000 % ."),
        ("the world—our world", "the world—our world"),
        ("I’m here", "I ’ m here"),
        ("One ended. Another did too.", "One ended . Another did too ."),
        ('He went home." Then he slept.', "He went home . '' Then he slept ."),
        ("Mr. Smith met Dr. Jones.", "Mr. Smith met Dr. Jones ."),
        ("George H. W. Bush of the U.S. Senate", "George H. W. Bush of the U.S. Senate"),
        ("in the U.S.", "in the U.S."),
        ("He is taller than I. We know.", "He is taller than I . We know ."),
        ("thou forget'st. Go", "thou forget'st . Go"),
        ("that’s all. So it’s.", "that ’ s all . So it ’ s ."),
        ("wait... what", "wait ... what"),
        ("a\u00a0hard\nspace", "a hard space"),
    ],
)
def test_sentence_is_cut_into(text: str, words: str) -> None:
    assert split_into_words(text) == words.split()


def test_lowered_text_is_cut_like_any_other() -> None:
    small = build_normalizer(lowercase=True)
    assert small.normalize_str("Mr. Smith DIDN'T.").split() == "mr. smith did n't .".split()
    # A cut before the very first character made the library panic when capitals were lowered after it.
    assert small.normalize_str("[Laughter] Yes.").split() == "[ laughter ] yes .".split()


@pytest.mark.parametrize(
    "text",
    [
        "He said \"we don't know\" -- not now, not ever (he's sure).",
        "It costs $5, or 10%; that’s what they’re “saying”.",
        "We cannot go, and we're gonna say so: the workers' rights!",
        "Mr. Smith of the U.S. Senate [Applause] paid 1,000 at 12:30.",
    ],
)
def test_words_are_joined_as_they_were_written(text: str) -> None:
    assert build_decoder().decode(split_into_words(text)) == text
