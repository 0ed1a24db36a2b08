"""
Values of a trace and the primitives on them: operands of one dtype and shape, nothing implied.

What numpy does implicitly (broadcasting, promotion, defaults) the modules do that use these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np

from rlx.errors import RlxError
from rlx.jit.dims import Dim, Dims
from rlx.jit.trace import (
    DTYPES,
    LARGEST_CONSTANT,
    Array,
    Block,
    Shape,
    Trace,
    current,
    fail,
    user_line,
)

DType: TypeAlias = np.dtype[Any]

BOOL, INT64, FLOAT16, FLOAT32, FLOAT64 = (
    np.dtype(t) for t in (np.bool_, np.int64, np.float16, np.float32, np.float64)
)
SCALARS = (bool, int, float)
"""Python's numbers, whose types give way to those of arrays."""


class Value:
    """A value of a trace: its number, the block that it belongs to, its dtype and dimensions."""

    __slots__ = ("block", "dims", "dtype", "number", "trace", "weak")

    def __init__(
        self, trace: Trace, number: int, weak: type | None = None, block: Block | None = None
    ):
        self.trace = trace
        self.number = number
        dtype, self.dims = trace.type_of(number)
        self.dtype: DType = np.dtype(dtype)
        self.weak = weak
        """`int` or `float` where it stands for a Python number, whose dtype gives way."""
        self.block = block if block is not None else trace.blocks[-1]

    def here(self) -> Value:
        """Return this value; raises RlxError where it isn't of what is traced now."""
        if current("a traced array") is not self.trace or not self.trace.visible(self.block):
            raise fail(
                "a traced array was used after the function (or the branch or loop) that made it "
                "had ended: return it from there"
            )
        return self


def make(like: Value, dtype: DType, dims: Shape, op: str, attributes: tuple[Any, ...],
         *operands: Value) -> Any:  # fmt: skip
    """Add an operation with one result to the trace of a value."""
    trace = like.trace
    number = trace.add(op, attributes, [o.here().number for o in operands], (dtype, dims))
    return wrap(trace, number)


def wrap(trace: Trace, number: int, weak: type | None = None) -> Any:
    """Return the tracer of a value."""
    from rlx.jit.tracer import Tracer

    return Tracer(trace, number, weak)


def dims_now() -> Dims:
    return current("rlx.numpy").dims


# Lifting


def lift(x: object, dtype: DType | None = None, what: str = "rlx.numpy") -> Any:
    """
    Return an array, a number, a size, or a sequence of them as a tracer.

    A Python number is weak unless a dtype is given. Raises RlxError for what is no such thing, and
    OverflowError for a number that the dtype does not have.
    """
    from rlx.jit.sizes import Size

    if isinstance(x, Value):
        return x.here() if dtype is None else cast_to(x.here(), dtype)
    trace = current(what)
    if isinstance(x, Size):
        value = wrap(trace, trace.size_value(x.name), int)
        return value if dtype is None else cast_to(value, dtype)
    if isinstance(x, SCALARS):
        array = _number(x, dtype, what)
        weak = None if dtype is not None or isinstance(x, bool) else type(x)
        return constant(trace, array, weak)
    if isinstance(x, list | tuple):
        return _lift_sequence(cast("Sequence[object]", x), dtype, what)
    if isinstance(x, np.ndarray | np.generic):
        array = check_dtype(np.asarray(cast(Any, x)), what)
        small = array.nbytes <= LARGEST_CONSTANT
        value = constant(trace, array) if small else _capture(trace, array)
        return value if dtype is None else cast_to(value, dtype)
    raise fail(f"{what}: expected an array or a number, got {type(x).__name__}")


def _number(x: bool | float, dtype: DType | None, what: str) -> Array:
    """Return a Python number as an array; raises OverflowError where its dtype lacks it."""
    wanted: DType = np.dtype(type(x)) if dtype is None else dtype
    try:
        return np.asarray(x, wanted)
    except OverflowError:
        limits = ""
        if wanted.kind in "iu":
            info = np.iinfo(cast(Any, wanted))
            limits = f" (from {info.min} to {info.max})"
        raise OverflowError(
            f"{what}: expected a number of {wanted}{limits}, got an integer of "
            f"{int(x).bit_length()} bits\n  at {user_line()}"
        ) from None


def _capture(trace: Trace, array: Array) -> Any:
    from rlx.jit.tracer import Tracer

    return Tracer(trace, trace.capture(array), None, trace.main)


def _lift_sequence(items: Sequence[object], dtype: DType | None, what: str) -> Any:
    from rlx.jit.manipulation import stack
    from rlx.jit.sizes import Size

    def traced(item: object) -> bool:
        if isinstance(item, list | tuple):
            return any(map(traced, cast("Sequence[object]", item)))
        return isinstance(item, Value | Size)

    if traced(items):
        return stack([lift(i, dtype, what) for i in items])
    try:
        array = np.asarray(items, dtype)
    except ValueError as e:
        raise fail(f"{what}: {e}") from None
    return lift(array, dtype, what)


def check_dtype(array: Array, what: str) -> Array:
    """Return an array in the machine's byte order; raises RlxError where rlx lacks its dtype."""
    dtype = array.dtype.newbyteorder("=")
    if dtype not in DTYPES:
        names = ", ".join(d.name for d in DTYPES)
        raise RlxError(
            f"{what}: expected an array of {names}, got {array.dtype}: convert it with astype"
        )
    return array if array.dtype.isnative else array.astype(dtype)


