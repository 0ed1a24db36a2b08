"""
The element types of GGUF tensors: block sizes, and what the bytes of the common ones mean.

Source: the GGUF and ggml format specification (types with a fixed block). A tensor's rows (its
innermost dimension) are whole numbers of blocks. The dequantisers here serve the reference
interpreter and the tests; compiled programs read the blocks themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlx.errors import RlxError


class GgmlType(NamedTuple):
    """One element type: `elements` values are stored together in `nbytes` bytes."""

    name: str
    elements: int
    nbytes: int


GGML_TYPES: dict[int, GgmlType] = {
    0: GgmlType("f32", 1, 4),
    1: GgmlType("f16", 1, 2),
    2: GgmlType("q4_0", 32, 18),
    3: GgmlType("q4_1", 32, 20),
    6: GgmlType("q5_0", 32, 22),
    7: GgmlType("q5_1", 32, 24),
    8: GgmlType("q8_0", 32, 34),
    9: GgmlType("q8_1", 32, 36),
    10: GgmlType("q2_k", 256, 84),
    11: GgmlType("q3_k", 256, 110),
    12: GgmlType("q4_k", 256, 144),
    13: GgmlType("q5_k", 256, 176),
    14: GgmlType("q6_k", 256, 210),
    15: GgmlType("q8_k", 256, 292),
    16: GgmlType("iq2_xxs", 256, 66),
    17: GgmlType("iq2_xs", 256, 74),
    18: GgmlType("iq3_xxs", 256, 98),
    19: GgmlType("iq1_s", 256, 50),
    20: GgmlType("iq4_nl", 32, 18),
    21: GgmlType("iq3_s", 256, 110),
    22: GgmlType("iq2_s", 256, 82),
    23: GgmlType("iq4_xs", 256, 136),
    24: GgmlType("i8", 1, 1),
    25: GgmlType("i16", 1, 2),
    26: GgmlType("i32", 1, 4),
    27: GgmlType("i64", 1, 8),
    28: GgmlType("f64", 1, 8),
    29: GgmlType("iq1_m", 256, 56),
    30: GgmlType("bf16", 1, 2),
    34: GgmlType("tq1_0", 256, 54),
    35: GgmlType("tq2_0", 256, 66),
    39: GgmlType("mxfp4", 32, 17),
    40: GgmlType("nvfp4", 64, 36),
    41: GgmlType("q1_0", 128, 18),
}
"""The type number in the file, to its type."""

GGML_TYPES_BY_NAME: dict[str, GgmlType] = {entry.name: entry for entry in GGML_TYPES.values()}

_Q4_0 = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
_Q5_0 = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
_Q8_0 = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


def _scale(blocks: NDArray[Any], field: str) -> NDArray[np.float32]:
    return blocks[field].astype(np.float32)[:, None]


def _nibbles(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Element j of a block is the low half of byte j, element 16 + j its high half."""
    qs: NDArray[np.uint8] = blocks["qs"]
    return np.concatenate([qs & np.uint8(0x0F), qs >> np.uint8(4)], axis=1)


def _five_bits(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """The nibbles, with bit j of `qh` as the fifth bit of element j."""
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    return _nibbles(blocks) | high << np.uint8(4)


def _bf16(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q4_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(_Q4_0)
    return _scale(blocks, "d") * (_nibbles(blocks).astype(np.float32) - 8)


def _q4_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(_Q4_1)
    return _scale(blocks, "d") * _nibbles(blocks).astype(np.float32) + _scale(blocks, "m")


def _q5_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(_Q5_0)
    return _scale(blocks, "d") * (_five_bits(blocks).astype(np.float32) - 16)


def _q5_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(_Q5_1)
    return _scale(blocks, "d") * _five_bits(blocks).astype(np.float32) + _scale(blocks, "m")


def _q8_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(_Q8_0)
    return _scale(blocks, "d") * blocks["qs"].astype(np.float32)


_DEQUANTIZERS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "f32": lambda data: data.view("<f4").astype(np.float32),
    "f16": lambda data: data.view("<f2").astype(np.float32),
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
}


def dequantize(
    ggml_type: str, data: NDArray[np.uint8], shape: Sequence[int]
) -> NDArray[np.float32]:
    """
    The float32 values, of `shape`, that the stored bytes `data` of type `ggml_type` stand for.

    Exact: every operation is the format's own float32 one. A new array, never a view of `data`.
    Raises `RlxError` for a type without a dequantiser here, and when `data` is not what `shape`
    needs.
    """
    convert = _DEQUANTIZERS.get(ggml_type)
    if convert is None:
        raise RlxError(
            f"dequantize: expected one of the types {', '.join(_DEQUANTIZERS)}, got {ggml_type!r}"
        )
    block = GGML_TYPES_BY_NAME[ggml_type]
    needed = prod(shape) // block.elements * block.nbytes
    if (shape and shape[-1] % block.elements) or data.nbytes != needed:
        raise RlxError(
            f"dequantize: {ggml_type} of shape {tuple(shape)} needs rows of whole blocks of "
            f"{block.elements} and {needed} bytes, got {data.nbytes} bytes"
        )
    # A damaged scale may be infinite; infinity times zero is the format's NaN, not our warning.
    with np.errstate(invalid="ignore"):
        return convert(np.ascontiguousarray(data).reshape(-1)).reshape(shape)
