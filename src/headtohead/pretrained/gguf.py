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
SUPPORTED_VERSIONS = (2, 3)
STRING_TYPE, ARRAY_TYPE = 8, 9
# Bytes of a value by its type: numbers of 1 to 8 bytes, and true or false.
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
MAX_LENGTH = 1 << 32
"""no text or list of a sound file is longer"""


MAX_PARAMETERS_PER_BYTE = 8
"""numbers; the closest packing there is has five"""


@dataclass(frozen=True)
class GGUFHeader:
    """What the head says."""

    architecture: str
    tensors: dict[str, int]
    """numbers in each tensor, by name"""

    @property
    def parameters(self) -> int:
        return sum(self.tensors.values())


class _CorruptFileError(Exception):
    """The file ends or contradicts itself."""


def read_header(path: Path) -> GGUFHeader:
    """The architecture and the sizes of the tensors; an error when this is no GGUF file, or a damaged one."""
    with path.open("rb") as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path}: is not a GGUF file (it does not begin with {MAGIC.decode()})")
        try:
            head = _parse_header(file)
        except (_CorruptFileError, struct.error, UnicodeDecodeError, OSError, RecursionError) as error:
            raise ModelError(f"{path}: is damaged or incomplete ({str(error) or 'its head ends too early'})") from None
    if head.parameters > MAX_PARAMETERS_PER_BYTE * path.stat().st_size:
        raise ModelError(f"{path}: is damaged or incomplete (its head speaks of more numbers than it has room for)")
    return head


def _parse_header(file: BinaryIO) -> GGUFHeader:
    version, tensors, entries = struct.unpack("<IQQ", file.read(20))
    if version not in SUPPORTED_VERSIONS:
        raise _CorruptFileError(
            f"version {version}; versions {SUPPORTED_VERSIONS[0]} and {SUPPORTED_VERSIONS[1]} can be read"
        )
    architecture = ""
    for _ in range(_check_length(entries)):
        name, kind = _read_string(file), _read_uint32(file)
        if name == "general.architecture" and kind == STRING_TYPE:
            architecture = _read_string(file)
        else:
            _skip_value(file, kind)
    found = {}
    for _ in range(_check_length(tensors)):
        name, axes = _read_string(file), _read_uint32(file)
        if axes > 8:
            raise _CorruptFileError(f"a tensor of {axes} axes")
        shape = struct.unpack(f"<{axes}Q", file.read(8 * axes))
        found[name] = prod(shape)
        _skip_bytes(file, 12)  # its type and its place
    return GGUFHeader(architecture, found)


def _read_uint32(file: BinaryIO) -> int:
    value: int = struct.unpack("<I", file.read(4))[0]
    return value


def _read_length(file: BinaryIO) -> int:
    value: int = struct.unpack("<Q", file.read(8))[0]
    return _check_length(value)


def _check_length(count: int) -> int:
    if count > MAX_LENGTH:
        raise _CorruptFileError(f"a list of {count} entries")
    return count


def _read_string(file: BinaryIO) -> str:
    length = _read_length(file)
    raw = file.read(length) if length < 1 << 20 else b""
    if len(raw) < length:
        raise _CorruptFileError("its head ends too early")
    return raw.decode()


def _skip_bytes(file: BinaryIO, num_bytes: int) -> None:
    """Go on behind so many bytes, which must be there: those who read the file afterwards believe its head."""
    if num_bytes:
        file.seek(num_bytes - 1, 1)
        if not file.read(1):
            raise _CorruptFileError("its head ends too early")


def _skip_value(file: BinaryIO, value_type: int) -> None:
    if value_type == STRING_TYPE:
        _skip_bytes(file, _read_length(file))
    elif value_type == ARRAY_TYPE:
        inner, count = _read_uint32(file), _read_length(file)
        if inner in SCALAR_BYTES:
            _skip_bytes(file, SCALAR_BYTES[inner] * count)
        elif inner == STRING_TYPE:
            for _ in range(count):  # a vocabulary: a hundred thousand of them
                _skip_bytes(file, _read_length(file))
        else:
            for _ in range(count):
                _skip_value(file, inner)
    elif value_type in SCALAR_BYTES:
        _skip_bytes(file, SCALAR_BYTES[value_type])
    else:
        raise _CorruptFileError(f"a value of the unknown type {value_type}")


@contextmanager
def use_fast_reader() -> Iterator[None]:
    """Inside, the gguf library reads with the reader below, once a file, and makes its table of names once."""
    import gguf

    slow, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = lru_cache(_build_fast_reader_class(gguf))  # type: ignore[misc]
    gguf.get_tensor_name_map = lru_cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = slow, names  # type: ignore[misc]


def _build_fast_reader_class(gguf: Any) -> Any:
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
