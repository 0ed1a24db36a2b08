"""Small programs for the reference interpreter, written around one operation or a few."""

from __future__ import annotations

import numpy as np
from xdsl.dialects.builtin import ModuleOp

from rlx.passes.source import context, parse
from rlx.reference import Reference

ELEMENTS = {
    np.dtype(d): e
    for d, e in {
        "f4": "f32", "f8": "f64", "f2": "f16", "i1": "i8", "i2": "i16", "i4": "i32", "i8": "i64",
        "?": "i1",
    }.items()
}  # fmt: skip
INTEGERS = [np.int8, np.int16, np.int32, np.int64]


def typed(array: np.ndarray) -> str:
    return f"tensor<{''.join(f'{d}x' for d in array.shape)}{ELEMENTS[array.dtype]}>"


def program(body: str, arguments: dict[str, str], result: str, dims: str = "") -> ModuleOp:
    """A module whose @main returns %y."""
    table = f" attributes {{rlx.dims = #hir.dim_table<{dims}>}}" if dims else ""
    given = ", ".join(f'%{n}: {t} {{rlx.name = "{n}"}}' for n, t in arguments.items())
    text = (
        f"builtin.module{table} {{ func.func @main({given}) -> ({result} {{rlx.name = "
        f'"y"}}) {{ {body}\nfunc.return %y : {result} }} }}'
    )
    module = parse(context(), text.encode(), "test")
    module.verify()
    return module


def run(op: str, result: str, dtype: type = np.float64, **arrays: np.ndarray) -> np.ndarray:
    """The result of `%y = op`, where `$x` stands for the type of the array x."""
    for name, array in arrays.items():
        op = op.replace(f"${name}", typed(array))
    types = {name: typed(array) for name, array in arrays.items()}
    return Reference(program(f"%y = {op}", types, result), {}, dtype).run(arrays)["y"]


def same(given: np.ndarray, wanted: object) -> None:
    """Equal in dtype, shape and every element."""
    wanted = np.asarray(wanted)
    assert given.dtype == wanted.dtype
    np.testing.assert_array_equal(given, wanted)


def close(given: np.ndarray, wanted: object, rtol: float = 1e-12) -> None:
    np.testing.assert_allclose(given, np.asarray(wanted), rtol=rtol, atol=1e-300)
