"""Tokenizers: tokenizer.json alone reproduces them, and options are held against signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headtohead.config.data import DataConfig
from headtohead.config.validation.component_options import validate_component
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenizers import TOKENIZER_BUILDERS, CorpusTokenizer, train_tokenizer
from headtohead.errors import DataError, ValidationIssue

ROWS = ("We don't know.", "We know it, and they know it.", "Naïve café — “so”?")
CHOICES: dict[str, str | dict[str, object]] = {
    "words": "words",
    "characters": "characters",
    "bytes": "bytes",
    "bpe": {"kind": "bpe", "vocab_size": 300},
}


def corpus(rows: tuple[str, ...] = ROWS, task: str = "language-model") -> Corpus:
    return Corpus(task == "classify", {"train": Split("train", "train", rows)}, (), rows, "here", "")


def made(tokens: str | dict[str, object], texts: tuple[str, ...] = ROWS, **data: object) -> CorpusTokenizer:
    return train_tokenizer(DataConfig.model_validate({"tokenizer": tokens, **data}), corpus(texts))


@cache
def known(kind: str) -> CorpusTokenizer:
    return made(CHOICES[kind])


@pytest.mark.parametrize("kind", CHOICES)
def test_saved_file_gives_the_same_tokenizer(kind: str, tmp_path: Path) -> None:
    one = made(CHOICES[kind])
    path = one.save(tmp_path)
    texts = [*ROWS, "words never seen: zebra \U0001f600"]
    other = CorpusTokenizer.load(tmp_path)
    assert path.name == "tokenizer.json"
    assert other == one
    assert other.kind == one.kind == kind
    assert other.encode_batch(texts) == one.encode_batch(texts)
    # The library itself, without a line of ours, reads the same from the file.
    library = tokenizers.Tokenizer.from_file(str(path))
    assert [library.encode(text, add_special_tokens=False).ids for text in texts] == one.encode_batch(texts)


@pytest.mark.parametrize("kind", CHOICES)
def test_training_twice_gives_the_same_tokenizer(kind: str) -> None:
    assert made(CHOICES[kind]) == made(CHOICES[kind])


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@given(text=st.text(max_size=40))
@settings(max_examples=50, deadline=None)
def test_any_text_survives_bytes_and_bpe(kind: str, text: str) -> None:
    assert known(kind).decode(known(kind).encode(text)) == text
    assert known(kind).unk_id is None


@given(text=st.text(alphabet=[*sorted(set("".join(ROWS))), "\n"], max_size=40))
@settings(max_examples=50, deadline=None)
def test_text_of_known_characters_survives_characters(text: str) -> None:
    assert known("characters").decode(known("characters").encode(text)) == text


def test_unseen_words_and_characters_are_unknown() -> None:
    for kind in ("words", "characters"):
        tokenizer = made(kind)
        assert tokenizer.encode("We Ω")[-1] == tokenizer.unk_id


def test_words_have_two_specials_and_the_most_frequent_first() -> None:
    tokenizer = made("words")
    assert [tokenizer.id_to_token(i) for i in range(4)] == ["<pad>", "<unk>", "know", "."]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, None, None)


def test_sentences_and_the_option_ends_add_start_and_stop() -> None:
    plain = made("words")
    for tokenizer in (made("words", rows="sentences"), made({"kind": "words", "add_bos_eos": True})):
        assert (tokenizer.bos_id, tokenizer.eos_id) == (2, 3)
        assert tokenizer.vocab_size == plain.vocab_size + 2


@pytest.mark.parametrize("kind", CHOICES)
def test_a_text_that_spells_a_special_token_is_not_one(kind: str) -> None:
    tokenizer = made(CHOICES[kind], (*ROWS, *["<pad> <s>"] * 50), rows="sentences")
    specials = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    assert not specials & set(tokenizer.encode("<pad> <s> </s>"))


def test_min_count_and_size_leave_out_rare_words() -> None:
    often = made({"kind": "words", "min_count": 2})
    assert {often.id_to_token(i) for i in range(2, often.vocab_size)} == {"know", "We", "it", "."}
    assert made({"kind": "words", "vocab_size": 3}).vocab_size == 3


def test_lower_case_words_are_one() -> None:
    tokenizer = made({"kind": "words", "lowercase": True})
    assert tokenizer.encode("WE") == tokenizer.encode("we") != [tokenizer.unk_id]


def test_bpe_learns_from_the_vocabulary_rows_up_to_its_size() -> None:
    tokenizer = made({"kind": "bpe", "vocab_size": 280}, ("the cat the dog " * 20,))
    assert tokenizer.vocab_size <= 280
    assert len(tokenizer.encode("the")) == 1
    assert len(tokenizer.encode("qzx")) == 3


def test_characters_of_a_stream_know_the_line_end() -> None:
    assert made("characters").unk_id not in made("characters").encode("\n")


def test_decode_leaves_out_padding_start_and_stop() -> None:
    tokenizer = made("words", rows="sentences")
    ids = [2, *tokenizer.encode("We don't know."), 3, 0, 0]
    assert tokenizer.decode(ids) == "We don't know."


def test_file_is_taken_as_it_is(tmp_path: Path) -> None:
    one = made("words")
    one.save(tmp_path)
    data = DataConfig.model_validate({"tokenizer": {"kind": "file", "path": "tokenizer.json"}})
    assert train_tokenizer(data, corpus(("other text",)), base_folder=tmp_path) == one


def test_a_foreign_file_gives_its_own_special_tokens(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]")
    foreign = tokenizers.Tokenizer(model)
    foreign.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    foreign.save(str(tmp_path / "tokenizer.json"))
    loaded = CorpusTokenizer.load(tmp_path)
    assert (loaded.kind, loaded.pad_id, loaded.unk_id, loaded.bos_id) == ("file", 0, 1, None)


def test_a_file_that_is_no_tokenizer_is_refused(write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"tokenizer.json: 1 error\n  file: is no tokenizer"):
        CorpusTokenizer.load(write("tokenizer.json", "{}"))
    with pytest.raises(DataError, match=r"tokenizer.jsn: no such file.*did you mean 'tokenizer.json'"):
        CorpusTokenizer.load(write("tokenizer.json", "{}").with_name("tokenizer.jsn"))


def check_choice(choice: object) -> list[ValidationIssue]:
    return validate_component(choice, TOKENIZER_BUILDERS, "tokenizer", "data.tokenizer")


@pytest.mark.parametrize(
    ("choice", "fault"),
    [
        (
            {"kind": "word"},
            r"data.tokenizer: unknown tokenizer 'word'\n    did you mean 'words'\?\n    allowed: words, char",
        ),
        (
            {"kind": "bpe", "vocabsize": 9},
            r"vocabsize: bpe has no option 'vocabsize'\n    did you mean 'vocab_size'\?\n    allowed: vocab_size",
        ),
        ({"kind": "bpe", "vocab_size": "9"}, r"data.tokenizer.vocab_size: must be a whole number, not '9'"),
        ({"kind": "bpe", "vocab_size": 100}, r"data.tokenizer.vocab_size: must be at least 260, not 100"),
        ({"kind": "words", "min_count": True}, r"data.tokenizer.min_count: must be a whole number, not True"),
        ({"kind": "words", "lowercase": 1}, r"data.tokenizer.lowercase: must be true or false, not 1"),
        ({"kind": "file"}, r"data.tokenizer: file requires the option 'path' \(text\)"),
    ],
)
def test_a_wrong_choice_is_told_with_what_is_allowed(choice: dict[str, object], fault: str) -> None:
    faults = check_choice(choice)
    assert len(faults) == 1
    with pytest.raises(DataError, match=fault.replace(r"\n    ", r"\n      ")):
        made(choice)


def test_all_faults_of_a_choice_come_at_once() -> None:
    assert len(check_choice({"kind": "words", "a": 1, "size": 0, "ends": "no"})) == 3


@pytest.mark.parametrize("kind", CHOICES)
def test_a_good_choice_has_no_faults(kind: str) -> None:
    assert check_choice(CHOICES[kind]) == []


def test_a_number_outside_the_vocabulary_has_no_token() -> None:
    with pytest.raises(IndexError, match="no token 999 in a vocabulary of"):
        made("words").id_to_token(999)
