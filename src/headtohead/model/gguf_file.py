"""The head of a GGUF file: what it holds, read in a moment and without trusting it.

The library's own reader makes an object of every entry of the vocabulary, which takes seconds; to know whether a file is
a model and how large it would be in memory, the head alone is enough. The format is described at
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

from ..errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# Bytes of a value by its type: numbers of 1 to 8 bytes, and true or false.
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
LONGEST = 1 << 32
"""no text or list of a sound file is longer"""


@dataclass(frozen=True)
class Head:
    """What the head says."""

    architecture: str
    tensors: dict[str, int]
    """numbers in each tensor, by name"""

    @property
    def parameters(self) -> int:
        return sum(self.tensors.values())


class _Broken(Exception):
    """The file ends or contradicts itself."""


def read_head(path: Path) -> Head:
    """The architecture and the sizes of the tensors; an error when this is no GGUF file, or a damaged one."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path}: is not a GGUF file (it does not begin with {MAGIC.decode()})")
        try:
            return _head(file)
        except (_Broken, struct.error, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: is damaged or incomplete ({error or 'its head ends too early'})") from None


def _head(file: BinaryIO) -> Head:
    version, tensors, entries = struct.unpack("<IQQ", file.read(20))
    if version not in VERSIONS:
        raise _Broken(f"version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} can be read")
    architecture = ""
    for _ in range(_sane(entries)):
        name, kind = _text(file), _number(file)
        if name == "general.architecture" and kind == STRING:
            architecture = _text(file)
        else:
            _skip(file, kind)
    found = {}
    for _ in range(_sane(tensors)):
        name, axes = _text(file), _number(file)
        if axes > 8:
            raise _Broken(f"a tensor of {axes} axes")
        shape = struct.unpack(f"<{axes}Q", file.read(8 * axes))
        found[name] = prod(shape)
        file.seek(12, 1)  # its type and its place
    return Head(architecture, found)


def _number(file: BinaryIO) -> int:
    value: int = struct.unpack("<I", file.read(4))[0]
    return value


def _long(file: BinaryIO) -> int:
    value: int = struct.unpack("<Q", file.read(8))[0]
    return _sane(value)


def _sane(count: int) -> int:
    if count > LONGEST:
        raise _Broken(f"a list of {count} entries")
    return count


def _text(file: BinaryIO) -> str:
    length = _long(file)
    raw = file.read(length) if length < 1 << 20 else b""
    if len(raw) < length:
        raise _Broken("its head ends too early")
    return raw.decode()


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        file.seek(_long(file), 1)
    elif kind == ARRAY:
        inner, count = _number(file), _long(file)
        if inner in WIDTHS:
            file.seek(WIDTHS[inner] * count, 1)
        else:
            for _ in range(count):
                _skip(file, inner)
    elif kind in WIDTHS:
        file.seek(WIDTHS[kind], 1)
    else:
        raise _Broken(f"a value of the unknown type {kind}")
