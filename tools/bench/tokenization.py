"""Tokenization: a gigabyte of text to tokens on disk, against encode_batch of the tokenizers library on all cores."""

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

from . import child_processes
from .measurements import BenchmarkSettings, Measurement, Measurements, Target
from .timing import run_alternating

ROUNDS = 2
GIGABYTE = 10**9
MAX_ADDED_GIGABYTES = 0.1
"""a process that reads all tokens would need at least two bytes of memory for each"""
MEGABYTE = 1e6
VOCAB_SIZE = 8_000
ROWS_PER_BATCH = 10_000
TEXT_FILE = "train.txt"
TOKENIZER_FILE = "tokenizer.json"


def measure_tokenization(settings: BenchmarkSettings) -> Measurements:
    """Compare with the same BPE tokenizer, trained on the corpus that the text repeats."""
    folder = settings.scratch / "tokenization"
    num_bytes = GIGABYTE // 500 if settings.is_short else GIGABYTE
    write_large_corpus(folder, settings.data, num_bytes)
    contestants = {
        "ours": lambda: _run_ours(folder, settings),
        "theirs": lambda: _run_in_child("library", folder, settings.num_cores, TOKENIZERS_PARALLELISM="true"),
    }
    best = run_alternating(contestants, settings.get_num_rounds(ROUNDS), warm_up=False)
    ours, theirs = best["ours"].value, best["theirs"].value
    rates = [num_bytes / MEGABYTE / result["seconds"] for result in (ours, theirs)]
    name, target = f"{num_bytes / MEGABYTE:,.0f} MB of text to tokens on disk", Target(0.8)
    yield Measurement(name, rates[0], "MB/s", rates[1], "encode_batch, all cores", rates[0] / rates[1], target=target)
    yield Measurement(
        f"{name}: peak memory of the process",
        ours["bytes"] / MEGABYTE,
        "MB",
        theirs["bytes"] / MEGABYTE,
        "encode_batch, nothing stored",
        ours["bytes"] / GIGABYTE,
        "gigabytes",
        Target(1.0, is_maximum=True),
    )
    opened_cache = _run_in_child("open", folder, settings.num_cores, XDG_CACHE_HOME=str(folder / "cache"))
    yield Measurement(f"{name}: open in another process and sample a batch", opened_cache["seconds"], "s")
    yield Measurement(
        f"{name}: memory that this adds, mapped pages included",
        opened_cache["added"] / MEGABYTE,
        "MB",
        result=opened_cache["added"] / GIGABYTE,
        kind="gigabytes",
        target=Target(MAX_ADDED_GIGABYTES, is_maximum=True),
    )


def _run_ours(folder: Path, settings: BenchmarkSettings) -> dict[str, float]:
    """Tokenize with an empty cache."""
    shutil.rmtree(folder / "cache", ignore_errors=True)
    return _run_in_child("cache", folder, settings.num_cores, XDG_CACHE_HOME=str(folder / "cache"))


def _run_in_child(name: str, folder: Path, cores: int, **variables: str) -> dict[str, float]:
    """Run a function of this module in a child process with all cores. The child measures without its imports."""
    command = child_processes.build_python_command("tools.bench.tokenization", name, str(folder))
    output = child_processes.run_command(command, num_threads=cores, **variables)
    result: dict[str, float] = child_processes.parse_json_result(output)
    return result


def write_large_corpus(folder: Path, data: str, num_characters_to_write: int) -> None:
    """Write a large text of distinct lines, made from a corpus, and a BPE tokenizer trained on the corpus."""
    from headtohead.data.tokenization import tokenizers
    from headtohead.tasks.registry import prepare_dataset

    from .experiments import build_decoder_experiment
    from .workload import build_baseline_trial

    trial = build_baseline_trial(build_decoder_experiment(data), 0)
    corpus_rows = [" ".join(row.split()) for row in prepare_dataset(trial.data, trial.task).corpus.splits["train"].rows]
    corpus_rows = [row for row in corpus_rows if row]
    folder.mkdir(parents=True, exist_ok=True)
    backend = tokenizers.train_bpe_tokenizer(iter(corpus_rows), vocab_size=VOCAB_SIZE)
    (folder / TOKENIZER_FILE).write_text(backend.to_str(), encoding="utf-8")
    with (folder / TEXT_FILE).open("w", encoding="utf-8", newline="\n") as file:
        num_characters = 0
        for line in generate_distinct_lines(corpus_rows):
            num_characters += file.write(line)
            if num_characters >= num_characters_to_write:
                break
    (folder / "test.txt").write_text(
        "".join(islice(generate_distinct_lines(corpus_rows, seed=1), 20)), encoding="utf-8"
    )


