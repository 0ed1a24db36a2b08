"""
`rlx.jit`: numpy-style functions, traced and compiled.

    @rlx.jit
    def f(x, a):
        return np.tanh(x * a).sum(axis=-1)

The package is the decorator: calling the module is calling `rlx.jit.function.jit`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from rlx.jit.control import cond, fori_loop, scan, while_loop
from rlx.jit.function import JitFunction, Stats, jit

__all__ = ["JitFunction", "Stats", "cond", "fori_loop", "jit", "scan", "while_loop"]


class _Decorator(ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return jit(*args, **options)


sys.modules[__name__].__class__ = _Decorator
