"""The tensors of a GGUF file as a weight source of the flow API."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rlx.flow.source import WeightInfo, transposed
from rlx.frontends.gguf import GgufFile
from rlx.frontends.quants import dequantize


class GgufWeights:
    """The tensors of an open GGUF file, by name; see `rlx.flow.source.WeightSource`."""

    def __init__(self, file: GgufFile):
        self._file = file

    def has(self, key: str) -> bool:
        return key in self._file.tensors

    def info(self, key: str) -> WeightInfo:
        tensor = self._file.tensor(key)
        return WeightInfo(tensor.shape, tensor.ggml_type)

    def take(
        self, key: str, transpose: bool = False
    ) -> tuple[NDArray[np.float32], tuple[int, ...]]:
        """
        Return the dequantised values and their shape.

        Raises RlxError for a format that has no dequantiser, besides the protocol's reasons.
        """
        shape, format = self.info(key)
        data = dequantize(format, self._file.tensor_bytes(key), shape)
        data = transposed(key, data) if transpose else data
        return data, data.shape

    def raw(self, key: str) -> NDArray[np.uint8]:
        """Return the tensor's bytes: a read-only view of the mapped file, no copy."""
        return self._file.tensor_bytes(key)
