"""Writes small encoder models with random weights, and computes them in numpy, for the tests."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np

_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "float64": "F64"}


def safetensors_bytes(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None, pad: int = 0
) -> bytes:
    """A safetensors file of arrays, with `pad` spaces behind its header."""
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, array in arrays.items():
        ends = [at, at + array.nbytes]
        dtype = _DTYPES[array.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": ends}
        at += array.nbytes
    text = json.dumps(header).encode() + b" " * pad
    return len(text).to_bytes(8, "little") + text + b"".join(a.tobytes() for a in arrays.values())
