"""
A reader of safetensors files over a memory map.

Source: the format's specification (huggingface/safetensors, README). Eight bytes give the length of
a header in JSON, which says of each tensor its dtype, its shape and where its bytes lie behind the
header. Opening a file reads the header only. What it states is checked against the bytes that are
there, so that a damaged or hostile file is one clear error.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError
from rlx.flow.source import WeightInfo, transposed
from rlx.frontends.mapped import MappedFile

_LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000
"""What the specification allows."""
_MAX_DIMS = 8

DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2,
    "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8,
}  # fmt: skip
"""The dtypes of the format, and the bytes of an element."""
FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
"""Those that a weight may have, and their names here."""


class TensorInfo(NamedTuple):
    """What a tensor is, and where its bytes lie, counted from the start of the file."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    nbytes: int


class SafetensorsFile:
    """An open file: its tensors by name, in the order of their bytes, and its metadata."""

    def __init__(self, file: MappedFile, tensors: dict[str, TensorInfo], metadata: dict[str, str]):
        self.file = file
        self.path = file.path
        self.tensors = tensors
        self.metadata = metadata

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """
        Map a file and read its header.

        Raises RlxError, with the path, for one that is missing, damaged, or not of this format.
        """
        file = MappedFile.open(Path(path), "safetensors")
        return cls(file, *_Header(file).read())

    def tensor(self, name: str) -> TensorInfo:
        """Return a tensor's description. Raises RlxError, with the nearest names, for none."""
        if name not in self.tensors:
            near = difflib.get_close_matches(name, self.tensors, n=3)
            hint = f"; close to it are {', '.join(map(repr, near))}" if near else ""
            raise RlxError(f"{self.path}: expected a tensor {name!r:.80}, which is missing{hint}")
        return self.tensors[name]

    def tensor_bytes(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes: a read-only view of the mapped file, no copy."""
        info = self.tensor(name)
        return np.frombuffer(self.file.data, np.uint8, info.nbytes, info.offset)


class _Header:
    """The header of a file, while it is read and checked."""

    def __init__(self, file: MappedFile):
        self.file = file
        self.size = len(file.data)

    def fail(self, problem: str) -> NoReturn:
        raise RlxError(f"{self.file.path}: {problem}; download it again, or convert it anew")

    def read(self) -> tuple[dict[str, TensorInfo], dict[str, str]]:
        start, entries = self._entries()
        metadata = entries.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(
            isinstance(v, str) for v in cast(dict[str, object], metadata).values()
        ):
            self.fail("__metadata__: expected an object of texts")
        tensors = [self._tensor(name, entry, start) for name, entry in entries.items()]
        tensors.sort(key=lambda t: (t.offset, t.nbytes))
        self._check_cover(tensors, start)
        return {t.name: t for t in tensors}, cast(dict[str, str], metadata)

    def _entries(self) -> tuple[int, dict[str, object]]:
        """Return where the tensors' bytes start, and the header's object."""
        if self.size < _LENGTH_BYTES + 2:
            self.fail(f"expected a safetensors file, found one of {self.size} bytes")
        length = int.from_bytes(self.file.data[:_LENGTH_BYTES], "little")
        most = min(MAX_HEADER_BYTES, self.size - _LENGTH_BYTES)
        if not 2 <= length <= most:
            self.fail(
                f"at byte 0: expected the length of a header, 2 to {most} bytes, got {length}: the "
                "file is cut short, or not of the safetensors format"
            )
        start = _LENGTH_BYTES + length
        text = self.file.data[_LENGTH_BYTES:start]
        if text[:1] != b"{":
            self.fail(f"at byte 8: expected a header in JSON that begins with {{, got {text[:1]!r}")
        try:
            entries = json.loads(text.decode(), object_pairs_hook=self._object)
        # Arrays in arrays in arrays, as many as the header has bytes.
        except (ValueError, RecursionError) as error:
            self.fail(f"at byte 8: expected a header in JSON: {error}")
        return start, entries

    def _object(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        """Return an object of the header, whose names may not be there twice."""
        found = dict(pairs)
        if len(found) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            self.fail(f"the header has {twice!r:.80} twice")
        return found

    def _tensor(self, name: str, entry: object, start: int) -> TensorInfo:
        """Return a tensor of the header, checked by itself."""
        if not isinstance(entry, dict):
            self.fail(f"tensor {name!r:.80}: expected an object, got {entry!r:.80}")
        given = cast(dict[str, Any], entry)
        if set(given) != {"dtype", "shape", "data_offsets"}:
            self.fail(
                f"tensor {name!r:.80}: expected dtype, shape and data_offsets, got "
                f"{', '.join(given) or 'nothing':.80}"
            )
        dtype, shape = given["dtype"], self._integers(name, "shape", given["shape"])
        if not isinstance(dtype, str) or dtype not in DTYPES:
            self.fail(
                f"tensor {name!r:.80}: expected a dtype of {', '.join(DTYPES)}, got {dtype!r:.80}"
            )
        if len(shape) > _MAX_DIMS:
            self.fail(
                f"tensor {name!r:.80}: expected up to {_MAX_DIMS} dimensions, got {len(shape)}"
            )
        offsets = self._integers(name, "data_offsets", given["data_offsets"])
        nbytes, there = prod(shape) * DTYPES[dtype], self.size - start
        if len(offsets) != 2 or not offsets[0] <= offsets[1] <= there:
            self.fail(
                f"tensor {name!r:.80}: expected data_offsets within the {there} bytes behind the "
                f"header, got {list(offsets)}: the file is cut short, or damaged"
            )
        if offsets[1] - offsets[0] != nbytes:
            self.fail(
                f"tensor {name!r:.80}: {dtype} of shape {list(shape)} takes {nbytes} bytes, its "
                f"data_offsets {list(offsets)} are of {offsets[1] - offsets[0]}"
            )
        return TensorInfo(name, shape, dtype, start + offsets[0], nbytes)

    def _integers(self, name: str, key: str, value: object) -> tuple[int, ...]:
        """Return a list of the header's natural numbers."""
        items = cast(list[object], value) if isinstance(value, list) else [None]
        numbers = [n for n in items if isinstance(n, int) and not isinstance(n, bool)]
        if len(numbers) != len(items) or not all(0 <= n < 1 << 63 for n in numbers):
            self.fail(f"tensor {name!r:.80}: {key}: expected natural numbers, got {value!r:.80}")
        return tuple(numbers)

    def _check_cover(self, tensors: Sequence[TensorInfo], start: int) -> None:
        """Raise RlxError unless the tensors are all bytes behind the header, each of them once."""
        end, before = start, "the header"
        for t in tensors:
            if t.offset != end:
                what = "has bytes of" if t.offset < end else "is not directly behind"
                self.fail(f"tensor {t.name!r:.80}: it {what} {before}")
            end, before = t.offset + t.nbytes, f"{t.name!r:.80}"
        if end != self.size:
            self.fail(f"{self.size - end} bytes are behind {before}, which is the last tensor")


class SafetensorsWeights:
    """The tensors of an open file, by name; see `rlx.flow.source.WeightSource`."""

    def __init__(self, file: SafetensorsFile):
        self._file = file

    def has(self, key: str) -> bool:
        return key in self._file.tensors

    def info(self, key: str) -> WeightInfo:
        """Raises RlxError for a tensor of another dtype than F32, F16 and BF16, or for none."""
        tensor = self._file.tensor(key)
        if tensor.dtype not in FORMATS:
            raise RlxError(
                f"{self._file.path}: tensor {key!r:.80}: the dtype {tensor.dtype} is not "
                f"supported: expected {', '.join(FORMATS)}"
            )
        return WeightInfo(tensor.shape, FORMATS[tensor.dtype])

    def take(
        self, key: str, transpose: bool = False
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        shape, format = self.info(key)
        data = self._file.tensor_bytes(key)
        if format == "bf16":
            # The upper halves of f32.
            bits = data.view("<u2").astype(np.uint32) << 16
            values = bits.view(np.float32)
        else:
            values = data.view("<f2" if format == "f16" else "<f4").astype(np.float32)
        values = values.reshape(shape)
        values = transposed(key, values) if transpose else values
        return values, shape[::-1] if transpose else shape

    def raw(self, key: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes: a view of the mapped file, or a copy where they start oddly."""
        self.info(key)
        data = self._file.tensor_bytes(key)
        return data if data.ctypes.data % 4 == 0 else data.copy()
