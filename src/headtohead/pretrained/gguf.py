"""GGUF files: parse untrusted headers, and load files with a faster reader than the gguf package's.

The gguf reader creates several objects per vocabulary entry through a memory map, and transformers creates three
readers per model: 30 s for a 100 MB file. `use_fast_reader` exists because it slices lists in one pass and shares one
reader. If the gguf package changes its internals, its own reader is used. The header alone is enough to determine a
model's size. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from headtohead import safe_open
from headtohead.errors import ModelError

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
STRING_TYPE = 8
"""GGUF type id of strings"""
ARRAY_TYPE = 9
"""GGUF type id of arrays"""
SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""size of a scalar, by GGUF type id"""
MAX_ENTRIES = 1 << 32
"""upper bound on the length of strings and lists in a valid file"""
MAX_PARAMETERS_PER_BYTE = 8
"""upper bound; the densest quantization has about five"""


@dataclass(frozen=True)
class GGUFHeader:
    """The content of a GGUF header."""

    architecture: str
    tensor_sizes: dict[str, int]
    """number of elements by tensor name"""

    @property
    def num_parameters(self) -> int:
        return sum(self.tensor_sizes.values())


class _CorruptFileError(Exception):
    """The file is truncated or inconsistent."""


def read_gguf_header(path: Path) -> GGUFHeader:
    """Return the architecture and tensor sizes of a GGUF file. Raise ModelError if it is not GGUF or is corrupted."""
    with safe_open.open_file(path, safe_open.MAX_WEIGHTS_BYTES, follow_link=True) as file:
        if file.read(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file (it does not start with {MAGIC.decode()})")
        try:
            header = _parse_header(file)
        except (_CorruptFileError, struct.error, UnicodeDecodeError, OSError, RecursionError) as error:
            raise ModelError(f"{path} is corrupted or incomplete ({str(error) or 'the header is truncated'})") from None
    if header.num_parameters > MAX_PARAMETERS_PER_BYTE * path.stat().st_size:
        raise ModelError(
            f"{path} is corrupted or incomplete (the header declares more parameters than the file can hold)"
        )
    return header


def _parse_header(file: BinaryIO) -> GGUFHeader:
    """Read the architecture and the size of each tensor from a GGUF header; skip all other metadata."""
    version, num_tensors, num_metadata_entries = struct.unpack("<IQQ", file.read(20))
    if version not in SUPPORTED_VERSIONS:
        raise _CorruptFileError(f"unsupported version {version}; supported: {', '.join(map(str, SUPPORTED_VERSIONS))}")
    architecture = ""
    for _ in range(_check_num_entries(num_metadata_entries)):
        name, type_id = _read_string(file), _read_uint32(file)
        if name == "general.architecture" and type_id == STRING_TYPE:
            architecture = _read_string(file)
        else:
            _skip_value(file, type_id)
    tensor_sizes = {}
    for _ in range(_check_num_entries(num_tensors)):
        name, num_dims = _read_string(file), _read_uint32(file)
        if num_dims > 8:
            raise _CorruptFileError(f"a tensor has {num_dims} dimensions")
        shape = struct.unpack(f"<{num_dims}Q", file.read(8 * num_dims))
        tensor_sizes[name] = prod(shape)
        _skip_bytes(file, 12)  # type and offset
    return GGUFHeader(architecture, tensor_sizes)


def _read_uint32(file: BinaryIO) -> int:
    value: int = struct.unpack("<I", file.read(4))[0]
    return value


def _read_length(file: BinaryIO) -> int:
    """Read the length of a string or list from a GGUF header."""
    value: int = struct.unpack("<Q", file.read(8))[0]
    return _check_num_entries(value)


def _check_num_entries(count: int) -> int:
    """Return the length of a string or list, or the number of entries; raise _CorruptFileError if it is implausible."""
    if count > MAX_ENTRIES:
        raise _CorruptFileError(f"a list has {count} entries")
    return count


def _read_string(file: BinaryIO) -> str:
    """Read a length-prefixed string of less than 1 MB from a GGUF header."""
    length = _read_length(file)
    raw = file.read(length) if length < 1 << 20 else b""
    if len(raw) < length:
        raise _CorruptFileError("the header is truncated")
    return raw.decode()


def _skip_bytes(file: BinaryIO, num_bytes: int) -> None:
    """Skip bytes of a GGUF header and check that they exist, because later readers trust the header."""
    if num_bytes:
        file.seek(num_bytes - 1, 1)
        if not file.read(1):
            raise _CorruptFileError("the header is truncated")


def _skip_value(file: BinaryIO, type_id: int) -> None:
    """Skip one metadata value in a GGUF header: a string, an array or a scalar."""
    if type_id == STRING_TYPE:
        _skip_bytes(file, _read_length(file))
    elif type_id == ARRAY_TYPE:
        item_type_id, count = _read_uint32(file), _read_length(file)
        if item_type_id in SCALAR_BYTES:
            _skip_bytes(file, SCALAR_BYTES[item_type_id] * count)
        elif item_type_id == STRING_TYPE:
            for _ in range(count):  # a vocabulary has a hundred thousand entries
                _skip_bytes(file, _read_length(file))
        else:
            for _ in range(count):
                _skip_value(file, item_type_id)
    elif type_id in SCALAR_BYTES:
        _skip_bytes(file, SCALAR_BYTES[type_id])
    else:
        raise _CorruptFileError(f"unknown value type {type_id}")


@contextmanager
def use_fast_reader() -> Iterator[None]:
    """Make the gguf package use the reader below, once per file, and build its tensor name map once."""
    import gguf

    if not hasattr(gguf.GGUFReader, "_get_field_parts"):  # private: the fast reader overrides it
        yield
        return
    original_reader, original_name_map = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = lru_cache(_build_fast_reader_class(gguf))  # type: ignore[misc]
    gguf.get_tensor_name_map = lru_cache(original_name_map)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = original_reader, original_name_map  # type: ignore[misc]


def _build_fast_reader_class(gguf: Any) -> Any:
    """Return a subclass of gguf.GGUFReader that slices lists from a plain array."""
    import numpy as np

    value_types = gguf.GGUFValueType

    class FastReader(gguf.GGUFReader):  # type: ignore[misc]
        """GGUFReader with faster parsing of lists."""

        def _get_field_parts(self, orig_offs: Any, raw_type: Any) -> Any:
            """Return an array's items as views of the file, without one numpy call per item."""
            if value_types(raw_type) != value_types.ARRAY or self.byte_order == "S":
                return super()._get_field_parts(orig_offs, raw_type)
            header = [self._get(orig_offs, np.uint32), self._get(orig_offs + 4, np.uint64)]
            item_type, count, offset = value_types(int(header[0][0])), int(header[1][0]), orig_offs + 12
            plain_array = self.data.view(np.ndarray)
            items = []
            if item_type == value_types.STRING:
                raw = memoryview(plain_array)
                for _ in range(count):
                    start = offset + 8
                    offset = start + int.from_bytes(raw[offset:start], "little")
                    items.append(plain_array[start:offset])
            elif item_type in self.gguf_scalar_to_np:
                dtype = np.dtype(self.gguf_scalar_to_np[item_type])
                values = plain_array[offset : offset + dtype.itemsize * count].view(dtype)
                items, offset = [values[i : i + 1] for i in range(count)], offset + dtype.itemsize * count
            else:
                return super()._get_field_parts(orig_offs, raw_type)
            # The first two parts are the list's own header.
            return offset - orig_offs, header + items, list(range(2, 2 + count)), [value_types.ARRAY, item_type]

    return FastReader
