"""GGUF files: their head, read in a moment and without trusting it; and a reader that does not dawdle.

The library's own reader makes several objects of every entry of the vocabulary, through a memory map, and transformers
makes three readers for one model: half a minute for a file of 100 MB. To know whether a file is a model and how large
it would be, the head alone is enough; and for loading there is a reader that cuts lists in one go, used for all three.
The format is described at https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from headtohead.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
# Bytes of a value by its type: numbers of 1 to 8 bytes, and true or false.
WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
LONGEST = 1 << 32
"""no text or list of a sound file is longer"""


MOST_IN_A_BYTE = 8
"""numbers; the closest packing there is has five"""


@dataclass(frozen=True)
class Head:
    """What the head says."""

    architecture: str
    tensors: dict[str, int]
    """numbers in each tensor, by name"""

    @property
    def parameters(self) -> int:
        return sum(self.tensors.values())


class _BrokenError(Exception):
    """The file ends or contradicts itself."""


def read_head(path: Path) -> Head:
    """The architecture and the sizes of the tensors; an error when this is no GGUF file, or a damaged one."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path}: is not a GGUF file (it does not begin with {MAGIC.decode()})")
        try:
            head = _head(file)
        except (_BrokenError, struct.error, UnicodeDecodeError, OSError, RecursionError) as error:
            raise ModelError(f"{path}: is damaged or incomplete ({str(error) or 'its head ends too early'})") from None
    if head.parameters > MOST_IN_A_BYTE * path.stat().st_size:
        raise ModelError(f"{path}: is damaged or incomplete (its head speaks of more numbers than it has room for)")
    return head


def _head(file: BinaryIO) -> Head:
    version, tensors, entries = struct.unpack("<IQQ", file.read(20))
    if version not in VERSIONS:
        raise _BrokenError(f"version {version}; versions {VERSIONS[0]} and {VERSIONS[1]} can be read")
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
            raise _BrokenError(f"a tensor of {axes} axes")
        shape = struct.unpack(f"<{axes}Q", file.read(8 * axes))
        found[name] = prod(shape)
        _pass(file, 12)  # its type and its place
    return Head(architecture, found)


def _number(file: BinaryIO) -> int:
    value: int = struct.unpack("<I", file.read(4))[0]
    return value


def _long(file: BinaryIO) -> int:
    value: int = struct.unpack("<Q", file.read(8))[0]
    return _sane(value)


def _sane(count: int) -> int:
    if count > LONGEST:
        raise _BrokenError(f"a list of {count} entries")
    return count


def _text(file: BinaryIO) -> str:
    length = _long(file)
    raw = file.read(length) if length < 1 << 20 else b""
    if len(raw) < length:
        raise _BrokenError("its head ends too early")
    return raw.decode()


def _pass(file: BinaryIO, count: int) -> None:
    """Go on behind so many bytes, which must be there: those who read the file afterwards believe its head."""
    if count:
        file.seek(count - 1, 1)
        if not file.read(1):
            raise _BrokenError("its head ends too early")


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        _pass(file, _long(file))
    elif kind == ARRAY:
        inner, count = _number(file), _long(file)
        if inner in WIDTHS:
            _pass(file, WIDTHS[inner] * count)
        elif inner == STRING:
            for _ in range(count):  # a vocabulary: a hundred thousand of them
                _pass(file, _long(file))
        else:
            for _ in range(count):
                _skip(file, inner)
    elif kind in WIDTHS:
        _pass(file, WIDTHS[kind])
    else:
        raise _BrokenError(f"a value of the unknown type {kind}")


@contextmanager
def quick_reading() -> Iterator[None]:
    """Inside, the gguf library reads with the reader below, once a file, and makes its table of names once."""
    import gguf

    slow, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = lru_cache(_quick_reader(gguf))  # type: ignore[misc]
    gguf.get_tensor_name_map = lru_cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = slow, names  # type: ignore[misc]


def _quick_reader(gguf: Any) -> Any:
    """The library's reader, with lists cut from a plain array."""
    import numpy as np

    kinds = gguf.GGUFValueType

    class Quick(gguf.GGUFReader):  # type: ignore[misc]
        """As it is, but for lists."""

        def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> Any:
            if kinds(raw_type) != kinds.ARRAY or self.byte_order == "S":
                return super()._get_field_parts(orig_offs, raw_type)
            head = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            kind, count, place = kinds(int(head[0][0])), int(head[1][0]), orig_offs + 12
            plain = self.data.view(np.ndarray)
            found = []
            if kind == kinds.STRING:
                raw = memoryview(plain)
                for _ in range(count):
                    begin = place + 8
                    place = begin + int.from_bytes(raw[place:begin], "little")
                    found.append(plain[begin:place])
            elif kind in self.gguf_scalar_to_np:
                dtype = np.dtype(self.gguf_scalar_to_np[kind])
                values = plain[place : place + dtype.itemsize * count].view(dtype)
                found, place = [values[i : i + 1] for i in range(count)], place + dtype.itemsize * count
            else:
                return super()._get_field_parts(orig_offs, raw_type)
            # What follows the list's own two parts is its entries.
            return place - orig_offs, head + found, list(range(2, 2 + count)), [kinds.ARRAY, kind]

    return Quick
