"""
Element-wise functions: numpy's ufuncs by name, with numpy's own promotion, and those of rlx.

`apply` asks the ufunc for its loop (`resolve_dtypes`), casts and broadcasts, and hands values of
the loop's dtypes to the rule of the function. f16 is computed in f32 and rounded once.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast

import numpy as np

from rlx.jit import core
from rlx.jit.core import BOOL, FLOAT16, FLOAT32, DType, Value
from rlx.jit.expansions import integer_power
from rlx.jit.rules import COMPARISONS, RULES
from rlx.jit.sizes import Size
from rlx.jit.trace import DTYPES

ALIASES = {
    "abs": "absolute", "true_divide": "divide", "mod": "remainder", "acos": "arccos",
    "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atan2": "arctan2", "atanh": "arctanh", "bitwise_invert": "invert", "bitwise_not": "invert",
    "bitwise_left_shift": "left_shift", "bitwise_right_shift": "right_shift", "pow": "power",
    "conj": "conjugate",
}  # fmt: skip
"""Names of the array API standard, and numpy's own second names -> numpy's ufuncs."""


def apply(name: str, *args: object) -> Any:
    """Return a ufunc of arrays, numbers and sizes, as numpy would promote and broadcast them."""
    args = tuple(a if _is_scalar(a) else core.lift(a, what=name) for a in args)
    if not any(isinstance(a, Value) for a in args):
        args = tuple(core.lift(a, what=name) for a in args)
    kinds = tuple(a.weak or a.dtype if isinstance(a, Value) else _kind(a) for a in args)
    weak = not any(isinstance(k, np.dtype) for k in kinds)
    if weak:
        kinds = tuple(np.dtype(k) for k in kinds)
    *inputs, output = _loop(name, kinds)
    if output == BOOL and name in COMPARISONS:
        inputs = _for_comparison(args, inputs)
    compute = [FLOAT32 if t == FLOAT16 else t for t in inputs]
    rounded = [_rounded(a, t) for a, t in zip(args, inputs, strict=True)]
    values = [core.lift(a, t, name) for a, t in zip(rounded, compute, strict=True)]
    dims = core.common_shape(*(v.dims for v in values))
    result = RULES[name](*(core.broadcast(v, dims) for v in values))
    result = core.cast_to(result, output)
    if weak and output != BOOL:
        return core.wrap(result.trace, result.number, float if output.kind == "f" else int)
    return result


def _is_scalar(x: object) -> bool:
    return isinstance(x, core.SCALARS) and not isinstance(x, np.generic)


def _kind(x: object) -> type | DType:
    return BOOL if isinstance(x, bool) else type(x)


@cache
def _loop(name: str, kinds: tuple[type | DType, ...]) -> tuple[DType, ...]:
    """Return the dtypes of the operands and of the result of numpy's loop."""
    ufunc = getattr(np, name)
    found = ufunc.resolve_dtypes((*kinds, None))
    if any(t not in DTYPES for t in found):
        raise TypeError(f"{name}: rlx has no loop for {', '.join(map(str, kinds))}")
    return found


def _rounded(x: object, dtype: DType) -> object:
    """Return an operand as the loop's dtype has it, where the loop is computed in a wider one."""
    if dtype != FLOAT16 or (isinstance(x, Value) and x.dtype == FLOAT16):
        return x
    return core.lift(x, FLOAT16)


def _for_comparison(args: tuple[object, ...], inputs: list[DType]) -> list[DType]:
    """Return dtypes that have the numbers of a comparison: int8 < 300 is true in numpy too."""
    for x, dtype in zip(args, inputs, strict=True):
        if isinstance(x, int) and dtype.kind in "iu":
            limits = np.iinfo(dtype)
            if not limits.min <= x <= limits.max:
                return [core.INT64] * len(inputs)
    return inputs


def power(a: object, b: object) -> Any:
    """Return a ** b; the exponents that numpy treats apart are so here too."""
    if _is_scalar(b) and isinstance(a, Value):
        if isinstance(b, int) and a.dtype.kind in "iub":
            kind = _loop("power", (a.weak or a.dtype, BOOL if isinstance(b, bool) else int))[0]
            return integer_power(core.lift(a, kind), int(b))
        if a.dtype.kind == "f" and b in (2, 0.5, -1):
            return apply({2: "square", 0.5: "sqrt", -1: "reciprocal"}[b], a)  # pyright: ignore[reportArgumentType]: `in` has checked
    return apply("power", a, b)


def where(condition: object, a: object, b: object) -> Any:
    """Return elements of `a` where the condition holds, of `b` elsewhere; all are broadcast."""
    test = core.lift(condition, BOOL, "where")
    dtype = result_type(a, b)
    sides = [core.lift(x, dtype, "where") for x in (a, b)]
    dims = core.common_shape(test.dims, *(s.dims for s in sides))
    return core.select(*(core.broadcast(v, dims) for v in (test, *sides)))


def result_type(*args: object) -> DType:
    """Return numpy's result type of arrays, numbers and dtypes."""
    return np.result_type(*(_stand_in(a) for a in args))


def can_cast(from_: Any, to: Any) -> bool:
    """Return whether numpy casts from a dtype, or an array's, to another without losing values."""
    return bool(np.can_cast(result_type(from_) if isinstance(from_, Value) else from_, to))


def _stand_in(x: object) -> Any:
    if isinstance(x, Value):
        return x.dtype if x.weak is None else x.weak(0)
    if isinstance(x, Size):
        return 0
    if isinstance(x, list | tuple):
        return core.lift(cast(object, x)).dtype
    return x


def on_floats(kind: str, x: object, name: str) -> Any:
    """Return a function of rlx of floats; integers become float64, f16 is computed in f32."""
    value = core.lift(x, what=name)
    dtype = value.dtype if value.dtype.kind == "f" else core.FLOAT64
    inner = core.cast_to(value, FLOAT32 if dtype == FLOAT16 else dtype)
    return core.cast_to(core.unary(kind, inner), dtype)
