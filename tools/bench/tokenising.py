"""Tokenising: a gigabyte of text to tokens on disk, against the tokenizers library's own encode_batch on all cores."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from . import children
from .findings import Bar, Finding, Found, How
from .turns import take_turns

ROUNDS = 2
GIGABYTE = 10**9
NOT_WHOLE = 0.1
"""gigabytes: a training that looked at all of the tokens would have at least two bytes for each in memory"""
MEGA = 1e6
VOCABULARY = 8_000
ROWS_AT_ONCE = 10_000
TEXT, TOKENIZER = "train.txt", "tokenizer.json"


def tokenising(how: How) -> Found:
    """The same tokenizer on both sides: byte pairs, learned from the text that is repeated."""
    folder = how.scratch / "tokenising"
    size = GIGABYTE // 500 if how.short else GIGABYTE
    write_text(folder, how.data, size)
    sides = {
        "ours": lambda: _ours(folder, how),
        "theirs": lambda: _asked("library", folder, how.cores, TOKENIZERS_PARALLELISM="true"),
    }
    best = take_turns(sides, how.rounds(ROUNDS), warm=False)
    ours, theirs = best["ours"].answer, best["theirs"].answer
    rates = [size / MEGA / found["seconds"] for found in (ours, theirs)]
    what = f"{size / MEGA:,.0f} MB of text to tokens on disk"
    yield Finding(what, rates[0], "MB/s", rates[1], "encode_batch, all cores", rates[0] / rates[1], bar=Bar(0.8))
    yield Finding(
        f"{what}: memory of the whole process at its highest point",
        ours["bytes"] / MEGA,
        "MB",
        theirs["bytes"] / MEGA,
        "encode_batch, nothing kept",
        ours["bytes"] / GIGABYTE,
        "gigabytes",
        Bar(1.0, at_most=True),
    )
    opened = _asked("open", folder, how.cores, XDG_CACHE_HOME=str(folder / "cache"))
    yield Finding(f"{what}: opened by another process, and a batch drawn", opened["seconds"], "s")
    yield Finding(
        f"{what}: memory that this takes besides the libraries, what is mapped and looked at included",
        opened["added"] / MEGA,
        "MB",
        figure=opened["added"] / GIGABYTE,
        kind="gigabytes",
        bar=Bar(NOT_WHOLE, at_most=True),
    )


def _ours(folder: Path, how: How) -> dict[str, float]:
    """Anew each time: the cache is emptied first."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return _asked("store", folder, how.cores, XDG_CACHE_HOME=str(folder / "cache"))


def _asked(name: str, folder: Path, cores: int, **settings: str) -> dict[str, float]:
    """A child with all cores; its own clock leaves imports out on both sides."""
    command = children.python("tools.bench.tokenising", name, str(folder))
    answer: dict[str, float] = children.answer(children.run(command, threads=cores, **settings))
    return answer


def write_text(folder: Path, data: str, size: int) -> None:
    """The corpus over and over, with a number and another word in each line, so that no two lines are alike; and a
    tokenizer of byte pairs that is learned from it once."""
    from headtohead.config import experiment, loading
    from headtohead.data import tokenizers
    from headtohead.tasks.registry import prepare_dataset

    from . import lessons

    raw = lessons.decoder(data, seeds=1, steps=1, evaluate=1)
    trial = loading.build_trial(lessons.experiment(raw), experiment.BASELINE, 0)
    rows = [" ".join(row.split()) for row in prepare_dataset(trial.data, trial.task).corpus.splits["train"].rows]
    rows = [row for row in rows if row]
    folder.mkdir(parents=True, exist_ok=True)
    backend = tokenizers.train_bpe_tokenizer(iter(rows), vocab_size=VOCABULARY)
    (folder / TOKENIZER).write_text(backend.to_str(), encoding="utf-8")
    with (folder / TEXT).open("w", encoding="utf-8", newline="\n") as file:
        written = 0
        for line in changed_rows(rows):
            written += file.write(line)
            if written >= size:
                break
    (folder / "test.txt").write_text("".join(islice(changed_rows(rows, seed=1), 20)), encoding="utf-8")


def changed_rows(rows: list[str], seed: int = 0) -> Iterator[str]:
    """Rows without end."""
    drawn = random.Random(seed)
    words = sorted({word for row in rows for word in row.split()})
    while True:
        for row in rows:
            yield f"{row} {drawn.choice(words)} {drawn.randrange(10**6)}\n"


# ---- in a process of its own


def data_of(folder: Path) -> Any:
    from headtohead.config import data

    chosen = {"kind": "file", "path": str(folder / TOKENIZER)}
    files = {"train": TEXT, "test": {"test": "test.txt"}}
    return data.DataConfig.model_validate(
        {"source": str(folder), "files": files, "tokenizer": chosen, "validation_fraction": 0.0}
    )


def in_store(folder: Path) -> dict[str, float]:
    """Our road: from the file to tokens on disk."""
    from headtohead.data import token_cache

    began = time.perf_counter()
    token_cache.load_tokenized_corpus(data_of(folder), has_labels=False, on_progress=lambda *said: None)
    return {"seconds": time.perf_counter() - began, "bytes": _peak()}


def with_library(folder: Path) -> dict[str, float]:
    """The library by itself: lines are read, encoded in large batches on all cores, and thrown away."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(folder / TOKENIZER))
    began, tokens = time.perf_counter(), 0
    with (folder / TEXT).open(encoding="utf-8") as file:
        while some := list(islice(file, ROWS_AT_ONCE)):
            tokens += sum(len(one.ids) for one in backend.encode_batch(some, add_special_tokens=False))
    return {"seconds": time.perf_counter() - began, "bytes": _peak(), "tokenizer": tokens}


def opened(folder: Path) -> dict[str, float]:
    """What a training does before its first step."""
    from headtohead.config import training as config_training
    from headtohead.config.tasks import Target
    from headtohead.data import token_cache
    from headtohead.data.batches import BatchSchedule
    from headtohead.training import memory

    data = data_of(folder)
    memory.reset_peak()
    before, began = memory.read_peak_bytes(), time.perf_counter()
    found = token_cache.load_tokenized_corpus(data, has_labels=False)
    training = config_training.TrainingConfig.model_validate({"steps": 10, "batch_size": 16})
    BatchSchedule(found.encoded["train"], Target.NEXT_TOKEN, training, data, 32, 0, found.tokenizer).batch(0)
    return {"seconds": time.perf_counter() - began, "added": memory.read_peak_bytes() - before}


def _peak() -> int:
    """Of the whole process. Not getrusage: a child begins with the figure of the process that started it."""
    from headtohead.training import memory

    return memory.read_peak_bytes()


if __name__ == "__main__":
    work = {"store": in_store, "library": with_library, "open": opened}[sys.argv[1]]
    print(json.dumps(work(Path(sys.argv[2]))))
