"""Memory that is freed is kept for the next step, and given back before a peak is measured."""

import json
import subprocess
import sys

import pytest

from headtohead.training import memory

CODE = """
import ctypes, json, resource
from headtohead.training import memory

library = ctypes.CDLL(None)
library.malloc.restype = ctypes.c_void_p
SIZE = 20_000_000

def step():
    blocks = [library.malloc(SIZE) for _ in range(5)]
    for block in blocks:
        ctypes.memset(block, 1, SIZE)
    for block in reversed(blocks):
        library.free(ctypes.c_void_p(block))

def pages_of_a_step():
    step(), step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    step()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    memory.reset_peak()
    return memory.read_peak_bytes()

found = {"pages before": pages_of_a_step(), "held before": held()}
memory.retain_freed_memory()
found |= {"pages after": pages_of_a_step(), "held after": held()}
print(json.dumps(found))
"""


@pytest.mark.skipif(memory._load_glibc() is None, reason="the C library is not glibc, which alone can be told to")
def test_a_step_takes_no_fresh_pages_and_a_mark_gives_back_what_was_kept():
    """In a process of its own: what is told to the C library cannot be taken back."""
    said = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    found = json.loads(said.stdout)
    assert found["pages before"] > 10_000  # 100 MB are more than the C library keeps by itself
    assert found["pages after"] < 100
    assert found["held after"] < found["held before"] + 20e6
