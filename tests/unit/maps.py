"""Compile element-wise functions for an instruction-set level, and call them on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from kernels import levels
from numpy.typing import NDArray

from rlx.lowering.emitter import Function, Module
from rlx.lowering.target import Target
from rlx.lowering.values import Value, vec
from rlx.runtime import jit

DTYPES: dict[str, type] = {
    "float": np.float32,
    "double": np.float64,
    "half": np.uint16,
    "bfloat": np.uint16,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "i1": np.bool_,
    "u8": np.uint8,
    "u32": np.uint32,
}
"""Element -> dtype of an array of them; f16 and bf16 as bits."""
TYPES = {"u8": "i8", "u32": "i32"}
"""Element -> LLVM's type of it, where that isn't its name."""

LEVELS = [level for level in levels() if level != "alderlake"]
"""Instruction-set levels whose element-wise code differs."""

Map: TypeAlias = tuple[Sequence[str], str, Callable[..., Value]]
"""Elements of the operands, that of the result, and body(f, *values)."""


class Maps:
    """Functions of arrays, all in one module."""

    def __init__(self, level: str, maps: Mapping[str, Map], lanes: int = 16, fast: bool = False):
        module = Module(Target.named(level), fast)
        for name, map_ in maps.items():
            _emit(module, name, map_, lanes)
        self._maps = maps
        self._engine = jit.Engine(jit.compile_object(module.text, module.target))

    def __call__(self, name: str, *arrays: NDArray[Any]) -> NDArray[Any]:
        elements, result, _ = self._maps[name]
        count = len(arrays[0])
        given = [_padded(a, DTYPES[e]) for a, e in zip(arrays, elements, strict=True)]
        out = np.zeros(len(given[0]), DTYPES[result])
        types = [ctypes.c_void_p] * (len(given) + 1)
        function = ctypes.CFUNCTYPE(None, *types, ctypes.c_int64)(self._engine.address(name))
        function(*(a.ctypes.data for a in given), out.ctypes.data, len(out))
        return out[:count]


def _padded(array: NDArray[Any], dtype: type) -> NDArray[Any]:
    """Return a copy with zeros behind it, up to a multiple of 16."""
    assert array.dtype == dtype
    return np.concatenate([array, np.zeros(-len(array) % 16, dtype)])


def _emit(module: Module, name: str, map_: Map, lanes: int) -> None:
    elements, _, body = map_
    params = [("ptr", f"in{i}") for i in range(len(elements))]
    f = module.function(name, [*params, ("ptr", "out"), ("i64", "n")], exported=True)
    *sources, out, n = f.params

    def step(i: Value, carried: list[Value]) -> list[Value]:
        values = [_load(f, e, p, i, lanes) for e, p in zip(elements, sources, strict=True)]
        result = body(f, *values)
        size = _size(result.element)
        if result.element == "i1":
            result = f.cast("zext", result, vec(lanes, "i8"))
        f.store(result, f.at(out, i, size), align=1)
        return carried

    f.for_(0, n, lanes, [], step)
    f.ret()


def _load(f: Function, element: str, pointer: Value, i: Value, lanes: int) -> Value:
    at = f.at(pointer, i, _size(element))
    if element == "i1":
        return f.cast("trunc", f.load(vec(lanes, "i8"), at, align=1), vec(lanes, "i1"))
    return f.load(vec(lanes, TYPES.get(element, element)), at, align=1)


def _size(element: str) -> int:
    return np.dtype(DTYPES[element]).itemsize
