"""What is kept between runs: a search's journal, a teacher's work, tokens on disk."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from .runs import file_of
from .sample_experiment import build_raw_experiment, chain_lines, replace_file, strip_checksum, write_corpus
from .target import fuzz_target


def _searched(scratch: Path) -> Any:
    from headtohead.experiment import loading

    raw = build_raw_experiment(write_corpus(scratch / "corpus-False"))
    return loading.build_experiment(
        {**raw, "search": {"space": {"training.batch_size": [2, 4]}, "seeds": 1}}, "searched"
    )


def _journals(scratch: Path) -> list[bytes]:
    from headtohead.search.points import compute_search_identity

    lines = [
        {"event": "settings", "digest": "abc", "seeds": 2, "variants": ["winner"], "versions": {"python": "3.11"}},
        {"event": "search", "schema_version": 2, "identity": compute_search_identity(_searched(scratch))},
        {"event": "point", "point": 0, "settings": {"training.batch_size": 2}},
        {"event": "point", "point": 1, "settings": {"training.batch_size": 4}},
        {"event": "pruned", "point": 1, "decision": {"deficit": 0.5, "threshold": 0.1, "seeds": 1}},
        {"event": "trial", "point": 0, "seed": 1000, "seconds": 1.5},
        {"event": "winner", "point": 0, "budget": None},
        {"event": "run", "status": "started", "variant": "winner", "seed": 0, "digest": "", "message": ""},
        {"event": "analysis", "seeds": {"baseline": 2, "winner": 2}, "level": 0.95},
    ]
    return ["".join(json.dumps(line) + "\n" for line in lines[:upto]).encode() for upto in (3, len(lines))]


@fuzz_target("journal", _journals)
def _journal(data: bytes, scratch: Path) -> None:
    from headtohead.experiment.journal import Journal
    from headtohead.search import points

    experiment, folder = _searched(scratch), scratch / "searched"
    with replace_file(folder / "journal.jsonl", chain_lines(data)):
        lines = points.read_search_events(Journal(folder), points.compute_search_identity(experiment))
        points.read_winner_settings(experiment, folder)
        points.load_points(folder / "search", experiment.search, lines, "perplexity")
        points.read_elapsed_seconds(lines)


TEACHER = ("texts.jsonl", "logits.jsonl", "teacher.json", "logits.bin")


def _whose() -> Any:
    from headtohead.distillation.teacher_cache import CacheKey

    return CacheKey("teacher", "abc", {"top_k": 2})


def _teachers(scratch: Path) -> list[bytes]:

    from headtohead.distillation.teacher_cache import TeacherCache
    from headtohead.experiment.schemas import TeacherTextLine
    from headtohead.training.distillation_loss import TeacherTargets

    folder = scratch / "teacher"
    shutil.rmtree(folder, ignore_errors=True)  # the same each time
    cache = TeacherCache.open(_whose(), folder, is_writable=True)
    cache.add_text(TeacherTextLine(key="one", ids=[1, 2], text="peace", stop_reason="token", seconds=0.5))
    cache.add_targets("one", TeacherTargets(torch.ones(3, 2, dtype=torch.long), -torch.ones(3, 2), -torch.ones(3)))
    return [bytes([index]) + strip_checksum((folder / name).read_bytes()) for index, name in enumerate(TEACHER)]


@fuzz_target("teacher", _teachers)
def _teacher(data: bytes, scratch: Path) -> None:
    from headtohead.distillation.teacher_cache import TeacherCache

    if not (scratch / "teacher" / "logits.bin").is_file():
        _teachers(scratch)
    name, content = file_of(data, TEACHER)
    with replace_file(scratch / "teacher" / name, content):
        cache = TeacherCache.open(_whose(), scratch / "teacher")
        for key, (_, positions) in cache.block_locations.items():
            cache.targets([key], [min(positions, 4)])


def _stored(scratch: Path) -> Any:
    from headtohead.config import data

    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    return data.DataConfig.model_validate({"source": str(write_corpus(scratch / "stored"))})


def _stores(scratch: Path) -> list[bytes]:
    from headtohead.data import token_cache

    token_cache.load_tokenized_corpus(_stored(scratch), has_labels=False, on_progress=lambda pace: None)
    folder = _store_folder(scratch)
    return [bytes([index]) + path.read_bytes() for index, path in enumerate(sorted(folder.glob("[a-z]*")))]


def _store_folder(scratch: Path) -> Path:
    from headtohead.data import token_cache

    data = _stored(scratch)
    return (
        token_cache.get_cache_folder("corpora")
        / token_cache._hash_json(token_cache.build_cache_key(data, False, Path()))[:24]
    )


@fuzz_target("store", _stores)
def _store(data: bytes, scratch: Path) -> None:
    """A store that is not what was written is made anew."""
    from headtohead.data import token_cache

    folder = _store_folder(scratch)
    if not folder.is_dir():
        _stores(scratch)
    name, content = file_of(data, sorted(path.name for path in folder.glob("[a-z]*")))
    (folder / name).write_bytes(content)
    corpus = token_cache.load_tokenized_corpus(_stored(scratch), has_labels=False, on_progress=lambda pace: None)
    assert len(corpus.corpus.train.rows) == 60
