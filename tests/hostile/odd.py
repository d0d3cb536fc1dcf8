"""Corrupt valid inputs: delete, duplicate and replace bytes, and replace JSON values."""

import copy
import json
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# The same tries on every machine and every day; the fuzzers (make fuzz) are for what is new.
tried = settings(
    derandomize=True, database=None, deadline=None, max_examples=20, suppress_health_check=list(HealthCheck)
)

PIECES = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\n",
    b'"',
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"NaN",
    b"[" * 3000,
    b'{"a":' * 600,
    b"9" * 5000,
    b'"\\ud800"',
    b'"../../../etc/passwd"',
    b"/dev/zero",
    b"a." * 400,
    b" " * 3000,
    b"\x00" * 9,
    b"\xff" * 8,
]
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    2**62,
    10**30,
    1e308,
    -0.5,
    "",
    "x",
    "../../../etc/passwd",
    "/dev/zero",
    "\ud800",
    "<script>",
    [],
    {},
    [[]],
    [None],
    {"": None},
    ["x"] * 50,
]


@st.composite
def spoiled(draw: st.DrawFn, sound: bytes) -> bytes:
    """Return the input with one to three spans deleted, duplicated or replaced."""
    data = sound
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.sampled_from([0, 0, 1, 2, 8, 60, 2000])))
        piece = draw(st.sampled_from(PIECES) | st.just(data[begin:end] * 2) | st.binary(max_size=8))
        data = data[:begin] + piece + data[end:]
    return data


@st.composite
def other_values(draw: st.DrawFn, sound: Any) -> bytes:
    """Return JSON with one or two values, at any depth, replaced, renamed or removed."""
    value = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 2))):
        at, holder, key = value, None, None
        for _ in range(draw(st.integers(1, 6))):
            if isinstance(at, dict) and at:
                holder, key = at, draw(st.sampled_from(sorted(at)))
            elif isinstance(at, list) and at:
                holder, key = at, draw(st.integers(0, len(at) - 1))
            else:
                break
            at = holder[key]
        if holder is None:
            value = draw(st.sampled_from(VALUES))
            continue
        values = draw(st.sampled_from(["replace", "replace", "replace", "take", "rename"]))
        if values == "take":
            del holder[key]
        elif values == "rename" and isinstance(holder, dict):
            holder[draw(st.sampled_from(["", "x", "../../x", "9" * 400, "\ud800"]))] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return json.dumps(value).encode()
