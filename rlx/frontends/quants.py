"""
What the bytes of the common element types of GGUF tensors mean.

A tensor's rows (its innermost dimension) are whole numbers of blocks. The dequantisers here serve
the reference interpreter and the tests; compiled programs read the blocks themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.errors import RlxError

BLOCKS: dict[str, np.dtype[Any]] = {
    name: np.dtype(fields)
    for name, fields in {
        "q4_0": [("d", "<f2"), ("qs", "u1", 16)],
        "q4_1": [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)],
        "q5_0": [("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)],
        "q5_1": [("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)],
        "q8_0": [("d", "<f2"), ("qs", "i1", 32)],
        "q2_k": [("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("m", "<f2")],
        "q3_k": [("qh", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")],
        "q4_k": [("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)],
        "q5_k": [
            ("d", "<f2"), ("m", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128),
        ],
        "q6_k": [("qs", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")],
    }.items()
}  # fmt: skip
"""The fields of a block: the scale d and the minimum m, numbers, scales of parts."""


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
    blocks = data.view(BLOCKS["q4_0"])
    return _scale(blocks, "d") * (_nibbles(blocks).astype(np.float32) - 8)


def _q4_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q4_1"])
    return _scale(blocks, "d") * _nibbles(blocks).astype(np.float32) + _scale(blocks, "m")


def _q5_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q5_0"])
    return _scale(blocks, "d") * (_five_bits(blocks).astype(np.float32) - 16)


def _q5_1(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q5_1"])
    return _scale(blocks, "d") * _five_bits(blocks).astype(np.float32) + _scale(blocks, "m")


def _q8_0(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q8_0"])
    return _scale(blocks, "d") * blocks["qs"].astype(np.float32)


def _fields(data: NDArray[np.uint8], bits: int, run: int) -> NDArray[np.uint8]:
    """
    The numbers of `bits` bits of each block's bytes, [blocks, 256] or fewer.

    Of each `run` bytes the lowest bits come first, then the next ones, and so on.
    """
    runs = data.reshape(len(data), -1, 1, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields: NDArray[np.uint8] = runs >> shifts & np.uint8((1 << bits) - 1)
    return fields.reshape(len(data), -1)


def _of_parts(scales: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.float32]:
    """Parts of a block times their scales, [blocks, parts]: the same count of elements each."""
    parts = numbers.astype(np.float32).reshape(*scales.shape, -1)
    return (scales[:, :, None] * parts).reshape(len(scales), -1)


def _less(scales: NDArray[Any], minima: NDArray[Any], numbers: NDArray[Any]) -> NDArray[np.float32]:
    ones = np.ones_like(numbers)
    return _of_parts(scales, numbers) - _of_parts(minima, ones)


def _six_bits(scales: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The 8 scales and 8 minima in 12 bytes: the upper bits of the last four are in the others."""
    first, second, last = scales[:, :4], scales[:, 4:8], scales[:, 8:]
    low, high, two = np.uint8(0x0F), np.uint8(0x30), np.uint8(2)
    return (
        np.concatenate([first & np.uint8(63), last & low | first >> two & high], axis=1),
        np.concatenate([second & np.uint8(63), last >> np.uint8(4) | second >> two & high], axis=1),
    )


def _q2_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q2_k"])
    scales = blocks["scales"]
    numbers = _fields(blocks["qs"], 2, 32)
    return _less(_scale(blocks, "d") * (scales & 15), _scale(blocks, "m") * (scales >> 4), numbers)


def _q3_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q3_k"])
    low = _fields(blocks["scales"][:, :8], 4, 8)
    scales = (low | _fields(blocks["scales"][:, 8:], 2, 4) << np.uint8(4)).astype(np.float32) - 32
    numbers = _fields(blocks["qs"], 2, 32) | _fields(blocks["qh"], 1, 32) << np.uint8(2)
    return _of_parts(_scale(blocks, "d") * scales, numbers.astype(np.float32) - 4)


def _q4_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q4_k"])
    scales, minima = _six_bits(blocks["scales"])
    numbers = _fields(blocks["qs"], 4, 32)
    return _less(_scale(blocks, "d") * scales, _scale(blocks, "m") * minima, numbers)


def _q5_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q5_k"])
    scales, minima = _six_bits(blocks["scales"])
    numbers = _fields(blocks["qs"], 4, 32) | _fields(blocks["qh"], 1, 32) << np.uint8(4)
    return _less(_scale(blocks, "d") * scales, _scale(blocks, "m") * minima, numbers)


def _q6_k(data: NDArray[np.uint8]) -> NDArray[np.float32]:
    blocks = data.view(BLOCKS["q6_k"])
    numbers = _fields(blocks["qs"], 4, 64) | _fields(blocks["qh"], 2, 32) << np.uint8(4)
    return _of_parts(_scale(blocks, "d") * blocks["scales"], numbers.astype(np.float32) - 32)


_DEQUANTIZERS: dict[str, Callable[[NDArray[np.uint8]], NDArray[np.float32]]] = {
    "f32": lambda data: data.view("<f4").astype(np.float32),
    "f16": lambda data: data.view("<f2").astype(np.float32),
    "bf16": _bf16,
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
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
