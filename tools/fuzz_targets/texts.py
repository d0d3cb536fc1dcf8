"""Experiment files, texts, tables and numbers."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from headtohead.errors import HeadToHeadError

from .sample_experiment import TEXT
from .target import fuzz_target


def _experiments(scratch: Path) -> list[bytes]:
    from headtohead.config import loading

    return [loading.find_recipe(name).read_bytes() for name in loading.list_recipes()]


@fuzz_target("experiment", _experiments)
def _experiment(data: bytes, scratch: Path) -> None:
    from headtohead.atomic_io import write_json
    from headtohead.config.loading import build_trial
    from headtohead.experiment import loading

    path = scratch / "experiment.toml"
    path.write_bytes(data)
    options: list[dict[str, bool]] = [{}, {"use_quick_setting": True}]
    if b"[full]" in data:
        options.insert(1, {"use_full_setting": True})
    for settings in options:
        experiment = loading.load_experiment(path, **settings)
        write_json(scratch / "experiment.json", experiment.model_dump(mode="json"))
        for variant in experiment.names:
            assert (scratch / variant).resolve().parent == scratch.resolve()
            build_trial(experiment, variant, 0).settings()


# ---- texts and tables


def _texts(scratch: Path) -> list[bytes]:
    lines = [f"{TEXT.strip()} {index}\n" for index in range(12)]
    return ["".join(lines).encode(), "\n".join(lines).encode(), "\ufeffÄ “quote” don’t\r\nU.S. can’t".encode()]


def _knock_corpus(data: bytes, scratch: Path, name: str, task: str, **settings: Any) -> None:
    from headtohead.config import data as config_data
    from headtohead.data import tokenizers
    from headtohead.data.sources import loading

    (scratch / name).write_bytes(data)
    data_ = config_data.DataConfig.model_validate({"source": str(scratch / name), **settings})
    corpus = loading.load_corpus(data_, has_labels=task == "classify")
    assert sum(len(row) for split in corpus.splits.values() for row in split.rows) <= 2 * len(data) + 1000
    tokenizers.train_tokenizer(data_, corpus).encode_batch(list(corpus.train.rows)[:20])


@fuzz_target("text", _texts)
def _text(data: bytes, scratch: Path) -> None:
    _knock_corpus(data, scratch, "text.txt", "language-model")
    _knock_corpus(data, scratch, "text.txt", "language-model", tokenizer="characters", rows="sentences")


def _tsv(scratch: Path) -> list[bytes]:
    rows = "".join(f"{'a' if index % 2 else 'b'}\tthe people {index}\n" for index in range(12))
    return [f"label\ttext\n{rows}".encode(), rows.encode()]


@fuzz_target("tsv", _tsv)
def _tsv_door(data: bytes, scratch: Path) -> None:
    _knock_corpus(data, scratch, "rows.tsv", "classify")
    _knock_corpus(data, scratch, "rows.tsv", "classify", columns={"label": 0, "text": 1})


@fuzz_target(
    "csv",
    lambda scratch: [text.replace(b"\t", b",") for text in _tsv(scratch)] + [b'label,text\na,"x ""y"", z"\nb,w\n'],
)
def _csv_door(data: bytes, scratch: Path) -> None:
    _knock_corpus(data, scratch, "rows.csv", "classify")


def _jsonl(scratch: Path) -> list[bytes]:
    rows = [
        {"text": f"the people {index}", "label": "ab"[index % 2], "more": [index, None, 1.5]} for index in range(12)
    ]
    return ["".join(json.dumps(row) + "\n" for row in rows).encode(), json.dumps(rows).encode()]


@fuzz_target("jsonl", _jsonl)
def _jsonl_door(data: bytes, scratch: Path) -> None:
    _knock_corpus(data, scratch, "rows.jsonl", "classify")


def _documents(scratch: Path) -> list[bytes]:
    rows = [{"document": TEXT + str(index), "summary": "peace"} for index in range(20)]
    return ["".join(json.dumps(row) + "\n" for row in rows).encode(), b'{"document": "a", "summaries": ["b", "c"]}\n']


@fuzz_target("documents", _documents)
def _documents_door(data: bytes, scratch: Path) -> None:
    from headtohead.data.sources.documents import load_summarization_corpus

    (scratch / "documents.jsonl").write_bytes(data)
    load_summarization_corpus(scratch / "documents.jsonl")


def _prompts(scratch: Path) -> list[bytes]:
    return [b'{"prompt": "the people", "continuation": "ask"}\n', b"prompt\tcontinuation\nwe\task\n", b"the people\n"]


@fuzz_target("prompts", _prompts)
def _prompts_door(data: bytes, scratch: Path) -> None:
    from headtohead.decoding_comparison.prompts import read_prompts

    for name in ("prompts.jsonl", "prompts.tsv", "prompts.csv", "prompts.txt"):
        (scratch / name).write_bytes(data)
        with contextlib.suppress(HeadToHeadError):
            read_prompts(str(scratch / name))
    read_prompts(str(scratch / "prompts.jsonl"))


def _scores(scratch: Path) -> list[bytes]:
    rows = "".join(f"{v},{s},{e},{(s + e) % 2}\n" for v in ("a", "b") for s in range(3) for e in range(4))
    return [f"variant,seed,example,accuracy\n{rows}".encode(), b"variant;seed;loss\na;0;1.5\na;1;1.4\nb;0;1\nb;1;1.1\n"]


@fuzz_target("scores", _scores)
def _scores_door(data: bytes, scratch: Path) -> None:
    from headtohead.verdict.score_csv import judge_csv

    (scratch / "scores.csv").write_bytes(data)
    for metric in (None, "perplexity", "loss"):
        with contextlib.suppress(HeadToHeadError):
            [row.to_dict() for row in judge_csv(scratch / "scores.csv", metric=metric, equivalence_margin=0.01)]
    judge_csv(scratch / "scores.csv", equivalence_margin=0.01)


@fuzz_target("design", lambda scratch: [b"1 0; 0 1; -1 -1", b"[[1, 0], [0, 1]]", b'{"keys": [[1, 0.5], [0, 1]]}'])
def _design(data: bytes, scratch: Path) -> None:
    from headtohead.key_design import inputs, solve

    (scratch / "keys.json").write_bytes(data)
    keys = inputs.read_matrix(scratch / "keys.json")
    if keys.size < 64:
        solve.find_selecting_query(keys, 0).to_dict()
        solve.find_query_for_weights(keys, [1 / len(keys)] * len(keys)).to_dict()
