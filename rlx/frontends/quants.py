"""
What the bytes of the common element types of GGUF tensors mean.

A tensor's rows (its
innermost dimension) are whole numbers of blocks. The dequantisers here serve the reference
interpreter and the tests; compiled programs read the blocks themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.errors import RlxError

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
