"""Tokenizers: tokenizer.json alone reproduces them, and options are validated against signatures."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from headtohead.config.tables.data import DataConfig
from headtohead.config.validation.component_options import validate_component
from headtohead.data.splits import Corpus, Split
from headtohead.data.tokenization.tokenizers import TOKENIZER_BUILDERS, CorpusTokenizer, train_tokenizer
from headtohead.errors import DataError, ValidationIssue

ROWS = ("We don't know.", "We know it, and they know it.", "Naïve café — “so”?")
TOKENIZER_CONFIGS: dict[str, str | dict[str, object]] = {
    "words": "words",
    "characters": "characters",
    "bytes": "bytes",
    "bpe": {"kind": "bpe", "vocab_size": 300},
}


def build_corpus(rows: tuple[str, ...] = ROWS, task: str = "language-model") -> Corpus:
    return Corpus(task == "classify", {"train": Split("train", "train", rows)}, (), rows, "here", "")


def build_tokenizer(
    config: str | dict[str, object], corpus_rows: tuple[str, ...] = ROWS, **data: object
) -> CorpusTokenizer:
    return train_tokenizer(DataConfig.model_validate({"tokenizer": config, **data}), build_corpus(corpus_rows))


@cache
def build_cached_tokenizer(kind: str) -> CorpusTokenizer:
    return build_tokenizer(TOKENIZER_CONFIGS[kind])


@pytest.mark.parametrize("kind", TOKENIZER_CONFIGS)
def test_saved_file_gives_the_same_tokenizer(kind: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(TOKENIZER_CONFIGS[kind])
    path = tokenizer.save(tmp_path)
    texts = [*ROWS, "words never seen: zebra \U0001f600"]
    loaded = CorpusTokenizer.load(tmp_path)
    assert path.name == "tokenizer.json"
    assert loaded == tokenizer
    assert loaded.kind == tokenizer.kind == kind
    assert loaded.encode_batch(texts) == tokenizer.encode_batch(texts)
    # The library itself, without a line of ours, reads the same from the file.
    library = tokenizers.Tokenizer.from_file(str(path))
    assert [library.encode(text, add_special_tokens=False).ids for text in texts] == tokenizer.encode_batch(texts)


@pytest.mark.parametrize("kind", TOKENIZER_CONFIGS)
def test_training_twice_gives_the_same_tokenizer(kind: str) -> None:
    assert build_tokenizer(TOKENIZER_CONFIGS[kind]) == build_tokenizer(TOKENIZER_CONFIGS[kind])


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
@given(text=st.text(max_size=40))
@settings(max_examples=50, deadline=None)
def test_any_text_survives_bytes_and_bpe(kind: str, text: str) -> None:
    assert build_cached_tokenizer(kind).decode(build_cached_tokenizer(kind).encode(text)) == text
    assert build_cached_tokenizer(kind).unk_id is None


@given(text=st.text(alphabet=[*sorted(set("".join(ROWS))), "\n"], max_size=40))
@settings(max_examples=50, deadline=None)
def test_text_of_known_characters_survives_characters(text: str) -> None:
    assert build_cached_tokenizer("characters").decode(build_cached_tokenizer("characters").encode(text)) == text


def test_unseen_words_and_characters_are_unknown() -> None:
    for kind in ("words", "characters"):
        tokenizer = build_tokenizer(kind)
        assert tokenizer.encode("We Ω")[-1] == tokenizer.unk_id


def test_words_have_two_specials_and_the_most_frequent_first() -> None:
    tokenizer = build_tokenizer("words")
    assert [tokenizer.id_to_token(i) for i in range(4)] == ["<pad>", "<unk>", "know", "."]
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.bos_id, tokenizer.eos_id) == (0, 1, None, None)


def test_sentences_and_the_option_ends_add_start_and_stop() -> None:
    plain = build_tokenizer("words")
    for tokenizer in (
        build_tokenizer("words", rows="sentences"),
        build_tokenizer({"kind": "words", "add_bos_eos": True}),
    ):
        assert (tokenizer.bos_id, tokenizer.eos_id) == (2, 3)
        assert tokenizer.vocab_size == plain.vocab_size + 2


@pytest.mark.parametrize("kind", TOKENIZER_CONFIGS)
def test_a_text_that_spells_a_special_token_is_not_one(kind: str) -> None:
    tokenizer = build_tokenizer(TOKENIZER_CONFIGS[kind], (*ROWS, *["<pad> <s>"] * 50), rows="sentences")
    specials = {tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id}
    assert not specials & set(tokenizer.encode("<pad> <s> </s>"))


def test_min_count_and_size_leave_out_rare_words() -> None:
    tokenizer = build_tokenizer({"kind": "words", "min_count": 2})
    assert {tokenizer.id_to_token(i) for i in range(2, tokenizer.vocab_size)} == {"know", "We", "it", "."}
    assert build_tokenizer({"kind": "words", "vocab_size": 3}).vocab_size == 3


def test_lower_case_words_are_one() -> None:
    tokenizer = build_tokenizer({"kind": "words", "lowercase": True})
    assert tokenizer.encode("WE") == tokenizer.encode("we") != [tokenizer.unk_id]


def test_bpe_learns_from_the_vocabulary_rows_up_to_its_size() -> None:
    tokenizer = build_tokenizer({"kind": "bpe", "vocab_size": 280}, ("the cat the dog " * 20,))
    assert tokenizer.vocab_size <= 280
    assert len(tokenizer.encode("the")) == 1
    assert len(tokenizer.encode("qzx")) == 3


def test_characters_of_a_stream_know_the_line_end() -> None:
    assert build_tokenizer("characters").unk_id not in build_tokenizer("characters").encode("\n")


def test_decode_leaves_out_padding_start_and_stop() -> None:
    tokenizer = build_tokenizer("words", rows="sentences")
    ids = [2, *tokenizer.encode("We don't know."), 3, 0, 0]
    assert tokenizer.decode(ids) == "We don't know."


def test_file_is_taken_as_it_is(tmp_path: Path) -> None:
    tokenizer = build_tokenizer("words")
    tokenizer.save(tmp_path)
    data = DataConfig.model_validate({"tokenizer": {"kind": "file", "path": "tokenizer.json"}})
    assert train_tokenizer(data, build_corpus(("other text",)), base_folder=tmp_path) == tokenizer


def test_a_foreign_file_gives_its_own_special_tokens(tmp_path: Path) -> None:
    model = tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1, "a": 2}, unk_token="[UNK]")
    foreign = tokenizers.Tokenizer(model)
    foreign.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    foreign.save(str(tmp_path / "tokenizer.json"))
    loaded = CorpusTokenizer.load(tmp_path)
    assert (loaded.kind, loaded.pad_id, loaded.unk_id, loaded.bos_id) == ("file", 0, 1, None)


def test_a_file_that_is_no_tokenizer_is_rejected(write: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"tokenizer.json: 1 error\n  file: is no tokenizer"):
        CorpusTokenizer.load(write("tokenizer.json", "{}"))
    with pytest.raises(DataError, match=r"tokenizer.jsn: no such file.*did you mean 'tokenizer.json'"):
        CorpusTokenizer.load(write("tokenizer.json", "{}").with_name("tokenizer.jsn"))


def find_issues(choice: object) -> list[ValidationIssue]:
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
def test_a_wrong_choice_is_reported_with_what_is_allowed(choice: dict[str, object], fault: str) -> None:
    issues = find_issues(choice)
    assert len(issues) == 1
    with pytest.raises(DataError, match=fault.replace(r"\n    ", r"\n      ")):
        build_tokenizer(choice)


def test_all_faults_of_a_choice_come_at_once() -> None:
    assert len(find_issues({"kind": "words", "a": 1, "size": 0, "ends": "no"})) == 3


@pytest.mark.parametrize("kind", TOKENIZER_CONFIGS)
def test_a_good_choice_has_no_faults(kind: str) -> None:
    assert find_issues(TOKENIZER_CONFIGS[kind]) == []


def test_a_number_outside_the_vocabulary_has_no_token() -> None:
    with pytest.raises(IndexError, match="no token 999 in a vocabulary of"):
        build_tokenizer("words").id_to_token(999)
