"""Where the reference interpreter takes its weights from: a GGUF file, or arrays in a dict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from xdsl.dialects.builtin import ModuleOp

from rlx.dialects import hir
from rlx.errors import RlxError
from rlx.frontends.gguf import GgufFile
from rlx.frontends.quants import dequantize


@dataclass(frozen=True)
class Quantized:
    """A weight as its file stores it: `data` uint8 in the block format `format`, of `shape`."""

    format: str
    data: NDArray[np.uint8]
    shape: tuple[int, ...]


Stored: TypeAlias = NDArray[Any] | Quantized


class WeightSource(Protocol):
    """Gives weights by key, `{layer}` already filled in."""

    def array(self, key: str) -> NDArray[Any]:
        """
        Return the weight's values, dequantised, in the row-major shape of its declaration.

        Raises RlxError for a key that isn't there.
        """
        ...


class GgufWeights:
    """
    The tensors of an open GGUF file.

    Dequantised tensors are kept, at 4 bytes an element: the interpreter asks for every weight at
    every step.
    """

    def __init__(self, file: GgufFile):
        self._file = file
        self._arrays: dict[str, NDArray[np.float32]] = {}

    def array(self, key: str) -> NDArray[np.float32]:
        if key not in self._arrays:
            info = self._file.tensor(key)
            data = self._file.tensor_bytes(key)
            self._arrays[key] = dequantize(info.ggml_type, data, info.shape)
        return self._arrays[key]


class ArrayWeights:
    """Arrays in memory, by weight key."""

    def __init__(self, arrays: Mapping[str, Stored]):
        self._arrays = arrays

    def array(self, key: str) -> NDArray[Any]:
        if key not in self._arrays:
            raise RlxError(
                f"reference: expected an array for the weight {key!r}, "
                f"got arrays for {', '.join(self._arrays) or 'none'}"
            )
        stored = self._arrays[key]
        if isinstance(stored, Quantized):
            return dequantize(stored.format, stored.data, stored.shape)
        return stored


def by_key(module: ModuleOp, arrays: Mapping[str, Stored | Sequence[Stored]]) -> dict[str, Stored]:
    """
    Return arrays under the keys of the weights that `module` declares.

    An array may come by key, or by the symbol of its declaration: that of a family is then the
    sequence of its members, from layer 0.
    """
    declared = {op.sym_name.data: op for op in module.ops if isinstance(op, hir.WeightOp)}
    found: dict[str, Stored] = {}
    for name, given in arrays.items():
        op = declared.get(name)
        if op is not None and op.is_family:
            members: Sequence[Any] | NDArray[Any] = () if isinstance(given, Quantized) else given
            for layer, member in enumerate(members):
                found[op.key.data.replace("{layer}", str(layer))] = member
        elif isinstance(given, Quantized | np.ndarray):
            found[op.key.data if op is not None else name] = given
    return found
