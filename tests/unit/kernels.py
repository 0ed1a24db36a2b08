"""Compile a generated function for an instruction-set level, and call it on guarded buffers."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from rlx.flow.source import MapWeights
from rlx.functions import CompiledFunction, build
from rlx.lowering.bf16_products import has_bf16
from rlx.lowering.emitter import Function, Module
from rlx.lowering.target import Target
from rlx.runtime import jit

PAGE = mmap.PAGESIZE
_GUARD = 256
_SENTINEL = 0xA5


def levels() -> list[str]:
    """Return the instruction-set levels to test that this machine can run, the host's own last."""
    host = Target.host()
    x86 = ["generic", "haswell", "alderlake", "x86-64-v4"]
    names = x86 if host.triple.startswith("x86_64") else []
    return [name for name in names if host.has(*Target.named(name).features)] + ["host"]


def product_levels() -> list[str]:
    """Return those, and a CPU that multiplies in other ways, if this one runs its code."""
    *first, last = levels()
    other = "icelake-server" if Target.host().zen else "znver4"
    return [*first, *([other] if Target.named(other).runs_on(Target.host()) else []), last]


def bf16_levels() -> list[str]:
    """Return those that multiply bf16 faster than f32."""
    return [name for name in product_levels() if has_bf16(Target.named(name))]


def on_threads(
    module: ModuleOp | str,
    level: str = "host",
    counts: Sequence[int] = (1, 2),
    weights: Mapping[str, Any] | None = None,
) -> list[CompiledFunction]:
    """Compile a program once, and return it as a function for each number of threads."""
    built = build(module, Target.named(level))
    return [CompiledFunction(built, MapWeights(weights or {}), n) for n in counts]


class Buffer:
    """
    Memory for a kernel between sentinel bytes, poisoned: every f32 in it is a NaN at first.

    It starts `offset` bytes past a multiple of 64.
    """

    def __init__(self, size: int, offset: int = 0):
        self.size = size
        self._bytes = np.full(size + 2 * _GUARD + 64 + offset, 0xFF, np.uint8)
        address = self._bytes.ctypes.data + _GUARD
        self._start = _GUARD + (-address) % 64 + offset
        self._bytes[: self._start] = _SENTINEL
        self._bytes[self._start + size :] = _SENTINEL

    @classmethod
    def of(cls, array: np.ndarray, offset: int = 0) -> Buffer:
        """Return a buffer that holds a copy of an array."""
        array = np.ascontiguousarray(array)
        buffer = cls(array.nbytes, offset)
        buffer.bytes[:] = array.view(np.uint8).reshape(-1)
        return buffer

    @property
    def address(self) -> int:
        return self._bytes.ctypes.data + self._start

    @property
    def bytes(self) -> np.ndarray:
        return self._bytes[self._start : self._start + self.size]

    def array(self, dtype: type, *shape: int) -> np.ndarray:
        """Return the contents as an array, a copy where they are not aligned for the dtype."""
        return np.frombuffer(self.bytes.tobytes(), dtype).reshape(shape)

    def check(self) -> None:
        """Assert that the bytes around the buffer are untouched."""
        assert (self._bytes[: self._start] == _SENTINEL).all(), "written before the buffer"
        assert (self._bytes[self._start + self.size :] == _SENTINEL).all(), "written past the end"


class Fenced:
    """
    A copy of an array that can't be written, and behind whose last byte nothing can be read.

    It ends where a page does; that page is read-only, and the next one is none's.
    """

    def __init__(self, array: np.ndarray):
        room = -(-max(array.nbytes, 1) // PAGE) * PAGE
        self._memory = mmap.mmap(-1, room + PAGE)
        data = np.frombuffer(self._memory, np.uint8, array.nbytes, room - array.nbytes)
        self.array = data.view(array.dtype).reshape(array.shape)
        self.array[...] = array
        self._protect(0, room, mmap.PROT_READ)
        self._protect(room, PAGE, 0)

    @property
    def address(self) -> int:
        return self.array.ctypes.data

    @property
    def bytes(self) -> np.ndarray:
        return self.array.reshape(-1).view(np.uint8)

    def __del__(self) -> None:
        self._protect(0, len(self._memory), mmap.PROT_READ | mmap.PROT_WRITE)

    def _protect(self, start: int, size: int, allowed: int) -> None:
        address = ctypes.c_void_p(np.frombuffer(self._memory, np.uint8).ctypes.data + start)
        if ctypes.CDLL(None).mprotect(address, ctypes.c_size_t(size), allowed):
            raise OSError("mprotect")


class Kernel:
    """A compiled function of pointers (buffers) and i64 numbers without a result."""

    def __init__(self, text: str, name: str, target: Target):
        self._engine = jit.Engine(jit.compile_object(text, target))
        self._address = self._engine.address(name)

    def __call__(self, *args: Buffer | Fenced | int) -> None:
        """Call the function, then check the sentinels of every buffer."""
        types = [ctypes.c_int64 if isinstance(a, int) else ctypes.c_void_p for a in args]
        values = [a if isinstance(a, int) else a.address for a in args]
        ctypes.CFUNCTYPE(None, *types)(self._address)(*values)
        for a in args:
            if isinstance(a, Buffer):
                a.check()


def call_on_threads(threads: int, call: Callable[[int], None]) -> None:
    """Call `call(tid)` for all threads at the same time: those of a launch that share turns."""
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(call, tid) for tid in reversed(range(threads))]:
            done.result()


def module_of(
    level: str,
    params: Sequence[tuple[str, str]],
    body: Callable[[Function], None],
    fast: bool = False,
) -> Module:
    """Return a module with one exported function `kernel`, whose body gets the Function."""
    module = Module(Target.named(level), fast)
    f = module.function("kernel", params, exported=True)
    body(f)
    f.ret()
    return module


def compile_kernel(
    level: str, params: Sequence[tuple[str, str]], body: Callable[[Function], None]
) -> Kernel:
    """Compile a function for a level; `params` are (type, name) pairs: ptr and i64."""
    module = module_of(level, params, body)
    return Kernel(module.text, "kernel", module.target)


def nmse(result: np.ndarray, expected: np.ndarray) -> float:
    """Return the squared error over the squared size of what was expected."""
    expected = expected.astype(np.float64)
    return float(((result - expected) ** 2).sum() / max((expected**2).sum(), 1e-300))
