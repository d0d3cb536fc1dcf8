"""Freed memory is retained for the next step, and returned to the system before a peak is measured."""

import json
import subprocess
import sys

import pytest

from headtohead.training.hardware import process_memory

CODE = """
import ctypes, json, resource
from headtohead.training.hardware import process_memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
SIZE = 20_000_000

def step():
    blocks = [library.malloc(SIZE) for _ in range(5)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in reversed(blocks):
        library.free(ctypes.c_void_p(block))

def count_page_faults():
    step(), step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def measure_after_reset():
    process_memory.reset_peak_memory()
    return process_memory.read_peak_memory_bytes()

measured = {"pages before": count_page_faults(), "peak before": measure_after_reset()}
process_memory.retain_freed_memory()
measured |= {"pages after": count_page_faults(), "peak after": measure_after_reset()}
print(json.dumps(measured))
"""


@pytest.mark.skipif(process_memory._load_glibc() is None, reason="needs the mallopt of glibc")
def test_freed_memory_is_retained_between_steps_and_released_by_a_reset():
    """Runs in a child process, because malloc options cannot be reset."""
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    measured = json.loads(result.stdout)
    assert measured["pages before"] > 10_000  # 100 MB are more than glibc retains by default
    assert measured["pages after"] < 100
    assert measured["peak after"] < measured["peak before"] + 20e6
