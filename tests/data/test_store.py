"""The token store: what is mapped from disk is what would have been made in memory, to the bit; kills, damage and a
second process cost time and nothing else."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from headtohead.atomic_io import get_cache_folder, read_json, read_jsonl
from headtohead.config import loading as config_loading
from headtohead.config.data import DataConfig
from headtohead.config.tasks import Target
from headtohead.config.training import TrainingConfig
from headtohead.data import token_cache, token_shards
from headtohead.data.batches import BatchSchedule
from headtohead.data.encoding import TokenRows, TokenStream, count_tokens
from headtohead.data.examples import build_evaluation_examples
from headtohead.data.sources import streaming
from headtohead.data.sources.loading import load_corpus
from headtohead.data.text_store import DiskTextRows, write_text_rows
from headtohead.data.token_cache import TokenizedCorpus, load_tokenized_corpus
from headtohead.errors import DataError
from headtohead.experiment import loading
from headtohead.progress import ProgressUpdate
from headtohead.tasks import registry
from headtohead.trials import trial

WORDS = "peace people law work nation war bank union state congress année Łódź don't can't (half) U.S. “so”".split()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return get_cache_folder("corpora")


def rows(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 12))) + "." for _ in range(count)]


def lines(count: int, seed: int = 0) -> str:
    return "\n".join(rows(count, seed)) + "\n"


def paragraphs(count: int) -> str:
    made = rows(count)
    return "".join(f"{row}  \n{'' if at % 3 else chr(10)}" for at, row in enumerate(made)) + "\n\n"


def same(one: TokenizedCorpus, other: TokenizedCorpus) -> None:
    """Corpus, tokenizer and tokens."""
    assert (one.corpus.digest, one.corpus.origin) == (other.corpus.digest, other.corpus.origin)
    assert list(one.corpus.splits) == list(other.corpus.splits)
    assert list(one.corpus.vocabulary_rows) == list(other.corpus.vocabulary_rows)
    assert one.corpus.label_names == other.corpus.label_names
    assert one.tokenizer == other.tokenizer
    for name, split in one.corpus.splits.items():
        twin = other.corpus.splits[name]
        assert list(split.rows) == list(twin.rows)
        assert (split.role, split.labels, split.separator) == (twin.role, twin.labels, twin.separator)
        mine, theirs = one.encoded[name], other.encoded[name]
        assert type(mine) is type(theirs)
        assert torch.equal(mine.tokens.long(), theirs.tokens.long())
        vocab = one.tokenizer.vocab_size
        assert torch.equal(count_tokens(mine, vocab), count_tokens(theirs, vocab))
        if isinstance(mine, TokenRows) and isinstance(theirs, TokenRows):
            assert torch.equal(mine.offsets, theirs.offsets)
            assert (mine.labels is None) == (theirs.labels is None)
            assert mine.labels is None or torch.equal(mine.labels, theirs.labels)  # type: ignore[arg-type]


CASES: dict[str, dict[str, Any]] = {
    "words": {},
    "sentences": {"rows": "sentences"},
    "bpe": {"tokenizer": {"kind": "bpe", "vocab_size": 300}},
    "characters": {"tokenizer": "characters", "validation_fraction": 0.0},
    "bytes": {"tokenizer": "bytes", "test_rows": 5},
    "row limits": {"train_rows": 60, "validation_rows": 7, "test_rows": 12},
}


@pytest.mark.parametrize("large_from", [0, 2**25], ids=["on disk at once", "through memory"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("text", [lines(300), paragraphs(300)], ids=["lines", "paragraphs"])
def test_the_store_holds_what_would_be_made_in_memory(
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    text: str,
    large_from: int,
) -> None:
    monkeypatch.setattr("headtohead.data.sources.readers.STREAMING_THRESHOLD_BYTES", large_from)
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    path = write("text/train.txt", text.replace("\n", "\r\n").encode("utf-8-sig"))
    data = DataConfig.model_validate({"source": str(path.parent), **CASES[case]})
    made = load_tokenized_corpus(data, has_labels=False)
    monkeypatch.setattr("headtohead.data.sources.readers.STREAMING_THRESHOLD_BYTES", 2**25)
    twin = token_cache.tokenize_in_memory(data, has_labels=False)
    same(made, twin)
    same(load_tokenized_corpus(data, has_labels=False), twin)
    assert isinstance(made.corpus.train.rows, DiskTextRows)
    assert made.encoded["train"].tokens.dtype == torch.uint16


def test_files_of_their_own_and_the_default_corpus(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headtohead.data.sources.readers.STREAMING_THRESHOLD_BYTES", 2000)
    write("text/validation.txt", lines(20, 1))
    write("text/test_a.txt", lines(200, 2))
    path = write("text/train.txt", lines(300))
    data = DataConfig(source=str(path.parent), test_rows=30, validation_rows=9)
    made = load_tokenized_corpus(data, has_labels=False)
    assert [len(made.corpus.splits[name].rows) for name in ("validation", "a")] == [9, 30]
    monkeypatch.undo()
    same(made, token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.mark.parametrize("vocabulary", ["train", "folder"])
def test_a_classifier_finds_its_labels(write: Callable[..., Path], vocabulary: str) -> None:
    write("rows/train_LM.txt", lines(20, 3))
    write("rows/test_CLS.tsv", "\n".join(f"{i % 3}\t{row}" for i, row in enumerate(rows(20, 1))))
    path = write("rows/train_CLS.tsv", "\n".join(f"{i % 3}\t{row}" for i, row in enumerate(rows(90))))
    data = DataConfig.model_validate({"source": str(path.parent), "vocabulary": vocabulary})
    load_tokenized_corpus(data, has_labels=True)
    same(load_tokenized_corpus(data, has_labels=True), token_cache.tokenize_in_memory(data, has_labels=True))


def test_more_than_65536_entries_take_four_bytes(write: Callable[..., Path], tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    path = write("text/train.txt", "\n".join(f"w{i} w{69_999 - i}" for i in range(200)))
    tokens = {"kind": "file", "path": str(tmp_path / "tokenizer.json")}
    data = DataConfig.model_validate({"source": str(path.parent), "tokenizer": tokens})
    made = load_tokenized_corpus(data, has_labels=False)
    assert made.encoded["train"].tokens.dtype == torch.uint32
    assert int(made.encoded["train"].tokens.long().max()) > 2**16
    same(made, token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.mark.parametrize("form", ["stream", "sentences"])
def test_batches_and_examples_are_equal_to_the_bit(write: Callable[..., Path], form: str) -> None:
    path = write("train.txt", lines(400))
    data = DataConfig.model_validate(
        {"source": str(path), "rows": form, "word_dropout": 0.1, "rare_words": {"unknown_input": 0.5}}
    )
    mine, theirs = load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False)
    for sampling in ("random", "shuffled"):
        training = TrainingConfig.model_validate({"batch_size": 4, "sampling": sampling})
        one, other = (
            BatchSchedule(at.encoded["train"], Target.NEXT_TOKEN, training, data, 8, 3, at.tokenizer)
            for at in (mine, theirs)
        )
        assert one.digest(50) == other.digest(50)
        for step in range(50):
            assert torch.equal(one.batch(step).input_ids, other.batch(step).input_ids)
            assert torch.equal(one.batch(step).labels, other.batch(step).labels)
    for stride_to in (1, 7, 10**6):
        both = [
            build_evaluation_examples(at.encoded["test"], Target.NEXT_TOKEN, 8, at.tokenizer)
            .sample(stride_to)
            .batches(4)
            for at in (mine, theirs)
        ]
        for a, b in zip(*both, strict=True):
            assert torch.equal(a.input_ids, b.input_ids) and torch.equal(a.labels, b.labels)
            assert a.input_ids.dtype == torch.int64


def test_a_sample_of_examples_is_every_so_many_batches() -> None:
    """Those that are left out are not made at all: each would be read from the disk."""
    stream = TokenStream("train", torch.arange(1000))
    data = DataConfig()
    tokenizer = token_cache.tokenize_in_memory(data, has_labels=False).tokenizer
    for context in (7, 9, 10):
        every = list(build_evaluation_examples(stream, Target.NEXT_TOKEN, context, tokenizer).batches(4))
        for limit in (3, 10, 40):
            sample = build_evaluation_examples(stream, Target.NEXT_TOKEN, context, tokenizer).sample(limit)
            picked = every[:: sample.stride]
            found = list(sample.batches(4))
            assert [b.input_ids.tolist() for b in found] == [b.input_ids.tolist() for b in picked]


def test_tokens_are_mapped_and_not_read(write: Callable[..., Path]) -> None:
    path = write("train.txt", lines(300))
    data = DataConfig(source=str(path))
    load_tokenized_corpus(data, has_labels=False)
    tokens = load_tokenized_corpus(data, has_labels=False).encoded["train"].tokens
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "split0.tokens" in line]
    addresses = [int(part, 16) for line in mapped for part in line.split()[0].split("-")]
    assert mapped and min(addresses) <= tokens.data_ptr() < max(addresses)


CHILD = """
import os, signal, sys
from headtohead.config.data import DataConfig
from headtohead.data import token_cache, token_shards
token_shards.SHARD_BYTES = 1000
left, real = int(sys.argv[2]), token_shards.append_jsonl
def dying(path, line):
    global left
    left -= 1
    if left < 0:
        path.open("ab").write(b'{"rows": 1')
        os.kill(os.getpid(), signal.SIGKILL)
    real(path, line)
