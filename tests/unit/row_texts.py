"""Row programs with a name for every size, as text, and arrays for them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROW = "tensor<?x?xf32, #hir.dims<r, n>>"
VECTOR = "tensor<?xf32, #hir.dims<n>>"
COLUMN = "tensor<?xf32, #hir.dims<r>>"


def program(ins: Sequence[str], outs: Sequence[str], body: str, dims: str = "rn") -> str:
    """Return the text of a function whose arguments are x0, x1, ... and whose results y0, ..."""
    sizes = ", ".join(f"{d} = 0 to any" for d in dims)
    args = ", ".join(f'%x{i}: {t} {{rlx.name = "x{i}"}}' for i, t in enumerate(ins))
    results = ", ".join(f'{t} {{rlx.name = "y{i}"}}' for i, t in enumerate(outs))
    values = ", ".join(f"%y{i}" for i in range(len(outs)))
    return f"""builtin.module attributes {{rlx.dims = #hir.dim_table<{sizes}>}} {{
  func.func @main({args}) -> ({results}) {{
    {body}
    func.return {values} : {", ".join(outs)}
  }}
}}"""


def normal(*shapes: tuple[int, ...], dtype: type = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(len(shapes))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def within(n: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory full of sevens, and n elements in it, `offset` of them after a cache line."""
    memory = np.full(n + 96, 7, np.float32)
    start = -memory.ctypes.data % 64 // 4 + 16 + offset
    return memory, memory[start : start + n]