def constant(trace: Trace, array: Array, weak: type | None = None) -> Any:
    """Return a tracer of a small array's values."""
    number = trace.add("constant", (array.tobytes(),), [], (array.dtype, array.shape))
    trace.known[number] = array
    return wrap(trace, number, weak)


def full(value: bool | float, dtype: DType, dims: Shape) -> Any:
    """Return one number at every place."""
    return broadcast(lift(value, dtype), dims)


def full_like(x: Value, value: bool | float, dtype: DType | None = None) -> Any:
    return full(value, dtype or x.dtype, x.dims)


def size_of(dim: Dim, dtype: DType = INT64) -> Any:
    """Return a dimension's size as a value of rank 0."""
    trace = current("rlx.numpy")
    dim = trace.dims.find(dim)
    if isinstance(dim, int):
        return lift(dim, dtype)
    from rlx.jit.tracer import Tracer

    return cast_to(Tracer(trace, trace.size_value(dim), None, trace.main), dtype)


# Maps


def unary(kind: str, x: Value) -> Any:
    return make(x, x.dtype, x.dims, "unary", (kind,), x)


def binary(kind: str, a: Value, b: Value) -> Any:
    return make(a, a.dtype, a.dims, "binary", (kind,), a, b)


def compare(kind: str, a: Value, b: Value) -> Any:
    return make(a, BOOL, a.dims, "compare", (kind,), a, b)


def select(condition: Value, a: Value, b: Value) -> Any:
    return make(a, a.dtype, a.dims, "select", (), condition, a, b)


def cast_to(x: Value, dtype: DType) -> Any:
    """Return a value's elements as another dtype, as `mir.cast` defines it."""
    if x.dtype == dtype:
        return x if x.weak is None else wrap(x.trace, x.here().number)
    if dtype not in DTYPES:
        raise fail(f"expected one of {', '.join(d.name for d in DTYPES)}, got {dtype}")
    return make(x, dtype, x.dims, "cast", (), x)


# Moves


def broadcast(x: Value, dims: Shape) -> Any:
    """Repeat a value along new leading dimensions and dimensions of 1; the others must fit."""
    dims = tuple(map(x.trace.dims.find, dims))
    return (
        x
        if tuple(map(x.trace.dims.find, x.dims)) == dims
        else make(x, x.dtype, dims, "broadcast", (), x)
    )


def reshape(x: Value, dims: Shape) -> Any:
    dims = tuple(map(x.trace.dims.find, dims))
    return (
        x
        if tuple(map(x.trace.dims.find, x.dims)) == dims
        else make(x, x.dtype, dims, "reshape", (), x)
    )


def transpose(x: Value, order: Sequence[int]) -> Any:
    order = tuple(order)
    if order == tuple(range(len(order))):
        return x
    return make(x, x.dtype, tuple(x.dims[i] for i in order), "transpose", (order,), x)


def concat(parts: Sequence[Value], axis: int, dims: Shape) -> Any:
    return make(parts[0], parts[0].dtype, dims, "concat", (axis,), *parts)


def take(x: Value, ids: Value, axis: int) -> Any:
    """Return elements along an axis by index; one beyond it means the first or the last."""
    dims = (*x.dims[:axis], *ids.dims, *x.dims[axis + 1 :])
    return make(x, x.dtype, dims, "gather", (axis,), x, ids)


def iota(like: Value, dims: Shape, axis: int, dtype: DType = INT64) -> Any:
    """Return each element's own index along an axis."""
    return make(like, dtype, dims, "iota", (axis,))


# Reductions and products


def reduce(kind: str, x: Value, axes: Sequence[int]) -> Any:
    """Combine the elements along some axes, which the result lacks."""
    kept = tuple(d for i, d in enumerate(x.dims) if i not in axes)
    return make(x, x.dtype, kept, "reduce", (kind, tuple(axes)), x)


def dot(a: Value, b: Value) -> Any:
    """Return `[batch..., m, k] x [batch..., k, n]`, of floats of one dtype and one batch."""
    return make(a, a.dtype, (*a.dims[:-1], b.dims[-1]), "dot", (), a, b)


def shape_text(dims: Shape) -> str:
    """Return dimensions as numpy writes a shape, with the sizes of the call that is traced."""
    hints = [str(dims_now().hint(dims_now().find(d))) for d in dims]
    return f"({hints[0]},)" if len(hints) == 1 else f"({','.join(hints)})"


def common_shape(*shapes: Shape) -> Shape:
    """Return the shape that shapes are broadcast to; raises ValueError where they don't fit."""
    dims = dims_now()
    result: list[Dim] = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        start = len(result) - len(shape)
        for i, dim in enumerate(shape, start):
            both = dims.find(result[i]), dims.find(dim)
            if both[0] == 1 or both[1] == 1:
                result[i] = both[1] if both[0] == 1 else both[0]
            elif dims.same(*both):
                result[i] = dims.find(dim)
            elif 1 in map(dims.hint, both):
                # A derived dimension that happens to be 1 in this call.
                one, other = both if dims.hint(both[0]) == 1 else both[::-1]
                dims.fix(one)
                result[i] = dims.find(other)
            else:
                given = " ".join(map(shape_text, shapes))
                raise ValueError(f"operands could not be broadcast together with shapes {given}")
    return tuple(map(dims.find, result))
