"""Fuzz targets for files that persist between runs: search journals, teacher caches, token caches."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from .runs import select_file
from .sample_experiment import (
    build_raw_experiment,
    chain_journal_checksums,
    replace_file,
    strip_checksums,
    write_corpus,
)
from .target import register_fuzz_target


def _build_search_experiment(scratch: Path) -> Any:
    from headtohead.experiment import loading

    raw = build_raw_experiment(write_corpus(scratch / "corpus-False"))
    return loading.build_experiment(
        {**raw, "search": {"space": {"training.batch_size": [2, 4]}, "seeds": 1}}, "searched"
    )


def _build_journals(scratch: Path) -> list[bytes]:
    from headtohead.search.search_journal import compute_search_identity

    lines = [
        {"event": "settings", "digest": "abc", "seeds": 2, "variants": ["winner"], "versions": {"python": "3.11"}},
        {
            "event": "search",
            "schema_version": 2,
            "identity": compute_search_identity(_build_search_experiment(scratch)),
        },
        {"event": "point", "point": 0, "settings": {"training.batch_size": 2}},
        {"event": "point", "point": 1, "settings": {"training.batch_size": 4}},
        {"event": "pruned", "point": 1, "decision": {"deficit": 0.5, "threshold": 0.1, "seeds": 1}},
        {"event": "trial", "point": 0, "seed": 1000, "seconds": 1.5},
        {"event": "winner", "point": 0, "budget": None},
        {"event": "run", "status": "started", "variant": "winner", "seed": 0, "digest": "", "message": ""},
        {"event": "analysis", "seeds": {"baseline": 2, "winner": 2}, "level": 0.95},
    ]
    return ["".join(json.dumps(line) + "\n" for line in lines[:num_lines]).encode() for num_lines in (3, len(lines))]


@register_fuzz_target("journal", _build_journals)
def _read_journal(data: bytes, scratch: Path) -> None:
    from headtohead.experiment.journal import Journal
    from headtohead.search import points, search_journal

    experiment, folder = _build_search_experiment(scratch), scratch / "searched"
    with replace_file(folder / "journal.jsonl", chain_journal_checksums(data)):
        events = search_journal.read_search_events(Journal(folder), search_journal.compute_search_identity(experiment))
        search_journal.read_winner_settings(experiment, folder)
        points.load_points(folder / "search", experiment.search, events, "perplexity")
        search_journal.read_elapsed_seconds(events)


TEACHER_CACHE_FILES = ("texts.jsonl", "logits.jsonl", "teacher.json", "logits.bin")


def _build_teacher_cache_key() -> Any:
    from headtohead.distillation.teacher_cache import TeacherCacheKey

    return TeacherCacheKey("teacher", "abc", {"top_k": 2})


def _build_teacher_caches(scratch: Path) -> list[bytes]:
    from headtohead.distillation.teacher_cache import TeacherCache
    from headtohead.experiment.schemas import TeacherTextLine
    from headtohead.training.losses.distillation_loss import TeacherTargets

    folder = scratch / "teacher"
    shutil.rmtree(folder, ignore_errors=True)  # so that every call writes the same files
    cache = TeacherCache.open(_build_teacher_cache_key(), folder, is_writable=True)
    cache.add_text_line(TeacherTextLine(key="one", ids=[1, 2], text="peace", stop_reason="token", seconds=0.5))
    cache.add_targets("one", TeacherTargets(torch.ones(3, 2, dtype=torch.long), -torch.ones(3, 2), -torch.ones(3)))
    return [
        bytes([index]) + strip_checksums((folder / name).read_bytes()) for index, name in enumerate(TEACHER_CACHE_FILES)
    ]


@register_fuzz_target("teacher", _build_teacher_caches)
def _read_teacher_cache(data: bytes, scratch: Path) -> None:
    from headtohead.distillation.teacher_cache import TeacherCache

    if not (scratch / "teacher" / "logits.bin").is_file():
        _build_teacher_caches(scratch)
    name, content = select_file(data, TEACHER_CACHE_FILES)
    with replace_file(scratch / "teacher" / name, content):
        cache = TeacherCache.open(_build_teacher_cache_key(), scratch / "teacher")
        for key, (_, positions) in cache.block_locations.items():
            cache.read_targets([key], [min(positions, 4)])


def _build_data_config(scratch: Path) -> Any:
    from headtohead.config.tables import data

    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    return data.DataConfig.model_validate({"source": str(write_corpus(scratch / "stored"))})


def _build_token_caches(scratch: Path) -> list[bytes]:
    from headtohead.data import token_cache

    token_cache.load_tokenized_corpus(_build_data_config(scratch), has_labels=False, on_progress=lambda update: None)
    folder = _get_token_cache_folder(scratch)
    return [bytes([index]) + path.read_bytes() for index, path in enumerate(sorted(folder.glob("[a-z]*")))]


def _get_token_cache_folder(scratch: Path) -> Path:
    from headtohead.data import token_cache

    data = _build_data_config(scratch)
    return (
        token_cache.get_cache_folder("corpora")
        / token_cache._hash_json(token_cache.build_cache_key(data, False, Path()))[:24]
    )


@register_fuzz_target("store", _build_token_caches)
def _read_token_cache(data: bytes, scratch: Path) -> None:
    """A modified cache must be rebuilt."""
    from headtohead.data import token_cache

    folder = _get_token_cache_folder(scratch)
    if not folder.is_dir():
        _build_token_caches(scratch)
    name, content = select_file(data, sorted(path.name for path in folder.glob("[a-z]*")))
    (folder / name).write_bytes(content)
    corpus = token_cache.load_tokenized_corpus(
        _build_data_config(scratch), has_labels=False, on_progress=lambda update: None
    )
    assert len(corpus.corpus.train.rows) == 60
