"""The token cache: data mapped from disk is identical to data computed in memory, also after kills, corruption and
concurrent builds.
"""

from __future__ import annotations

import json
import os
import random
import shutil
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

from headtohead.cache_folders import get_cache_folder
from headtohead.config import trial_settings
from headtohead.config.tables.data import DataConfig
from headtohead.config.tables.training import TrainingConfig
from headtohead.config.tasks import Target
from headtohead.data import text_store, token_cache, token_shards
from headtohead.data.batches import BatchSchedule
from headtohead.data.encoding import TokenRows, TokenStream, count_tokens
from headtohead.data.evaluation_examples import build_evaluation_examples
from headtohead.data.sources import streaming
from headtohead.data.sources.loading import load_corpus
from headtohead.data.text_store import DiskTextRows, write_text_rows
from headtohead.data.token_cache import TokenizedCorpus, load_tokenized_corpus
from headtohead.data.tokenization import tokenizers
from headtohead.errors import DataError
from headtohead.experiment import loading
from headtohead.json_files import read_json, read_jsonl
from headtohead.progress import ProgressUpdate
from headtohead.tasks import registry
from headtohead.trials import trial

WORDS = "peace people law work nation war bank union state congress année Łódź don't can't (half) U.S. “so”".split()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return get_cache_folder("corpora")


def build_rows(count: int, seed: int = 0) -> list[str]:
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=generator.randint(2, 12))) + "." for _ in range(count)]


def build_lines(count: int, seed: int = 0) -> str:
    return "\n".join(build_rows(count, seed)) + "\n"


def build_paragraphs(count: int) -> str:
    result = build_rows(count)
    return "".join(f"{row}  \n{'' if at % 3 else chr(10)}" for at, row in enumerate(result)) + "\n\n"


def assert_equal_corpora(one: TokenizedCorpus, other: TokenizedCorpus) -> None:
    """Assert that corpus, tokenizer and tokens are equal."""
    assert (one.corpus.digest, one.corpus.origin) == (other.corpus.digest, other.corpus.origin)
    assert list(one.corpus.splits) == list(other.corpus.splits)
    assert list(one.corpus.vocabulary_rows) == list(other.corpus.vocabulary_rows)
    assert one.corpus.label_names == other.corpus.label_names
    assert one.tokenizer == other.tokenizer
    for name, split in one.corpus.splits.items():
        other_split = other.corpus.splits[name]
        assert list(split.rows) == list(other_split.rows)
        assert (split.role, split.labels, split.separator) == (
            other_split.role,
            other_split.labels,
            other_split.separator,
        )
        encoded, other_encoded = one.encoded[name], other.encoded[name]
        assert type(encoded) is type(other_encoded)
        assert torch.equal(encoded.token_ids.long(), other_encoded.token_ids.long())
        vocab_size = one.tokenizer.vocab_size
        assert torch.equal(count_tokens(encoded, vocab_size), count_tokens(other_encoded, vocab_size))
        if isinstance(encoded, TokenRows) and isinstance(other_encoded, TokenRows):
            assert torch.equal(encoded.row_offsets, other_encoded.row_offsets)
            assert (encoded.labels is None) == (other_encoded.labels is None)
            assert encoded.labels is None or torch.equal(encoded.labels, other_encoded.labels)  # type: ignore[arg-type]


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
@pytest.mark.parametrize("text", [build_lines(300), build_paragraphs(300)], ids=["lines", "paragraphs"])
def test_the_store_holds_what_would_be_made_in_memory(
    write: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    text: str,
    large_from: int,
) -> None:
    monkeypatch.setattr("headtohead.data.sources.file_formats.STREAMING_THRESHOLD_BYTES", large_from)
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    path = write("text/train.txt", text.replace("\n", "\r\n").encode("utf-8-sig"))
    data = DataConfig.model_validate({"source": str(path.parent), **CASES[case]})
    tokenized_corpus = load_tokenized_corpus(data, has_labels=False)
    monkeypatch.setattr("headtohead.data.sources.file_formats.STREAMING_THRESHOLD_BYTES", 2**25)
    in_memory = token_cache.tokenize_in_memory(data, has_labels=False)
    assert_equal_corpora(tokenized_corpus, in_memory)
    assert_equal_corpora(load_tokenized_corpus(data, has_labels=False), in_memory)
    assert isinstance(tokenized_corpus.corpus.train.rows, DiskTextRows)
    assert tokenized_corpus.encoded["train"].token_ids.dtype == torch.uint16


