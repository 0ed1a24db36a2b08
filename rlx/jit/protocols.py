"""numpy's functions on tracers: what `__array_ufunc__` and `__array_function__` hand over."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np

from rlx.jit import core, cumulative
from rlx.jit.elementwise import apply
from rlx.jit.rules import RULES
from rlx.jit.trace import fail

_REDUCTIONS = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "logical_and": "all",
    "logical_or": "any", "bitwise_or": "any",
}  # fmt: skip
_CUMULATIVE: dict[str, Callable[..., Any]] = {
    "add": cumulative.cumsum,
    "multiply": cumulative.cumprod,
    "maximum": partial(cumulative.extreme, "max"),
    "minimum": partial(cumulative.extreme, "min"),
}
_PRODUCTS = ("matmul", "vecdot", "matvec", "vecmat")


def ufunc_call(
    ufunc: np.ufunc, method: str, inputs: Sequence[object], options: Mapping[str, object]
) -> Any:
    """Return a ufunc of arrays of which one is traced, or a method of it."""
    from rlx import numpy as functions

    name = ufunc.__name__
    given = {k: v for k, v in options.items() if v is not None}
    if given.pop("out", None) is not None:
        raise fail(f"numpy.{name}: out= can't be a traced array or go with one: use the result")
    if method == "__call__" and name in RULES:
        dtype = given.pop("dtype", None)
        _no_more(name, given)
        if dtype is not None:
            inputs = [core.lift(x, np.dtype(cast(Any, dtype))) for x in inputs]
        return apply(name, *inputs)
    if method == "__call__" and name in _PRODUCTS:
        return getattr(functions, name)(*inputs, **given)
    if method == "__call__" and name == "divmod":
        return functions.floor_divide(*inputs), functions.remainder(*inputs)
    if method == "reduce" and name in _REDUCTIONS:
        given.setdefault("axis", 0)
        return getattr(functions, _REDUCTIONS[name])(*inputs, **given)
    if method == "accumulate" and name in _CUMULATIVE:
        return _CUMULATIVE[name](inputs[0], given.get("axis", 0))
    if method == "outer" and name in RULES:
        a, b = map(core.lift, inputs)
        return apply(name, a[(..., *[None] * len(b.dims))], b)
    call = name if method == "__call__" else f"{name}.{method}"
    raise fail(f"numpy.{call} is not there for traced arrays: see rlx.numpy for what is")


def _no_more(name: str, options: Mapping[str, object]) -> None:
    if options:
        raise fail(f"numpy.{name}: {', '.join(options)} can't be given for a traced array")


_SIZED_BY_VALUES = (
    "nonzero", "flatnonzero", "argwhere", "compress", "extract", "unique", "unique_all",
    "unique_counts", "unique_inverse", "unique_values", "union1d", "intersect1d", "setdiff1d",
    "setxor1d", "trim_zeros",
)  # fmt: skip
"""Functions of numpy whose results are as large as the values say."""


def function_call(
    function: Callable[..., Any], args: Sequence[object], options: Mapping[str, object]
) -> Any:
    """Return a function of numpy of arrays of which one is traced."""
    ours = _functions().get(function)
    if ours is None:
        module = function.__module__.removesuffix("._core")
        if function.__name__ in _SIZED_BY_VALUES:
            raise fail(
                f"{module}.{function.__name__} would give an array whose size depends on values: "
                "use rlx.numpy.where, a sum over a mask or rlx.numpy.sort, or call it outside"
            )
        raise fail(
            f"{module}.{function.__name__} is not there for traced arrays: see rlx.numpy for "
            "what is"
        )
    return ours(*args, **options)


@cache
def _functions() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return numpy's functions with those of ours that have their names."""
    from rlx import numpy as functions

    found: dict[Callable[..., Any], Callable[..., Any]] = {}
    for name in dir(functions):
        for module in (np, np.linalg):
            theirs = getattr(module, name, None)
            if callable(theirs) and not isinstance(theirs, np.ufunc | type):
                found.setdefault(theirs, getattr(functions, name))
    return found
