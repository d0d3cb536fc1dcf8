"""A teacher's work on disk: nothing is done twice, nothing is lost but the document being written."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from headtohead.atomic_io import lock_cache_folder
from headtohead.distillation.teacher_cache import (
    LOGITS_FILE,
    LOGITS_INDEX_FILE,
    TEXTS_FILE,
    CacheKey,
    TeacherCache,
    get_cache_root,
)
from headtohead.errors import RunFolderError
from headtohead.experiment.schemas import TeacherTextLine
from headtohead.progress import ProgressReporter
from headtohead.training.distillation_loss import compute_teacher_targets

WHOSE = CacheKey("a teacher", "abc", {"top_k": 5, "temperature": 2.0})


def _targets(seed: int, positions: int = 7, k: int = 5):
    logits = torch.randn(positions, 30, generator=torch.Generator().manual_seed(seed))
    return compute_teacher_targets(logits, k, 2.0)


def test_what_is_added_is_found_again_to_the_bit(tmp_path):
    cache = TeacherCache.open(WHOSE, tmp_path, is_writable=True)
    for seed in range(4):
        cache.add_text(TeacherTextLine(key=f"d{seed}", text=f"summary {seed}", ids=[seed]))
        cache.add_targets(f"d{seed}", _targets(seed, 3 + seed))
    again = TeacherCache.open(WHOSE, tmp_path)
    assert again.texts["d2"].text == "summary 2"
    for seed in (3, 0, 2):
        wanted = _targets(seed, 3 + seed)
        for found in (cache.targets([f"d{seed}"], [3 + seed]), again.targets([f"d{seed}"], [3 + seed])):
            assert torch.equal(found.ids, wanted.ids)
            assert torch.equal(found.log_probs, wanted.log_probs)
            assert torch.equal(found.other_log_prob, wanted.other_log_prob)
    assert len(again.targets(["d3"], [2])) == 2


def test_a_whole_vocabulary_leaves_no_rest(tmp_path):
    whose = CacheKey("a teacher", "abc", {"top_k": 30})
    cache = TeacherCache.open(whose, tmp_path, is_writable=True)
    cache.add_targets("d", _targets(0, k=30))
    assert torch.isneginf(cache.targets(["d"], [7]).other_log_prob).all()


def test_the_rest_of_a_kill_is_cut_off_and_work_goes_on(tmp_path):
    cache = TeacherCache.open(WHOSE, tmp_path, is_writable=True)
    for seed in range(3):
        cache.add_text(TeacherTextLine(key=f"d{seed}", text=str(seed)))
        cache.add_targets(f"d{seed}", _targets(seed))
    whole = (tmp_path / LOGITS_FILE).stat().st_size
    with (tmp_path / TEXTS_FILE).open("ab") as file:
        file.write(b'{"key": "d3", "te')
    with (tmp_path / LOGITS_FILE).open("ab") as file:
        file.write(b"\x00" * 50)  # a block whose line was not written
    reader = TeacherCache.open(WHOSE, tmp_path)
    assert len(reader.texts) == len(reader.block_locations) == 3
    again = TeacherCache.open(WHOSE, tmp_path, is_writable=True)
    assert (tmp_path / LOGITS_FILE).stat().st_size == whole
    again.add_text(TeacherTextLine(key="d3", text="3"))
    again.add_targets("d3", _targets(3))
    last = TeacherCache.open(WHOSE, tmp_path)
    assert [line.text for line in last.texts.values()] == ["0", "1", "2", "3"]
    assert torch.equal(last.targets(["d3"], [7]).log_probs, _targets(3).log_probs)
    assert torch.equal(last.targets(["d0"], [7]).log_probs, _targets(0).log_probs)


def test_the_work_of_another_teacher_or_with_other_settings_is_refused(tmp_path):
    TeacherCache.open(WHOSE, tmp_path, is_writable=True)
    with pytest.raises(RunFolderError, match=r"another teacher, a teacher \(weights abc\).*weights xyz"):
        TeacherCache.open(CacheKey("another", "xyz", WHOSE.settings), tmp_path)
    with pytest.raises(RunFolderError, match=r"other settings \(temperature\)"):
        TeacherCache.open(CacheKey("a teacher", "abc", {"top_k": 5, "temperature": 1.0}), tmp_path)


def test_a_file_that_is_too_short_is_refused(tmp_path):
    cache = TeacherCache.open(WHOSE, tmp_path, is_writable=True)
    cache.add_targets("d", _targets(0))
    (tmp_path / LOGITS_FILE).write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"shorter than logits\.jsonl declares"):
        TeacherCache.open(WHOSE, tmp_path)


def test_the_place_is_named_by_all_that_the_work_depends_on(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert get_cache_root() == tmp_path / "headtohead" / "teachers"
    places = {
        TeacherCache.open(one).folder
        for one in (WHOSE, CacheKey("other name", "abc", WHOSE.settings), CacheKey("a teacher", "xyz", WHOSE.settings))
    }
    assert len(places) == 2  # a name is no content


WRITER = """
import sys, time
from pathlib import Path
from headtohead.atomic_io import lock_cache_folder
from headtohead.distillation.teacher_cache import CacheKey, TeacherCache
from headtohead.experiment.schemas import TeacherTextLine
folder = Path(sys.argv[1])
with lock_cache_folder(folder):
    cache = TeacherCache.open(CacheKey("t", "abc", {"top_k": 5}), folder, is_writable=True)
    for at in range(100000):
        if f"d{at}" not in cache.texts:
            cache.add_text(TeacherTextLine(key=f"d{at}", text="word " * 20000, ids=[at]))
            print(at, flush=True)
"""


def test_a_kill_loses_no_more_than_the_document_being_written(tmp_path):
    told = 0
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(5):
            told = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        rest = process.stdout.read().split()
        process.stdout.close()
        told = max([told, *map(int, rest)])
        there = TeacherCache.open(CacheKey("t", "abc", {"top_k": 5}), tmp_path, is_writable=True).texts
        assert {f"d{at}" for at in range(told + 1)} <= set(there)
        assert all(line.text == "word " * 20000 for line in there.values())
        lines = (tmp_path / TEXTS_FILE).read_text().splitlines()
        assert len({json.loads(line)["key"] for line in lines}) == len(lines)  # nothing was done twice


def test_a_second_process_waits(tmp_path):
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom headtohead.atomic_io import lock_cache_folder\n"
        "with lock_cache_folder(Path(sys.argv[1])):\n    print('in', flush=True)\n    time.sleep(0.5)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    began = time.monotonic()
    with lock_cache_folder(tmp_path):
        assert time.monotonic() - began > 0.2
    process.wait()
    process.stdout.close()


def test_the_pace_counts_only_what_was_done_now():
    told = []
    clock = ProgressReporter("writing", 10, told.append, completed=4)
    clock.step()
    clock.step(5)
    assert (told[0].completed, told[0].seconds_left) == (4, None)
    assert told[1].seconds_left is not None
    assert told[-1].seconds_left == 0
    assert str(told[1]).startswith("writing: 5 of 10, about 0.0 s left")
    assert str(told[-1]) == "writing: 10 of 10"
    assert LOGITS_INDEX_FILE.endswith("jsonl")