def test_files_of_their_own_and_the_default_corpus(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headtohead.data.sources.file_formats.STREAMING_THRESHOLD_BYTES", 2000)
    write("text/validation.txt", build_lines(20, 1))
    write("text/test_a.txt", build_lines(200, 2))
    path = write("text/train.txt", build_lines(300))
    data = DataConfig(source=str(path.parent), test_rows=30, validation_rows=9)
    tokenized_corpus = load_tokenized_corpus(data, has_labels=False)
    assert [len(tokenized_corpus.corpus.splits[name].rows) for name in ("validation", "a")] == [9, 30]
    monkeypatch.undo()
    assert_equal_corpora(tokenized_corpus, token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.mark.parametrize("vocabulary", ["train", "folder"])
def test_a_classifier_finds_its_labels(write: Callable[..., Path], vocabulary: str) -> None:
    write("rows/train_LM.txt", build_lines(20, 3))
    write("rows/test_CLS.tsv", "\n".join(f"{i % 3}\t{row}" for i, row in enumerate(build_rows(20, 1))))
    path = write("rows/train_CLS.tsv", "\n".join(f"{i % 3}\t{row}" for i, row in enumerate(build_rows(90))))
    data = DataConfig.model_validate({"source": str(path.parent), "vocabulary": vocabulary})
    load_tokenized_corpus(data, has_labels=True)
    assert_equal_corpora(
        load_tokenized_corpus(data, has_labels=True), token_cache.tokenize_in_memory(data, has_labels=True)
    )


def test_more_than_65536_entries_take_four_bytes(write: Callable[..., Path], tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({f"w{i}": i for i in range(100_000)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    path = write("text/train.txt", "\n".join(f"w{i} w{69_999 - i}" for i in range(200)))
    tokens = {"kind": "file", "path": str(tmp_path / "tokenizer.json")}
    data = DataConfig.model_validate({"source": str(path.parent), "tokenizer": tokens})
    tokenized_corpus = load_tokenized_corpus(data, has_labels=False)
    assert tokenized_corpus.encoded["train"].token_ids.dtype == torch.uint32
    assert int(tokenized_corpus.encoded["train"].token_ids.long().max()) > 2**16
    assert_equal_corpora(tokenized_corpus, token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.mark.parametrize("row_format", ["stream", "sentences"])
def test_batches_and_examples_are_equal_to_the_bit(write: Callable[..., Path], row_format: str) -> None:
    path = write("train.txt", build_lines(400))
    data = DataConfig.model_validate(
        {"source": str(path), "rows": row_format, "word_dropout": 0.1, "rare_words": {"unknown_input": 0.5}}
    )
    cached, in_memory = (
        load_tokenized_corpus(data, has_labels=False),
        token_cache.tokenize_in_memory(data, has_labels=False),
    )
    for sampling in ("random", "shuffled"):
        training = TrainingConfig.model_validate({"batch_size": 4, "order": sampling})
        schedule, expected_schedule = (
            BatchSchedule(corpus.encoded["train"], Target.NEXT_TOKEN, training, data, 8, 3, corpus.tokenizer)
            for corpus in (cached, in_memory)
        )
        assert schedule.compute_digest(50) == expected_schedule.compute_digest(50)
        for step in range(50):
            assert torch.equal(schedule.get_batch(step).input_ids, expected_schedule.get_batch(step).input_ids)
            assert torch.equal(schedule.get_batch(step).labels, expected_schedule.get_batch(step).labels)
    for max_examples in (1, 7, 10**6):
        batches = [
            build_evaluation_examples(corpus.encoded["test"], Target.NEXT_TOKEN, 8, corpus.tokenizer)
            .sample(max_examples)
            .iter_batches(4)
            for corpus in (cached, in_memory)
        ]
        for a, b in zip(*batches, strict=True):
            assert torch.equal(a.input_ids, b.input_ids) and torch.equal(a.labels, b.labels)
            assert a.input_ids.dtype == torch.int64


def test_a_sample_of_examples_is_every_so_many_batches() -> None:
    """Batches that are not sampled are not built, because each would be read from disk."""
    stream = TokenStream("train", torch.arange(1000))
    data = DataConfig()
    tokenizer = token_cache.tokenize_in_memory(data, has_labels=False).tokenizer
    for context in (7, 9, 10):
        all_batches = list(build_evaluation_examples(stream, Target.NEXT_TOKEN, context, tokenizer).iter_batches(4))
        for max_examples in (3, 10, 40):
            sample = build_evaluation_examples(stream, Target.NEXT_TOKEN, context, tokenizer).sample(max_examples)
            expected_batches = all_batches[:: sample.stride]
            sampled_batches = list(sample.iter_batches(4))
            assert [b.input_ids.tolist() for b in sampled_batches] == [b.input_ids.tolist() for b in expected_batches]


def test_tokens_are_mapped_and_not_read(write: Callable[..., Path]) -> None:
    path = write("train.txt", build_lines(300))
    data = DataConfig(source=str(path))
    load_tokenized_corpus(data, has_labels=False)
    token_ids = load_tokenized_corpus(data, has_labels=False).encoded["train"].token_ids
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "split0.tokens" in line]
    addresses = [int(part, 16) for line in mapped for part in line.split()[0].split("-")]
    assert mapped and min(addresses) <= token_ids.data_ptr() < max(addresses)


CHILD = """
import os, signal, sys
from headtohead.config.tables.data import DataConfig
from headtohead.data import token_cache, token_shards
token_shards.SHARD_BYTES = int(sys.argv[4])
num_left, append_jsonl = int(sys.argv[2]), token_shards.append_jsonl
def append_or_die(path, line):
    global num_left
    num_left -= 1
    if num_left < 0:
        path.open("ab").write(b'{"rows": 1')
        os.kill(os.getpid(), signal.SIGKILL)
    append_jsonl(path, line)
token_shards.append_jsonl = append_or_die
token_cache.load_tokenized_corpus(DataConfig(source=sys.argv[1], rows=sys.argv[3]), has_labels=False)
"""


def build_until_killed(path: Path, row_format: str, *, num_shards: int, shard_bytes: int) -> None:
    """Tokenize a text in a process that is killed while it records another shard."""
    arguments = [str(path), str(num_shards), row_format, str(shard_bytes)]
    result = subprocess.run([sys.executable, "-c", CHILD, *arguments], check=False)
    assert result.returncode == -signal.SIGKILL


@pytest.mark.parametrize("row_format", ["stream", "sentences"])
def test_a_kill_loses_only_the_shards_on_their_way(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch, row_format: str
) -> None:
    path = write("train.txt", build_lines(400))
    build_until_killed(path, row_format, num_shards=7, shard_bytes=1000)
    (folder,) = cache.iterdir()
    assert not (folder / "manifest.json").exists()
    before = [json.loads(line) for line in (folder / "split0.jsonl").read_text().splitlines()[:-1]]
    assert len(before) == 7
    encoded_shards: list[tuple[str, int]] = []
    encode_shard = token_shards.SplitTokenization.encode_shard
    monkeypatch.setattr(
        token_shards.SplitTokenization,
        "encode_shard",
        lambda self, start, stop: (encoded_shards.append((self.name, start)), encode_shard(self, start, stop))[1],
    )
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    monkeypatch.setattr(
        "headtohead.data.sources.loading.load_corpus", lambda *a, **k: pytest.fail("texts were read again")
    )
    data = DataConfig.model_validate({"source": str(path), "rows": row_format})
    tokenized_corpus = load_tokenized_corpus(data, has_labels=False)
    monkeypatch.undo()
    assert min(start for name, start in encoded_shards if name == "split0") == before[-1]["rows"]
    assert_equal_corpora(tokenized_corpus, token_cache.tokenize_in_memory(data, has_labels=False))


@pytest.fixture(scope="module")
def killed_builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a text and, for each row format, the cache of a build that was killed after 80 kB."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "train.txt").write_text(build_lines(4000))
    for row_format in ("stream", "sentences"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CACHE_HOME", str(folder / row_format))
            build_until_killed(folder / "train.txt", row_format, num_shards=20, shard_bytes=4000)
    return folder


@pytest.mark.parametrize("row_format", ["stream", "sentences"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("suffix", ["tokens", "offsets"])
def test_what_a_kill_and_the_disk_lost_of_the_shards_is_encoded_again(
    killed_builds: Path,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    row_format: str,
    damage: str,
    suffix: str,
) -> None:
    """Sizes and checksums of the shards are verified before the build continues."""
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 4000)
    shutil.copytree(killed_builds / row_format, tmp_path / "cache")
    path = killed_builds / "train.txt"
    (folder,) = cache.iterdir()
    file = folder / f"split0.{suffix}"
    if (row_format, suffix) == ("stream", "offsets"):
        file.unlink(missing_ok=True)
        file.write_bytes(bytes(10_000))  # a stream needs none
    content = bytearray(file.read_bytes())
    assert len(content) > 8192
    if damage == "cut":
        content = content[:-4096]
    else:
        content[len(content) // 2] ^= 1
    file.write_bytes(content)
    data = DataConfig.model_validate({"source": str(path), "rows": row_format})
    assert_equal_corpora(
        load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False)
    )


def test_a_tokenizer_that_a_kill_left_damaged_is_trained_again(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 1000)
    path = write("train.txt", build_lines(400))
    build_until_killed(path, "stream", num_shards=7, shard_bytes=1000)
    (folder,) = cache.iterdir()
    file = folder / "tokenizer.json"
    file.write_bytes(file.read_bytes().replace(b'"peace"', b'"peaxe"'))
    data = DataConfig(source=str(path))
    assert_equal_corpora(
        load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False)
    )


def test_an_edit_with_the_old_time_of_a_large_source_is_detected(write: Callable[..., Path]) -> None:
    path = write("train.txt", "\n".join(f"{number} peace law" for number in range(900_000)))
    content = path.read_bytes()
    assert len(content) > 15_000_000
    data = DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"})
    before, stat = token_cache.build_cache_key(data, False, Path()), path.stat()
    time.sleep(2.1)  # the checksum of a file that has just changed is not stored
    assert token_cache.build_cache_key(data, False, Path()) == before
    middle = content.index(b"peace", len(content) // 2 + 300_000)
    path.write_bytes(content[:middle] + b"p" * 5 + content[middle + 5 :])
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size and path.stat().st_mtime_ns == stat.st_mtime_ns
    assert token_cache.build_cache_key(data, False, Path()) != before


def test_every_flipped_bit_of_a_large_file_in_the_cache_is_detected(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", "\n".join(f"{number} peace law" for number in range(100_000)))
    data = DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"})
    load_tokenized_corpus(data, has_labels=False)
    (folder,) = cache.iterdir()
    time.sleep(2.1)
    assert token_cache._find_cache_error(folder) is None  # the checksums may be stored from now on
    generator, num_noticed = random.Random(0), 0
    for name in ["split0.tokens", "split0.text"] * 50:
        file = folder / name
        size = file.stat().st_size
        assert size > 2**20
        stat, position, bit = file.stat(), generator.randrange(size), 1 << generator.randrange(8)
        for _ in range(2):  # once to flip it, once to put it back
            with file.open("r+b") as loaded:
                loaded.seek(position)
                byte = loaded.read(1)[0]
                loaded.seek(position)
                loaded.write(bytes([byte ^ bit]))
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            num_noticed += token_cache._find_cache_error(folder) == f"{name} has changed"
    assert num_noticed == 100


def test_the_deep_check_reads_what_an_unchanged_identity_hides(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may return different bytes without a write. Opening a folder does not detect this; `h2h doctor --deep`
    does.
    """
    path = write("train.txt", "\n".join(f"{number} peace law" for number in range(100_000)))
    data = DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"})
    monkeypatch.setattr(token_cache, "TIMESTAMP_RESOLUTION_NANOSECONDS", 0)
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


def test_a_kill_while_texts_are_read_starts_again(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", build_lines(100))
    data = DataConfig(source=str(path))
    folder = cache / token_cache._hash_json(token_cache.build_cache_key(data, False, Path()))[:24]
    folder.mkdir(parents=True)
    write_text_rows(folder, "split0", ["half of it"])
    assert_equal_corpora(
        load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False)
    )


@pytest.mark.parametrize("name", ["manifest.json", "tokenizer.json", "split0.tokens", "split1.counts", "split0.text"])
@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_damage_is_detected_and_said_and_made_good(
    write: Callable[..., Path], cache: Path, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    path = write("train.txt", build_lines(60))
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
    assert_equal_corpora(
        load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False)
    )
    output = capsys.readouterr().err
    if (name, damage) != ("manifest.json", "gone"):
        assert "is corrupted" in output and "building it again" in output
    assert token_cache._find_cache_error(folder) is None


def test_another_text_another_setting_or_another_code_is_another_store(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("train.txt", build_lines(60))

    def count(data: DataConfig) -> int:
        load_tokenized_corpus(data, has_labels=False)
        return len(list(cache.iterdir()))

    data = DataConfig(source=str(path))
    assert count(data) == 1
    assert count(DataConfig(source=str(path), word_dropout=0.1)) == 1  # drawn at every step: the tokens are the same
    os.utime(path, (1, 1))
    assert count(data) == 1  # the same content
    assert count(DataConfig(source=str(path), validation_fraction=0.2)) == 2
    write("train.txt", build_lines(60, 9))
    assert count(data) == 3
    monkeypatch.setattr(token_cache, "_hash_source_code", lambda: "other")
    assert count(data) == 4


def test_two_processes_at_once_make_it_once(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", build_lines(600))
    code = (
        "import sys\nfrom headtohead.config.tables.data import DataConfig\nfrom headtohead.data import token_cache\n"
        "real = token_cache._write_corpus_texts\n"
        "token_cache._write_corpus_texts = lambda *arguments: (print('written'), real(*arguments))[1]\n"
        "data = DataConfig(source=sys.argv[1])\n"
        "tokenized = token_cache.load_tokenized_corpus(data, has_labels=False)\n"
        "print(int(tokenized.encoded['train'].token_ids.long().sum()))"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert sorted(len(words) for words in outputs) == [1, 2]
    assert outputs[0][-1] == outputs[1][-1]


def test_where_nothing_can_be_written_memory_does(
    write: Callable[..., Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("train.txt", build_lines(60))

    def refuse(folder: Path) -> None:
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(token_cache, "lock_cache_folder", refuse)
    data = DataConfig(source=str(path))
    assert_equal_corpora(
        load_tokenized_corpus(data, has_labels=False), token_cache.tokenize_in_memory(data, has_labels=False)
    )
    assert not cache.exists()


def test_what_nobody_opens_is_removed(write: Callable[..., Path], cache: Path) -> None:
    path = write("train.txt", build_lines(60))
    load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    (old,) = cache.iterdir()
    load_tokenized_corpus(DataConfig(source=str(path), validation_fraction=0.2), has_labels=False)
    assert old.exists()
    long_ago = time.time() - (token_cache.MAX_UNUSED_DAYS + 1) * 86400
    os.utime(old / "manifest.json", (long_ago, long_ago))
    load_tokenized_corpus(DataConfig(source=str(path), validation_fraction=0.3), has_labels=False)
    assert not old.exists() and len(list(cache.iterdir())) == 2


def test_progress_is_reported_with_the_time_that_is_left(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_shards, "SHARD_BYTES", 2**18)
    monkeypatch.setattr("headtohead.data.sources.file_formats.STREAMING_THRESHOLD_BYTES", 0)
    many = [f"{i} law" for i in range(40_000)] + [f"{i}" + " peace" * 200 for i in range(2000)]
    path = write("train.txt", "\n".join(many))
    updates: list[ProgressUpdate] = []
    load_tokenized_corpus(
        DataConfig.model_validate({"source": str(path), "tokenizer": "bytes"}),
        has_labels=False,
        on_progress=updates.append,
    )
    assert any(update.description.startswith("reading") and update.completed > 0 for update in updates)
    tokenizing = [update for update in updates if update.description == "tokenizing train, in MB"]
    assert tokenizing[-1].completed == tokenizing[-1].total > 1
    assert all(update.seconds_left is not None for update in tokenizing[1:])


def test_a_large_file_that_is_not_text_is_rejected_with_places(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headtohead.data.sources.file_formats.STREAMING_THRESHOLD_BYTES", 0)
    path = write("train.txt", b"good\nbad \xff\xfe here\n\xc3\x28\n")
    with pytest.raises(DataError, match=r"2 errors\n  byte 9 \(line 2\): ff fe 20 68 is not UTF-8"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    path = write("train.txt", b" \n\n \n")
    with pytest.raises(DataError, match="is empty; expected text"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    path = write("train.txt", b"one row alone\n")
    with pytest.raises(DataError, match=r"1 row .* cannot be split into train and test"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=False)
    path = write("train.txt", build_lines(40))
    with pytest.raises(DataError, match="classification needs labeled rows"):
        load_tokenized_corpus(DataConfig(source=str(path)), has_labels=True)


def test_few_rows_are_held_back_as_in_memory(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A fraction of few rows may be empty; the row with the lowest hash is held out then, in a second pass."""
    monkeypatch.setattr("headtohead.data.sources.file_formats.STREAMING_THRESHOLD_BYTES", 0)
    for seed in range(6):
        path = write("train.txt", build_lines(4, seed))
        data = DataConfig(source=str(path))
        plain = load_corpus(data, has_labels=False)
        corpus = load_tokenized_corpus(data, has_labels=False).corpus
        assert corpus.digest == plain.digest


def test_large_texts_are_read_lazily(write: Callable[..., Path]) -> None:
    path = write("train.txt", build_lines(50))
    streamed_rows = streaming.StreamedRows(streaming.StreamedTextFile(path, None))
    assert (
        list(streamed_rows) == build_rows(50) and len(streamed_rows) == 50 and streamed_rows[-1] == build_rows(50)[-1]
    )


def test_rows_on_disk_are_a_sequence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headtohead.data.text_store.READ_CHUNK_BYTES", 100)
    expected_rows = [*build_rows(200), "", "long " * 100]
    text_rows = write_text_rows(tmp_path, "some", expected_rows)
    assert list(text_rows) == expected_rows
    assert (text_rows[0], text_rows[-1], text_rows[200]) == (expected_rows[0], expected_rows[-1], "")
    assert text_rows[3:9] == expected_rows[3:9]
    assert text_rows[:-1] == expected_rows[:-1] and text_rows[::50] == expected_rows[::50]
    assert build_rows(200)[5] in text_rows and "nowhere" not in text_rows
    with pytest.raises(IndexError, match="row 202 is out of range for 202 rows"):
        text_rows[202]
    boundaries = text_rows.compute_shard_boundaries(500)
    assert boundaries[0] == 0 and boundaries[-1] == 202 and boundaries == sorted(set(boundaries))
    assert [row for a, b in pairwise(boundaries) for row in text_rows.iter_range(a, b)] == expected_rows


def test_an_even_sample_of_a_text_is_the_same_on_disk_and_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_store, "READ_CHUNK_BYTES", 100)
    rows = [f"row {number} é" for number in range(1000)]
    on_disk = text_store.write_text_rows(tmp_path, "split", rows)
    sample = list(text_store.iter_sampled_text(on_disk, 2000))
    assert sample == list(text_store.iter_sampled_text(rows, 2000))
    assert 1500 < sum(len(row.encode()) for row in sample) < 2500
    numbers = [int(row.split()[1]) for row in sample]
    assert numbers == sorted(set(numbers)) and numbers[0] == 0 and numbers[-1] > 900
    assert list(text_store.iter_sampled_text(on_disk, 10**6)) == rows


def test_bpe_is_trained_on_a_sample_of_a_long_text(monkeypatch: pytest.MonkeyPatch, write: Callable[..., Path]) -> None:
    path = write("train.txt", build_lines(300))
    data = DataConfig.model_validate({"source": str(path), "tokenizer": {"kind": "bpe", "vocab_size": 300}})
    tokenizer = token_cache.tokenize_in_memory(data, has_labels=False).tokenizer
    monkeypatch.setattr(tokenizers, "MAX_BPE_TRAINING_BYTES", 1)
    monkeypatch.setattr(text_store, "READ_CHUNK_BYTES", 200)
    sampled = token_cache.tokenize_in_memory(data, has_labels=False).tokenizer
    assert sampled != tokenizer
    assert sampled == token_cache.load_tokenized_corpus(data, has_labels=False).tokenizer


@pytest.mark.parametrize("row_format", ["stream", "sentences"])
def test_a_trial_on_the_store_ends_with_the_bits_of_one_in_memory(
    write: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row_format: str
) -> None:
    path = write("text/train.txt", build_lines(300))
    raw: dict[str, Any] = {
        "question": "Does it help?",
        "task": "language-model",
        "seeds": 1,
        "data": {"source": str(path.parent), "rows": row_format, "word_dropout": 0.1, "monitor": ["test"]},
        "model": {
            "width": 8,
            "layers": 1,
            "heads": 2,
            "context": 8,
            "output": {"kind": "linear", "bias": "frequencies"},
        },
        "training": {"budget": "12 steps", "batch_size": 4, "eval_every": 4},
        "variants": {"alibi": {"model": {"position": "alibi"}}},
    }
    request = trial_settings.build_trial(loading.build_experiment(raw, "small"), "baseline", 0)
    for name, tokens in (("disk", load_tokenized_corpus), ("memory", token_cache.tokenize_in_memory)):
        registry._load_dataset_cached.cache_clear()
        monkeypatch.setattr("headtohead.data.token_cache.load_tokenized_corpus", tokens)
        trial.run_trial(request, tmp_path / name)
        kind = registry.prepare_dataset(request.data, request.task).encoded["train"].token_ids.dtype
        assert kind == (torch.uint16 if name == "disk" else torch.int64)
    registry._load_dataset_cached.cache_clear()
    for name in ("model.safetensors", "scores.safetensors", "trial.json", "start.json", "audits.json"):
        assert (tmp_path / "disk" / name).read_bytes() == (tmp_path / "memory" / name).read_bytes(), name
    metric_lines = [read_jsonl(tmp_path / name / "metrics.jsonl") for name in ("disk", "memory")]
    metrics = [[{**line, "seconds": 0} for line in lines] for lines in metric_lines]
    assert metrics[0] == metrics[1] and len(metrics[0]) > 8
    results = [read_json(tmp_path / name / "result.json")["scores"] for name in ("disk", "memory")]
    assert results[0] == results[1]
