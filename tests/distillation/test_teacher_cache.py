"""The teacher cache: nothing is computed twice, and an interrupt loses at most one document."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from headtohead.cache_folders import lock_cache_folder
from headtohead.distillation.teacher_cache import (
    LOGITS_FILE,
    LOGITS_INDEX_FILE,
    TEXTS_FILE,
    TeacherCache,
    TeacherCacheKey,
    get_cache_root,
)
from headtohead.errors import RunFolderError
from headtohead.experiment.schemas import TeacherTextLine
from headtohead.progress import ProgressReporter
from headtohead.training.losses.distillation_loss import compute_teacher_targets

CACHE_KEY = TeacherCacheKey("a teacher", "abc", {"top_k": 5, "temperature": 2.0})


def _make_targets(seed: int, num_positions: int = 7, top_k: int = 5):
    logits = torch.randn(num_positions, 30, generator=torch.Generator().manual_seed(seed))
    return compute_teacher_targets(logits, top_k, 2.0)


def test_texts_and_targets_are_read_back_exactly(tmp_path):
    cache = TeacherCache.open(CACHE_KEY, tmp_path, is_writable=True)
    for seed in range(4):
        cache.add_text_line(TeacherTextLine(key=f"d{seed}", text=f"summary {seed}", ids=[seed]))
        cache.add_targets(f"d{seed}", _make_targets(seed, 3 + seed))
    reopened_cache = TeacherCache.open(CACHE_KEY, tmp_path)
    assert reopened_cache.text_lines["d2"].text == "summary 2"
    for seed in (3, 0, 2):
        expected = _make_targets(seed, 3 + seed)
        for targets in (
            cache.read_targets([f"d{seed}"], [3 + seed]),
            reopened_cache.read_targets([f"d{seed}"], [3 + seed]),
        ):
            assert torch.equal(targets.token_ids, expected.token_ids)
            assert torch.equal(targets.log_probs, expected.log_probs)
            assert torch.equal(targets.other_log_prob, expected.other_log_prob)
    assert len(reopened_cache.read_targets(["d3"], [2])) == 2


def test_other_tokens_have_zero_probability_if_top_k_is_the_vocabulary(tmp_path):
    cache_key = TeacherCacheKey("a teacher", "abc", {"top_k": 30})
    cache = TeacherCache.open(cache_key, tmp_path, is_writable=True)
    cache.add_targets("d", _make_targets(0, top_k=30))
    assert torch.isneginf(cache.read_targets(["d"], [7]).other_log_prob).all()


def test_incomplete_data_after_a_kill_are_truncated(tmp_path):
    cache = TeacherCache.open(CACHE_KEY, tmp_path, is_writable=True)
    for seed in range(3):
        cache.add_text_line(TeacherTextLine(key=f"d{seed}", text=str(seed)))
        cache.add_targets(f"d{seed}", _make_targets(seed))
    complete_bytes = (tmp_path / LOGITS_FILE).stat().st_size
    with (tmp_path / TEXTS_FILE).open("ab") as file:
        file.write(b'{"key": "d3", "te')
    with (tmp_path / LOGITS_FILE).open("ab") as file:
        file.write(b"\x00" * 50)  # a block whose line was not written
    reader = TeacherCache.open(CACHE_KEY, tmp_path)
    assert len(reader.text_lines) == len(reader.block_locations) == 3
    reopened_cache = TeacherCache.open(CACHE_KEY, tmp_path, is_writable=True)
    assert (tmp_path / LOGITS_FILE).stat().st_size == complete_bytes
    reopened_cache.add_text_line(TeacherTextLine(key="d3", text="3"))
    reopened_cache.add_targets("d3", _make_targets(3))
    final_cache = TeacherCache.open(CACHE_KEY, tmp_path)
    assert [line.text for line in final_cache.text_lines.values()] == ["0", "1", "2", "3"]
    assert torch.equal(final_cache.read_targets(["d3"], [7]).log_probs, _make_targets(3).log_probs)
    assert torch.equal(final_cache.read_targets(["d0"], [7]).log_probs, _make_targets(0).log_probs)


def test_a_cache_of_a_different_teacher_or_with_different_settings_is_rejected(tmp_path):
    TeacherCache.open(CACHE_KEY, tmp_path, is_writable=True)
    with pytest.raises(RunFolderError, match=r"a different teacher, a teacher \(weights abc\).*weights xyz"):
        TeacherCache.open(TeacherCacheKey("another", "xyz", CACHE_KEY.settings), tmp_path)
    with pytest.raises(RunFolderError, match=r"different settings \(temperature\)"):
        TeacherCache.open(TeacherCacheKey("a teacher", "abc", {"top_k": 5, "temperature": 1.0}), tmp_path)


def test_a_truncated_logits_file_is_rejected(tmp_path):
    cache = TeacherCache.open(CACHE_KEY, tmp_path, is_writable=True)
    cache.add_targets("d", _make_targets(0))
    (tmp_path / LOGITS_FILE).write_bytes(b"")
    with pytest.raises(RunFolderError, match=r"shorter than logits\.jsonl declares"):
        TeacherCache.open(CACHE_KEY, tmp_path)


def test_cache_folder_depends_on_weights_and_settings_but_not_on_the_name(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert get_cache_root() == tmp_path / "headtohead" / "teachers"
    folders = {
        TeacherCache.open(cache_key).folder
        for cache_key in (
            CACHE_KEY,
            TeacherCacheKey("other name", "abc", CACHE_KEY.settings),
            TeacherCacheKey("a teacher", "xyz", CACHE_KEY.settings),
        )
    }
    assert len(folders) == 2


WRITER_SCRIPT = """
import sys, time
from pathlib import Path
from headtohead.cache_folders import lock_cache_folder
from headtohead.distillation.teacher_cache import TeacherCache, TeacherCacheKey
from headtohead.experiment.schemas import TeacherTextLine
folder = Path(sys.argv[1])
with lock_cache_folder(folder):
    cache = TeacherCache.open(TeacherCacheKey("t", "abc", {"top_k": 5}), folder, is_writable=True)
    for number in range(100000):
        if f"d{number}" not in cache.text_lines:
            cache.add_text_line(TeacherTextLine(key=f"d{number}", text="word " * 20000, ids=[number]))
            print(number, flush=True)
