"""Untrusted texts, tables and numbers."""

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tools.fuzz_targets import FUZZ_TARGETS, run_target

from headtohead.config.tables import data as config_data
from headtohead.data import token_cache
from headtohead.data.sources import loading
from headtohead.errors import DataError, suggest

from .odd import spoiled, tried

KINDS = ("text", "tsv", "csv", "jsonl", "documents", "prompts", "scores", "design")


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_file_is_read(scratch, kind):
    assert run_target(kind, FUZZ_TARGETS[kind].build_seeds(scratch)[0], scratch) is None


@pytest.mark.parametrize("kind", KINDS)
@tried
@given(data=st.data())
def test_a_corrupted_file_is_read_or_rejected_with_a_message(scratch, kind, data):
    sound = data.draw(st.sampled_from(FUZZ_TARGETS[kind].build_seeds(scratch)))
    run_target(kind, data.draw(spoiled(sound) | st.binary(max_size=60)), scratch)


ROWS = b"".join(b"%d\tthe people %d\n" % (at % 2, at) for at in range(12))


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("csv", b",,,\n,\n", "has only empty cells"),
        ("prompts", b"{", "is not JSON"),
        ("jsonl", b'{"text": ' + b"[" * 5_000, "nested too deep"),
        ("jsonl", b'{"text": "x", "label": ' + b"9" * 5_000 + b"}", "4300 digits"),
        ("jsonl", b'{"text": "x", "label": "\\ud800"}', "expected a string or integer"),
        ("jsonl", b'{"a": 1}\n' * 20_000, "and 19990 more"),
        ("documents", b'{"document": "\\ud800", "summary": "x"}', "contains a lone surrogate"),
        ("text", b"\xff\xfe " * 50_000, "is not UTF-8"),
        ("design", b"[" * 5_000, "nested too deep"),
        ("design", b"[[" + b"9" * 5_000 + b"]]", "digits"),
        ("scores", b"variant,seed,score\na,0," + b"9" * 200_000, "field limit"),
        ("scores", b"variant,seed,loss\na,1e308,1\nb,1e308,2\n", "is not an integer"),
    ],
)
def test_what_was_found_once_stays_rejected(scratch, kind, data, said):
    assert said in str(run_target(kind, data, scratch))


def test_labels_that_only_look_like_numbers_are_words(scratch):
    """`--5` raised a ValueError, and so did a number of 5,000 digits."""
    rows = "".join(f"{'--5' if at % 2 else '9' * 5_000}\tthe people {at}\n" for at in range(12))
    assert run_target("tsv", ("label\ttext\n" + rows).encode(), scratch) is None


def test_more_labels_than_a_classifier_has_are_rejected(scratch):
    rows = "".join(f"label {at}\ttext {at}\n" for at in range(12_000))
    assert "different labels" in str(run_target("tsv", ("label\ttext\n" + rows).encode(), scratch))


@pytest.mark.parametrize("place", ["/dev/zero", "pipe"])
def test_a_source_that_never_ends_is_not_started(tmp_path, place):
    if place == "pipe":
        place = str(tmp_path / "pipe.txt")
        os.mkfifo(place)
    data = config_data.DataConfig.model_validate({"source": place})
    with pytest.raises(DataError, match="neither a regular file nor a folder"):
        token_cache.load_tokenized_corpus(data, has_labels=False)


def test_a_parquet_file_that_unpacks_to_a_flood_is_rejected(tmp_path):
    """One value repeated two million times takes only a few thousand bytes on disk."""
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import parquet

    path = tmp_path / "train.parquet"
    text = arrow.DictionaryArray.from_arrays(arrow.array([0] * 200_000, arrow.int32()), arrow.array(["x" * 1_000]))
    parquet.write_table(arrow.table({"text": text}), path)
    assert path.stat().st_size < 30_000
    with pytest.raises(DataError, match="decompresses to more than 100 times its size"):
        loading.load_corpus(config_data.DataConfig.model_validate({"source": str(path)}), has_labels=False)


def test_nearest_does_not_compare_what_nobody_typed():
    long = "ab" * 50_000
    assert suggest(long, [long + "a"]) is None
    assert suggest("widht", [long, "width"]) == "width"


def test_words_of_one_character_are_cut_in_time_that_their_number_explains(scratch):
    import time

    for character in "`'\".,:;-)(“’ \t":
        began = time.process_time()
        run_target("text", (character * 20_000 + "\nthe people\nask for\npeace and\nwork").encode(), scratch)
        assert time.process_time() - began < 5, character


def test_a_reply_is_valid_json_even_if_a_name_is_odd(scratch):
    error = run_target("jsonl", json.dumps({"\ud800": 1}).encode(), scratch)
    assert "\\ud800" in str(error)