token_shards.append_jsonl = dying
token_cache.load_tokenized_corpus(DataConfig(source=sys.argv[1], rows=sys.argv[3]), has_labels=False)
"""


@pytest.mark.parametrize("form", ["stream", "sentences"])
def test_a_kill_loses_only_the_shards_on_their_way(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = write("train.txt", lines(400))
    killed = subprocess.run([sys.executable, "-c", CHILD, str(path), "7", form], check=False)
    assert killed.returncode == -signal.SIGKILL
    (folder,) = cache.iterdir()
    assert not (folder / "manifest.json").exists()
    before = [json.loads(line) for line in (folder / "split0.jsonl").read_text().splitlines()[:-1]]
    assert len(before) == 7
    cut: list[tuple[str, int]] = []
    plain = token_shards.SplitTokenization.encode_shard
    monkeypatch.setattr(
        token_shards.SplitTokenization,
        "encode_shard",
        lambda self, a, b: (cut.append((self.name, a)), plain(self, a, b))[1],
    )
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    monkeypatch.setattr(
        "headtohead.data.sources.loading.load_corpus", lambda *a, **k: pytest.fail("texts were read again")
    )
    data = DataConfig.model_validate({"source": str(path), "rows": form})
    made = load_tokenized_corpus(data, has_labels=False)
    monkeypatch.undo()
    assert min(at for name, at in cut if name == "split0") == before[-1]["rows"]
    same(made, token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.mark.parametrize("form", ["stream", "sentences"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("suffix", ["tokens", "offsets"])
def test_what_a_kill_and_the_disk_lost_of_the_shards_is_encoded_again(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch, form: str, damage: str, suffix: str
) -> None:
    """Sizes and checksums of the shards are compared before the build continues behind them."""
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    path = write("train.txt", lines(4000))
    killed = subprocess.run([sys.executable, "-c", CHILD, str(path), "80", form], check=False)
    assert killed.returncode == -signal.SIGKILL
    (folder,) = cache.iterdir()
    file = folder / f"split0.{suffix}"
    if (form, suffix) == ("stream", "offsets"):
        file.unlink(missing_ok=True)
        file.write_bytes(bytes(10_000))  # a stream needs none
    content = bytearray(file.read_bytes())
    assert len(content) > 8192
    if damage == "cut":
        content = content[:-4096]
    else:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)
    data = DataConfig.model_validate({"source": str(path), "rows": form})
    same(load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False))


def test_a_tokenizer_that_a_kill_left_damaged_is_trained_again(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    path = write("train.txt", lines(400))
    subprocess.run([sys.executable, "-c", CHILD, str(path), "7", "stream"], check=False)
    (folder,) = cache.iterdir()
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b'"peace"', b'"peaxe"'))
    data = DataConfig(source=str(path))
    same(load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False))


def test_an_edit_with_the_old_time_of_a_large_source_is_noticed(write: Callable[..., Path]) -> None:
    path = write("train.txt", "\n".join(f"{number} peace law" for number in range(900_000)))
    content = path.read_bytes()
    assert len(content) > 15_000_000
    data = DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"})
    before, stat = token_cache.build_cache_key(data, False, Path()), path.stat()
    time.sleep(2.1)  # a checksum of a file that changed just now is not kept
    assert token_cache.build_cache_key(data, False, Path()) == before
    middle = content.index(b"peace", len(content) // 2 + 300_000)
    path.write_bytes(content[:middle] + b"p" * 5 + content[middle + 5 :])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size and path.stat().st_mtime_ns == stat.st_mtime_ns
    assert token_cache.build_cache_key(data, False, Path()) != before


def test_every_flipped_bit_of_a_large_file_in_the_cache_is_noticed(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", "\n".join(f"{number} peace law" for number in range(200_000)))
    data = DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"})
    load_tokenized_corpus(data, has_labels=False)
    (folder,) = cache.iterdir()
    time.sleep(2.1)
    assert token_cache._find_cache_error(folder) is None  # what is found out now may be kept
    draw, noticed = random.Random(0), 0
    for name in ["split0.tokens", "split0.text"] * 50:
        file = folder / name
        size = file.stat().st_size
        assert size > 2**20
        stat, position, bit = file.stat(), draw.randrange(size), 1 << draw.randrange(8)
        for _ in range(2):  # once to flip it, once to put it back
            with file.open("r+b") as opened:
                opened.seek(position)
                byte = opened.read(1)[0]
                opened.seek(position)
                opened.write(bytes([byte ^ bit]))
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            noticed += token_cache._find_cache_error(folder) == f"{name} has changed"
    assert noticed == 100


def test_the_deep_check_reads_what_an_unchanged_identity_hides(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may return other bytes without a write. Opening a folder does not notice it; `h2h doctor --deep` does."""
    path = write("train.txt", "\n".join(f"{number} peace law" for number in range(200_000)))
    data = DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"})
    monkeypatch.setattr(token_cache, "TIMESTAMP_NANOSECONDS", 0)
    load_tokenized_corpus(data, has_labels=False)
    (folder,) = cache.iterdir()
    assert token_cache.find_damaged_caches() == {folder: None}
    file = folder / "split0.tokens"
    identity = token_cache._identify_file(file)
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 4
    file.write_bytes(content)
    identify = token_cache._identify_file
    monkeypatch.setattr(token_cache, "_identify_file", lambda path: identity if path == file else identify(path))
    assert token_cache._find_cache_error(folder) is None
    assert token_cache.find_damaged_caches() == {folder: "split0.tokens has changed"}


