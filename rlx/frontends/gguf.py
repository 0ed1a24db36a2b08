"""
A reader of GGUF model files over a memory map.

Source: the GGUF format specification, versions 2 and 3, little-endian. Opening a file reads its
header only; tensor data stay where they are, in the page cache. Every count and length that the
file states is checked against the bytes that are left before anything is done with it, so that a
damaged or hostile file costs no more than its own size.
"""

from __future__ import annotations

import difflib
import mmap
import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise, starmap
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from rlx.contract.quant import GGML_TYPES
from rlx.errors import RlxError
from rlx.frontends.mapped import MappedFile

T = TypeVar("T")
D = TypeVar("D")
_REQUIRED = object()

# The value types of fixed size, by their number in the file.
_SCALARS = {
    number: struct.Struct(f"<{code}")
    for number, code in zip((*range(8), 10, 11, 12), "BbHhIifBQqd", strict=True)
}
_BOOL, _STRING, _ARRAY = 7, 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]

_MAX_NAME_BYTES = 65535
_MAX_DIMS = 4
_MAX_ARRAY_DEPTH = 4
# The fewest bytes one of these takes in a file; bounds the counts that a file may state.
_MIN_PAIR_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 4 + 8
_MIN_STRING_BYTES = 8
_MIN_ARRAY_BYTES = 4 + 8