def generate_distinct_lines(rows: list[str], seed: int = 0) -> Iterator[str]:
    """Yield the rows of a corpus repeatedly, each with a random word and number so that all lines differ."""
    generator = random.Random(seed)
    words = sorted({word for row in rows for word in row.split()})
    while True:
        for row in rows:
            yield f"{row} {generator.choice(words)} {generator.randrange(10**6)}\n"


# ---- in a child process


def build_data_config(folder: Path) -> Any:
    """Return the [data] table for the large text."""
    from headtohead.config.tables import data

    tokenizer = {"kind": "file", "path": str(folder / TOKENIZER_FILE)}
    files = {"train": TEXT_FILE, "test": {"test": "test.txt"}}
    return data.DataConfig.model_validate(
        {"source": str(folder), "files": files, "tokenizer": tokenizer, "validation_fraction": 0.0}
    )


def tokenize_to_cache(folder: Path) -> dict[str, float]:
    """Tokenize the file into our token cache."""
    from headtohead.data import token_cache

    start_time = time.perf_counter()
    token_cache.load_tokenized_corpus(build_data_config(folder), has_labels=False, on_progress=lambda *arguments: None)
    return {"seconds": time.perf_counter() - start_time, "bytes": _read_peak_bytes()}


def tokenize_with_library(folder: Path) -> dict[str, float]:
    """Read lines, encode them in large batches on all cores and discard the result."""
    from tokenizers import Tokenizer

    backend = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
    start_time, num_tokens = time.perf_counter(), 0
    with (folder / TEXT_FILE).open(encoding="utf-8") as file:
        while lines := list(islice(file, ROWS_PER_BATCH)):
            num_tokens += sum(len(encoding.ids) for encoding in backend.encode_batch(lines, add_special_tokens=False))
    return {"seconds": time.perf_counter() - start_time, "bytes": _read_peak_bytes(), "tokens": num_tokens}


def open_token_cache(folder: Path) -> dict[str, float]:
    """Open the corpus and sample a batch, as training does before its first step."""
    from headtohead.config.tables import training as config_training
    from headtohead.config.tasks import Target as PredictionTarget
    from headtohead.data import token_cache
    from headtohead.data.batches import BatchSchedule
    from headtohead.training.hardware import process_memory

    data = build_data_config(folder)
    process_memory.reset_peak_memory()
    memory_before, start_time = process_memory.read_peak_memory_bytes(), time.perf_counter()
    corpus = token_cache.load_tokenized_corpus(data, has_labels=False)
    training = config_training.TrainingConfig.model_validate({"budget": "10 steps", "batch_size": 16})
    BatchSchedule(
        corpus.encoded["train"], PredictionTarget.NEXT_TOKEN, training, data, 32, 0, corpus.tokenizer
    ).get_batch(0)
    return {
        "seconds": time.perf_counter() - start_time,
        "added": process_memory.read_peak_memory_bytes() - memory_before,
    }


def _read_peak_bytes() -> int:
    """Return the peak memory of the process. getrusage would include the peak of the parent at the fork."""
    from headtohead.training.hardware import process_memory

    return process_memory.read_peak_memory_bytes()


if __name__ == "__main__":
    work = {"cache": tokenize_to_cache, "library": tokenize_with_library, "open": open_token_cache}[sys.argv[1]]
    print(json.dumps(work(Path(sys.argv[2]))))
