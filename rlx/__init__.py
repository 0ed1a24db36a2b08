"""
rlx: machine-learning models on CPUs, compiled from Python.

    import rlx
    model = rlx.load("model.gguf")
    for piece in model.generate("The capital of France is", max_tokens=20):
        print(piece, end="")

Names are imported when they are first used: `import rlx` alone imports nothing heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlx.driver import load as load
    from rlx.errors import RlxError as RlxError
    from rlx.functions import compile as compile
    from rlx.lowering.target import Target as Target

__version__ = "0.1.0"

_EXPORTS = {
    "load": "rlx.driver",
    "compile": "rlx.functions",
    "RlxError": "rlx.errors",
    "Target": "rlx.lowering.target",
}


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'rlx' has no attribute '{name}'")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_EXPORTS])