class TensorInfo(NamedTuple):
    """
    Where a tensor lies in the file, and what it is.

    `shape` is row-major, outermost dimension first (the file stores the innermost first);
    `offset` counts bytes from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    offset: int
    nbytes: int


class StringArray(Sequence[str]):
    """An array of strings from the metadata: kept as bytes, each decoded when asked for."""

    def __init__(self, where: str, begin: int, data: bytes, bounds: array[int]):
        self._where = where
        self._begin = begin
        self._data = data
        self._bounds = bounds

    def __len__(self) -> int:
        return len(self._bounds) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        positions = range(len(self))[index]
        if isinstance(positions, int):
            return self._decode(self._bounds[positions], self._bounds[positions + 1])
        return [self[position] for position in positions]

    def __iter__(self) -> Iterator[str]:
        data = self._data
        try:
            return iter([data[start + 8 : end].decode() for start, end in pairwise(self._bounds)])
        except UnicodeDecodeError:
            # Slower, and says where.
            return starmap(self._decode, pairwise(self._bounds))

    def _decode(self, start: int, end: int) -> str:
        """The string between two bounds, without the 8 bytes of its length in front."""
        try:
            return self._data[start + 8 : end].decode()
        except UnicodeDecodeError as error:
            raise RlxError(
                f"{self._where} at byte {self._begin + start + 8}: expected UTF-8 text, found "
                f"{error.object[:64]!r}; the file is damaged"
            ) from None


class _Cursor:
    """Reads the header from front to back; every way to fail names the file and the byte."""

    def __init__(self, path: Path, data: mmap.mmap, size: int):
        self.path = path
        self.data = data
        self.size = size
        self.position = 0

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        raise RlxError(f"{self.path}: at byte {self.position if at is None else at}: {message}")

    def cut_off(self, message: str, at: int | None = None) -> NoReturn:
        self.fail(
            f"{message}, but the file has only {self.size} bytes; it is cut off or damaged: "
            "download it again",
            at,
        )

    def need(self, nbytes: int, what: str) -> None:
        if nbytes > self.size - self.position:
            self.cut_off(f"expected {what} up to byte {self.position + nbytes}")

    def scalar(self, form: struct.Struct, what: str) -> Any:
        self.need(form.size, what)
        (value,) = form.unpack_from(self.data, self.position)
        self.position += form.size
        return value

    def count(self, what: str, least: int) -> int:
        """A number of things that take at least `least` bytes each."""
        at = self.position
        count: int = self.scalar(_U64, f"the number of {what}")
        if count * least > self.size - self.position:
            self.cut_off(f"expected {count} {what} of at least {least} bytes each", at)
        return count

    def text(self, what: str, limit: int | None = None) -> str:
        at = self.position
        length: int = self.scalar(_U64, f"the length of {what}")
        if limit is not None and not 0 < length <= limit:
            self.fail(f"expected {what} of 1 to {limit} bytes, found a length of {length}", at)
        self.need(length, what)
        raw = self.data[self.position : self.position + length]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            self.fail(f"expected {what} as UTF-8 text, found {raw[:64]!r}; the file is damaged")
        self.position += length
        return text

    def value(self, kind: int, key: str) -> object:
        what = f"the value of {key!r:.80}"
        if kind == _STRING:
            return self.text(what)
        if kind == _ARRAY:
            return self.array(key, 1)
        at = self.position
        value = self.scalar(_SCALARS[kind], what)
        if kind != _BOOL:
            return value
        if value > 1:
            self.fail(f"expected {what} to be 0 or 1, found {value}; the file is damaged", at)
        return value == 1

    def kind(self, what: str) -> int:
        at = self.position
        kind: int = self.scalar(_U32, f"the type of {what}")
        if kind not in _SCALARS and kind not in (_STRING, _ARRAY):
            self.fail(f"expected a value type from 0 to 12 for {what}, found {kind}", at)
        return kind

    def array(self, key: str, depth: int) -> StringArray | NDArray[Any] | list[object]:
        if depth > _MAX_ARRAY_DEPTH:
            self.fail(f"{key!r:.80} nests arrays more than {_MAX_ARRAY_DEPTH} deep")
        kind = self.kind(f"the elements of {key!r:.80}")
        if kind == _STRING:
            return self.strings(key)
        if kind == _ARRAY:
            count = self.count(f"arrays in {key!r:.80}", _MIN_ARRAY_BYTES)
            return [self.array(key, depth + 1) for _ in range(count)]
        form = _SCALARS[kind]
        count = self.count(f"elements of {key!r:.80}", form.size)
        start = self.position
        self.position += count * form.size
        values = np.frombuffer(self.data[start : self.position], np.dtype(form.format))
        if kind != _BOOL:
            return values
        if (values > 1).any():
            self.fail(f"expected only 0 and 1 in the booleans of {key!r:.80}", start)
        return values.view(np.bool_)

    def strings(self, key: str) -> StringArray:
        """Finds where the strings begin and end; their bytes are decoded when asked for."""
        count = self.count(f"strings in {key!r:.80}", _MIN_STRING_BYTES)
        start, last = self.position, self.size - _U64.size
        data, unpack = self.data, _U64.unpack_from
        bounds = _short_strings(data, start, count)
        position = start + bounds.pop()
        for index in range(len(bounds), count):
            if position > last:
                self.cut_off(f"expected {count} strings in {key!r:.80}, found {index}", start)
            bounds.append(position - start)
            position += 8 + unpack(data, position)[0]
        if position > self.size:
            ends = f"the last string of {key!r:.80} ends at byte {position}"
            self.cut_off(ends, start + bounds[-1])
        bounds.append(position - start)
        self.position = position
        return StringArray(f"{self.path}: {key!r:.80}", start, data[start:position], bounds)


def _short_strings(data: mmap.mmap, start: int, count: int) -> array[int]:
    """
    Return where strings begin, up to the first of 256 bytes or more, and where the next one does.

    The hot loop of opening a file: a vocabulary has 10^5 strings. So only the low byte of a length
    is looked at, and the others of all together afterwards.
    """
    begins = [start]
    position = start
    with suppress(IndexError):
        for _ in range(count):
            position += 8 + data[position]
            begins.append(position)
    places = np.array(begins[:-1], np.int64)
    places = places[places <= len(data) - _U64.size]
    high, file = np.zeros(len(places), np.uint8), np.frombuffer(data, np.uint8)
    for i in range(1, _U64.size):
        high |= file[places + i]
    long = np.flatnonzero(high)
    short = int(long[0]) if len(long) else len(places)
    return array("Q", (np.array(begins[: short + 1], np.int64) - start).tolist())


# What files of other kinds begin with, for a message that says what to do.
_OTHER_FORMATS: dict[bytes, str] = {
    b"PK\x03\x04": "a zip archive (a PyTorch checkpoint or .npz)",
    b"\x80\x02": "a pickle (an old PyTorch checkpoint)",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "a gzip archive: unpack it first",
    b"tjgg": "a GGML file from before GGUF: convert it with a current converter",
    b"version https://git-lfs": "a Git LFS pointer: fetch the file itself (git lfs pull)",
    b"<": "a web page: the download went wrong",
    b"\x08": "an ONNX model or another protobuf file",
    b"{": "a JSON file: name the folder that it is in, if that is a model's",
}


def _looks_like(head: bytes) -> str:
    if head[8:9] == b"{":
        return "a safetensors file: name the folder that it is in, if that is an encoder's"
    names = (name for magic, name in _OTHER_FORMATS.items() if head.startswith(magic))
    return next(names, "no format that rlx knows")


def _read_preamble(cursor: _Cursor) -> None:
    """The magic and the version."""
    head = cursor.data[:24]
    if head[:4] != b"GGUF":
        if b"GGUF".startswith(head):
            cursor.need(4, "the magic GGUF")
        cursor.fail(
            f"expected a GGUF model file, which begins with GGUF, found {head[:4]!r}: this looks "
            f"like {_looks_like(head)}"
        )
    cursor.position = 4
    version: int = cursor.scalar(_U32, "the format version")
    if version in (2, 3):
        return
    if version and version & 0xFFFF == 0:
        cursor.fail("this is a big-endian GGUF file; rlx reads little-endian ones: convert it", 4)
    cursor.fail(
        f"expected GGUF version 2 or 3, found {version}; convert the file with a current "
        "converter, or use a newer rlx",
        4,
    )


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for _ in range(count):
        at = cursor.position
        key = cursor.text("a metadata key", _MAX_NAME_BYTES)
        if key in metadata:
            cursor.fail(f"the metadata key {key!r:.80} is there twice; the file is damaged", at)
        metadata[key] = cursor.value(cursor.kind(f"{key!r:.80}"), key)
    return metadata


def _read_tensor(cursor: _Cursor, alignment: int) -> TensorInfo:
    """One entry of the tensor table; its offset still counts from the start of the data."""
    name = cursor.text("a tensor name", _MAX_NAME_BYTES)
    at = cursor.position
    rank: int = cursor.scalar(_U32, f"the rank of tensor {name!r:.80}")
    if rank > _MAX_DIMS:
        cursor.fail(f"expected at most {_MAX_DIMS} dimensions of {name!r:.80}, found {rank}", at)
    at = cursor.position
    dims: list[int] = [cursor.scalar(_U64, f"a dimension of {name!r:.80}") for _ in range(rank)]
    shape = tuple(reversed(dims))
    elements = prod(shape)
    if not 0 < elements < 1 << 63:
        cursor.fail(f"expected 1 to 2^63 - 1 elements in {name!r:.80}, found the shape {shape}", at)
    at = cursor.position
    number: int = cursor.scalar(_U32, f"the type of tensor {name!r:.80}")
    kind = GGML_TYPES.get(number)
    if kind is None:
        cursor.fail(
            f"tensor {name!r:.80} has the unknown element type {number}; expected one of "
            f"{', '.join(entry.name for entry in GGML_TYPES.values())}",
            at,
        )
    if (shape[-1] if shape else 1) % kind.elements:
        cursor.fail(
            f"tensor {name!r:.80} of shape {shape} and type {kind.name}: expected rows of whole "
            f"blocks of {kind.elements} elements",
            at,
        )
    at = cursor.position
    offset: int = cursor.scalar(_U64, f"the offset of tensor {name!r:.80}")
    if offset % alignment:
        cursor.fail(
            f"tensor {name!r:.80} is at the offset {offset}; expected a multiple of {alignment}", at
        )
    return TensorInfo(name, shape, kind.name, offset, elements // kind.elements * kind.nbytes)


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    found: dict[str, tuple[TensorInfo, int]] = {}
    for _ in range(count):
        at = cursor.position
        tensor = _read_tensor(cursor, alignment)
        if tensor.name in found:
            cursor.fail(f"tensor {tensor.name!r:.80} is there twice; the file is damaged", at)
        found[tensor.name] = (tensor, at)
    base = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for tensor, at in found.values():
        end = base + tensor.offset + tensor.nbytes
        if end > cursor.size:
            cursor.cut_off(
                f"tensor {tensor.name!r:.80} ({tensor.ggml_type}, shape {tensor.shape}) takes the "
                f"bytes {base + tensor.offset} to {end}",
                at,
            )
        tensors[tensor.name] = tensor._replace(offset=base + tensor.offset)
    _check_overlap(cursor, [(tensors[name], at) for name, (_, at) in found.items()])
    return tensors


def _check_overlap(cursor: _Cursor, entries: list[tuple[TensorInfo, int]]) -> None:
    entries.sort(key=lambda entry: entry[0].offset)
    for (before, _), (after, at) in pairwise(entries):
        if before.offset + before.nbytes > after.offset:
            cursor.fail(
                f"the tensors {before.name!r:.80} and {after.name!r:.80} overlap; the file is "
                "damaged",
                at,
            )


def _alignment(cursor: _Cursor, metadata: dict[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        cursor.fail(f"expected general.alignment to be a power of two, found {alignment!r:.80}")
    return alignment


class GgufFile:
    """
    An open GGUF file: `path`, `metadata` by key, `tensors` by name.

    Metadata values are `int`, `float`, `bool`, `str`, and for arrays `StringArray`, a numpy array,
    or a list of arrays; they stay good after `close`. `file` is the file itself, mapped.
    """

    def __init__(
        self,
        file: MappedFile,
        metadata: dict[str, object],
        tensors: dict[str, TensorInfo],
    ):
        self.path = file.path
        self.metadata = metadata
        self.tensors = tensors
        self._file: MappedFile | None = file

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Maps and checks the file. Raises `RlxError` if it is missing, damaged or not GGUF."""
        file = MappedFile.open(Path(path))
        cursor = _Cursor(file.path, file.data, len(file.data))
        _read_preamble(cursor)
        tensor_count = cursor.count("tensors", _MIN_TENSOR_BYTES)
        metadata = _read_metadata(cursor, cursor.count("metadata pairs", _MIN_PAIR_BYTES))
        tensors = _read_tensors(cursor, tensor_count, _alignment(cursor, metadata))
        return cls(file, metadata, tensors)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def file(self) -> MappedFile:
        """Raises `RlxError` after `close`."""
        if self._file is None:
            raise RlxError(f"{self.path}: expected an open file, but it was closed")
        return self._file

    def close(self) -> None:
        """Lets go of the map; it is unmapped when the last view of a tensor is gone too."""
        self._file = None

    @overload
    def value(self, key: str, kind: type[T]) -> T: ...
    @overload
    def value(self, key: str, kind: type[T], default: D) -> T | D: ...
    def value(self, key: str, kind: type[T], default: object = _REQUIRED) -> object:
        """
        The metadata value of `key`, checked to be of the Python type `kind`.

        An integer serves where a `float` is asked for. Raises `RlxError` for another type, and
        for a missing key when there is no default.
        """
        value = self.metadata.get(key, default)
        if value is _REQUIRED:
            raise RlxError(f"{self.path}: expected the metadata key {key!r:.80}, which is missing")
        if key not in self.metadata:
            return value
        # A bool is an int to Python, but not a count to us.
        if isinstance(value, kind) and (kind is not int or type(value) is int):
            return value
        if kind is float and type(value) is int:
            return float(value)
        raise RlxError(
            f"{self.path}: expected the metadata key {key!r:.80} to be of type {kind.__name__}, "
            f"found {type(value).__name__}"
        )

    def tensor(self, name: str) -> TensorInfo:
        """Raises `RlxError`, naming what is close to `name`, for a tensor that is not there."""
        info = self.tensors.get(name)
        if info is None:
            close = difflib.get_close_matches(name, self.tensors, n=3)
            hint = f"; close to it: {', '.join(close)}" if close else ""
            raise RlxError(f"{self.path}: expected a tensor {name!r:.80}, which is missing{hint}")
        return info

    def tensor_bytes(self, name: str) -> NDArray[np.uint8]:
        """The tensor's stored bytes: uint8 `[nbytes]`, a read-only view of the mapped file."""
        info = self.tensor(name)
        return np.frombuffer(self.file.data, np.uint8, info.nbytes, info.offset)