"""


def test_a_kill_loses_at_most_the_document_being_written(tmp_path):
    last_written = 0
    for _ in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER_SCRIPT, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for _ in range(5):
            last_written = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        process.wait()
        remaining_numbers = process.stdout.read().split()
        process.stdout.close()
        last_written = max([last_written, *map(int, remaining_numbers)])
        text_lines = TeacherCache.open(TeacherCacheKey("t", "abc", {"top_k": 5}), tmp_path, is_writable=True).text_lines
        assert {f"d{number}" for number in range(last_written + 1)} <= set(text_lines)
        assert all(line.text == "word " * 20000 for line in text_lines.values())
        lines = (tmp_path / TEXTS_FILE).read_text().splitlines()
        assert len({json.loads(line)["key"] for line in lines}) == len(lines)  # no text was generated twice


def test_a_second_process_waits_for_the_cache_lock(tmp_path):
    lock_script = (
        "import sys, time\nfrom pathlib import Path\nfrom headtohead.cache_folders import lock_cache_folder\n"
        "with lock_cache_folder(Path(sys.argv[1])):\n    print('in', flush=True)\n    time.sleep(0.5)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", lock_script, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    start_time = time.monotonic()
    with lock_cache_folder(tmp_path):
        assert time.monotonic() - start_time > 0.2
    process.wait()
    process.stdout.close()


def test_estimated_time_ignores_documents_that_were_already_cached():
    updates = []
    reporter = ProgressReporter("writing", 10, updates.append, completed=4)
    reporter.step()
    reporter.step(5)
    assert (updates[0].completed, updates[0].seconds_left) == (4, None)
    assert updates[1].seconds_left is not None
    assert updates[-1].seconds_left == 0
    assert str(updates[1]).startswith("writing: 5 of 10, about 0.0 s left")
    assert str(updates[-1]) == "writing: 10 of 10"
    assert LOGITS_INDEX_FILE.endswith("jsonl")