def test_a_kill_while_texts_are_read_begins_anew(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", lines(100))
    data = DataConfig(source=str(path))
    folder = cache / token_cache._hash_json(token_cache.build_cache_key(data, False, Path()))[:24]
    folder.mkdir(parents=True)
    write_text_rows(folder, "split0", ["half of it"])
    same(load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "split0.tokens", "split1.counts", "split0.text"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damage_is_seen_and_said_and_made_good(
    write: Callable[..., Path], cache: Path, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    path = write("train.txt", lines(60))
    data = DataConfig(source=str(path))
    load_tokenized_corpus(data, has_labels=False)
    (folder,) = cache.iterdir()
    content = (folder / name).read_bytes()
    if damage == "gone":
        (folder / name).unlink()
    else:
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        (folder / name).write_bytes(content[:middle] if damage == "cut" else changed)
    capsys.readouterr()
    same(load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False))
    said = capsys.readouterr().err
    if (name, damage) != ("manifest.json", "gone"):
        assert "is corrupted" in said and "building it again" in said
    assert token_cache._find_cache_error(folder) is None


def test_another_text_another_setting_or_another_code_is_another_store(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("train.txt", lines(60))

    def count(data: DataConfig) -> int:
        load_tokenized_corpus(data, has_labels=False)
        return len(list(cache.iterdir()))

    data = DataConfig(source=str(path))
    assert count(data) == 1
    assert count(DataConfig(source=str(path), word_dropout=0.1)) == 1  # drawn at every step: the tokens are the same
    os.utime(path, (1, 1))
    assert count(data) == 1  # the same content
    assert count(DataConfig(source=str(path), validation_fraction=0.2)) == 2
    write("train.txt", lines(60, 9))
    assert count(data) == 3
    monkeypatch.setattr(token_cache, "_hash_source_code", lambda: "other")
    assert count(data) == 4


def test_two_processes_at_once_make_it_once(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", lines(600))
    code = (
        "import sys\nfrom headtohead.config.data import DataConfig\nfrom headtohead.data import token_cache\n"
        "real = token_cache._write_corpus_texts\n"
        "token_cache._write_corpus_texts = lambda *arguments: (print('written'), real(*arguments))[1]\n"
        "data = DataConfig(source=sys.argv[1])\n"
        "tokenized = token_cache.load_tokenized_corpus(data, has_labels=False)\n"
        "print(int(tokenized.encoded['train'].tokens.long().sum()))"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [one.communicate()[0].split() for one in both]
    assert sorted(len(words) for words in said) == [1, 2]
    assert said[0][-1] == said[1][-1]


def test_where_nothing_can_be_written_memory_does(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("train.txt", lines(60))

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(token_cache, "lock_cache_folder", refuse)
    data = DataConfig(source=str(path))
    same(load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False))
    assert not cache.exists()


def test_what_nobody_opens_is_removed(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", lines(60))
    load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    (old,) = cache.iterdir()
    load_tokenized_corpus(DataConfig(source=str(path), validation_fraction=0.2), has_labels=False)
    assert old.exists()
    long_ago = time.time() - (token_cache.MAX_UNUSED_DAYS + 1) * 86400
    os.utime(old / "manifest.json", (long_ago, long_ago))
    load_tokenized_corpus(DataConfig(source=str(path), validation_fraction=0.3), has_labels=False)
    assert not old.exists() and len(list(cache.iterdir())) == 2


def test_progress_is_told_with_the_time_that_is_left(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 2**18)
    monkeypatch.setattr("headtohead.data.sources.readers.STREAMING_THRESHOLD_BYTES", 0)
    many = [f"{i} law" for i in range(40_000)] + [f"{i}" + " peace" * 200 for i in range(2000)]
    path = write("train.txt", "\n".join(many))
    told: list[ProgressUpdate] = []
    load_tokenized_corpus(
        DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"}),
        has_labels=False,
        on_progress=told.append,
    )
    assert any(one.description.startswith("reading") and one.completed > 0 for one in told)
    cutting = [one for one in told if one.description == "tokenizing train, in MB"]
    assert cutting[-1].completed == cutting[-1].total > 1
    assert all(one.seconds_left is not None for one in cutting[1:])


def test_a_large_file_that_is_not_text_is_refused_with_places(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headtohead.data.sources.readers.STREAMING_THRESHOLD_BYTES", 0)
    path = write("train.txt", b"good\nbad \xff\xfe here\n\xc3\x28\n")
    with pytest.raises(DataError, match=r"2 errors\n  byte 9 \(line 2\): ff fe 20 68 is not UTF-8"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    path = write("train.txt", b" \n\n \n")
    with pytest.raises(DataError, match="is empty; expected text"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    path = write("train.txt", b"one row alone\n")
    with pytest.raises(DataError, match=r"1 row .* cannot be split into train and test"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    path = write("train.txt", lines(40))
    with pytest.raises(DataError, match="classification needs labelled rows"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=True)


def test_few_rows_are_held_back_as_in_memory(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of few rows may be none: then the row with the lowest hash is taken, which one pass cannot know."""
    monkeypatch.setattr("headtohead.data.sources.readers.STREAMING_THRESHOLD_BYTES", 0)
    for seed in range(6):
        path = write("train.txt", lines(4, seed))
        data = DataConfig(source=str(path))
        plain = load_corpus(data, has_labels=False)
        made = load_tokenized_corpus(data, has_labels=False).corpus
        assert made.digest == plain.digest


def test_large_texts_are_read_lazily(write: Callable[..., Path]) -> None:
    path = write("train.txt", lines(50))
    passages = streaming.StreamedRows(streaming.StreamedTextFile(path, None))
    assert list(passages) == rows(50) and len(passages) == 50 and passages[-1] == rows(50)[-1]


def test_rows_on_disk_are_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headtohead.data.text_store.READ_CHUNK_BYTES", 100)
    every = [*rows(200), "", "long " * 100]
    found = write_text_rows(tmp_path, "some", every)
    assert list(found) == every
    assert (found[0], found[-1], found[200]) == (every[0], every[-1], "")
    assert found[3:9] == every[3:9] and found[:-1] == every[:-1] and found[::50] == every[::50]
    assert rows(200)[5] in found and "nowhere" not in found
    with pytest.raises(IndexError, match="row 202 is out of range for 202 rows"):
        found[202]
    cuts = found.compute_shard_boundaries(500)
    assert cuts[0] == 0 and cuts[-1] == 202 and cuts == sorted(set(cuts))
    assert [row for a, b in pairwise(cuts) for row in found.between(a, b)] == every


@pytest.mark.parametrize("form", ["stream", "sentences"])
def test_a_trial_on_the_store_ends_with_the_bits_of_one_in_memory(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = write("text/train.txt", lines(300))
    raw: dict[str, Any] = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(path.parent), "rows": form, "word_dropout": 0.1, "monitor": ["test"]},
        "model": {"width": 8, "layers": 1, "heads": 2, "context": 8, "output_bias": "frequencies"},
        "training": {"steps": 12, "batch_size": 4, "eval_every": 4},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    asked = config_loading.build_trial(loading.build_experiment(raw, "small"), "baseline", 0)
    for name, tokens in (("disk", load_tokenized_corpus), ("memory", token_cache.tokenize_in_memory)):
        registry._load_dataset_cached.cache_clear()
        monkeypatch.setattr("headtohead.data.token_cache.load_tokenized_corpus", tokens)
        trial.run_trial(asked, tmp_path / name)
        kind = registry.prepare_dataset(asked.data, asked.task).encoded["train"].tokens.dtype
        assert kind == (torch.uint16 if name == "disk" else torch.int64)
    registry._load_dataset_cached.cache_clear()
    for name in ("model.safetensors", "scores.safetensors", "trial.json", "start.json", "audits.json"):
        assert (tmp_path / "disk" / name).read_bytes() == (tmp_path / "memory" / name).read_bytes(), name
    lines_of = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("disk", "memory")]
    metrics = [[{**line, "seconds": 0} for line in some] for some in lines_of]
    assert metrics[0] == metrics[1] and len(metrics[0]) > 8
    results = [read_json(tmp_path / name / "result.json")["scores"] for name in ("disk", "memory")]
    assert results[0] == results[1]
