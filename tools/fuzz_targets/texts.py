"""Fuzz targets for experiment files, texts, tables and matrices."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

from headtohead.errors import HeadToHeadError

from .sample_experiment import TEXT
from .target import register_fuzz_target


def _list_recipe_files(scratch: Path) -> list[bytes]:
    from headtohead.config import recipe_catalog

    return [recipe_catalog.find_recipe(name).read_bytes() for name in recipe_catalog.list_recipes()]


@register_fuzz_target("experiment", _list_recipe_files)
def _load_experiment(data: bytes, scratch: Path) -> None:
    from headtohead.config.trial_settings import build_trial
    from headtohead.experiment import loading
    from headtohead.json_files import write_json

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
            build_trial(experiment, variant, 0).dump_variant_settings()


# ---- texts and tables


def _build_text_files(scratch: Path) -> list[bytes]:
    lines = [f"{TEXT.strip()} {index}\n" for index in range(12)]
    return ["".join(lines).encode(), "\n".join(lines).encode(), "\ufeffÄ “quote” don’t\r\nU.S. can’t".encode()]


def _load_corpus(data: bytes, scratch: Path, name: str, task: str, **settings: Any) -> None:
    """Load an input as a corpus and train a tokenizer on it."""
    from headtohead.config.tables import data as config_data
    from headtohead.data.sources import loading
    from headtohead.data.tokenization import tokenizers

    (scratch / name).write_bytes(data)
    data_config = config_data.DataConfig.model_validate({"source": str(scratch / name), **settings})
    corpus = loading.load_corpus(data_config, has_labels=task == "classify")
    assert sum(len(row) for split in corpus.splits.values() for row in split.rows) <= 2 * len(data) + 1000
    tokenizers.train_tokenizer(data_config, corpus).encode_batch(list(corpus.train.rows)[:20])


@register_fuzz_target("text", _build_text_files)
def _load_text(data: bytes, scratch: Path) -> None:
    _load_corpus(data, scratch, "text.txt", "language-model")
    _load_corpus(data, scratch, "text.txt", "language-model", tokenizer="characters", rows="sentences")


def _build_tsv_files(scratch: Path) -> list[bytes]:
    rows = "".join(f"{'a' if index % 2 else 'b'}\tthe people {index}\n" for index in range(12))
    return [f"label\ttext\n{rows}".encode(), rows.encode()]


@register_fuzz_target("tsv", _build_tsv_files)
def _load_tsv(data: bytes, scratch: Path) -> None:
    _load_corpus(data, scratch, "rows.tsv", "classify")
    _load_corpus(data, scratch, "rows.tsv", "classify", columns={"label": 0, "text": 1})


@register_fuzz_target(
    "csv",
    lambda scratch: (
        [text.replace(b"\t", b",") for text in _build_tsv_files(scratch)] + [b'label,text\na,"x ""y"", z"\nb,w\n']
    ),
)
def _load_csv(data: bytes, scratch: Path) -> None:
    _load_corpus(data, scratch, "rows.csv", "classify")


def _build_jsonl_files(scratch: Path) -> list[bytes]:
    rows = [
        {"text": f"the people {index}", "label": "ab"[index % 2], "more": [index, None, 1.5]} for index in range(12)
    ]
    return ["".join(json.dumps(row) + "\n" for row in rows).encode(), json.dumps(rows).encode()]


@register_fuzz_target("jsonl", _build_jsonl_files)
def _load_jsonl(data: bytes, scratch: Path) -> None:
    _load_corpus(data, scratch, "rows.jsonl", "classify")


def _build_document_files(scratch: Path) -> list[bytes]:
    rows = [{"document": TEXT + str(index), "summary": "peace"} for index in range(20)]
    return ["".join(json.dumps(row) + "\n" for row in rows).encode(), b'{"document": "a", "summaries": ["b", "c"]}\n']


@register_fuzz_target("documents", _build_document_files)
def _load_documents(data: bytes, scratch: Path) -> None:
    from headtohead.data.sources.summarization import load_summarization_corpus

    (scratch / "documents.jsonl").write_bytes(data)
    load_summarization_corpus(scratch / "documents.jsonl")


def _build_prompt_files(scratch: Path) -> list[bytes]:
    return [b'{"prompt": "the people", "continuation": "ask"}\n', b"prompt\tcontinuation\nwe\task\n", b"the people\n"]


@register_fuzz_target("prompts", _build_prompt_files)
def _read_prompts(data: bytes, scratch: Path) -> None:
    from headtohead.decoding_comparison.prompts import read_prompts

    for name in ("prompts.jsonl", "prompts.tsv", "prompts.csv", "prompts.txt"):
        (scratch / name).write_bytes(data)
        with contextlib.suppress(HeadToHeadError):
            read_prompts(str(scratch / name))
    read_prompts(str(scratch / "prompts.jsonl"))


def _build_score_files(scratch: Path) -> list[bytes]:
    rows = "".join(
        f"{variant},{seed},{example},{(seed + example) % 2}\n"
        for variant in ("a", "b")
        for seed in range(3)
        for example in range(4)
    )
    return [f"variant,seed,example,accuracy\n{rows}".encode(), b"variant;seed;loss\na;0;1.5\na;1;1.4\nb;0;1\nb;1;1.1\n"]


@register_fuzz_target("scores", _build_score_files)
def _judge_scores(data: bytes, scratch: Path) -> None:
    from headtohead.verdict.external_scores.judge_csv import judge_csv

    (scratch / "scores.csv").write_bytes(data)
    for metric in (None, "perplexity", "loss"):
        with contextlib.suppress(HeadToHeadError):
            [verdict.to_dict() for verdict in judge_csv(scratch / "scores.csv", metric=metric, equivalence_margin=0.01)]
    judge_csv(scratch / "scores.csv", equivalence_margin=0.01)


@register_fuzz_target(
    "design", lambda scratch: [b"1 0; 0 1; -1 -1", b"[[1, 0], [0, 1]]", b'{"keys": [[1, 0.5], [0, 1]]}']
)
def _design_query(data: bytes, scratch: Path) -> None:
    from headtohead.key_design import inputs, query_design

    (scratch / "keys.json").write_bytes(data)
    keys = inputs.read_matrix(scratch / "keys.json")
    if keys.size < 64:
        query_design.find_selecting_query(keys, 0).to_dict()
        query_design.find_query_for_weights(keys, [1 / len(keys)] * len(keys)).to_dict()
