"""Running sums, products and extremes along an axis, and where its largest element is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, Dialect
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import dims_of, tensor
from rlx.dialects.named import NamedOp
from rlx.ops.record import FLOATS, INTEGERS, ROWS, SCAN, Array, Case, Record
from rlx.ops.samples import Draw
from rlx.ops.sorting import NUMBERS, axis_of


@irdl_op_definition
class CumulateOp(NamedOp):
    """
    What the elements of an axis up to each one combine to: their sum, product, max or min.

    With `exclusive` an element is what those before it combine to: the identity for the first one,
    which is 0, 1, and the least or largest number (for floats, an infinity). `reverse` goes from
    the last element to the first. The element type is kept: integers wrap around, floats are
    rounded after each operation. NaN stays from where it is on.
    """

    name = "cumulative.cumulate"
    KIND: ClassVar = OpKind.CUMSUM
    OPTIONS: ClassVar = {"kind": "sum", "axis": -1, "exclusive": False, "reverse": False}
    CHOICES: ClassVar = {"kind": ("sum", "prod", "max", "min")}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], NUMBERS)
        axis_of(cls, types[0], o["axis"])
        return types


def _cumulate(op: CumulateOp, x: Array) -> Array:
    import numpy as np

    combine = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}
    moved = np.moveaxis(x, op.option("axis"), 0)
    moved = moved[::-1] if op.option("reverse") else moved
    result = np.empty_like(moved)
    state = np.full(moved.shape[1:], identity(op.option("kind"), x.dtype), x.dtype)
    for i, row in enumerate(moved):
        after = combine[op.option("kind")](state, row)
        result[i] = state if op.option("exclusive") else after
        state = after
    result = result[::-1] if op.option("reverse") else result
    return np.moveaxis(result, 0, op.option("axis"))


def identity(kind: str, dtype: Any) -> Any:
    """Return what no elements of a dtype combine to."""
    import numpy as np

    if kind in ("sum", "prod"):
        return int(kind == "prod")
    if np.dtype(dtype).kind == "f":
        return -np.inf if kind == "max" else np.inf
    return np.iinfo(dtype).min if kind == "max" else np.iinfo(dtype).max


def _sample_cumulate(draw: Draw) -> Case:
    kind = draw.choice(CumulateOp.CHOICES["kind"])
    shape = draw.shape(1, 2, 3, low=0)
    x = draw.array(shape, 0.7, 1.4) if kind == "prod" else draw.array(shape)
    options: dict[str, Any] = {
        "kind": kind,
        "axis": draw.between(-x.ndim, x.ndim - 1),
        "exclusive": draw.chance(),
        "reverse": draw.chance(),
    }
    return Case([x], lambda w, v: w.add_all(CumulateOp(*v, **options)))


@irdl_op_definition
class ArgReduceOp(NamedOp):
    """
    The index of the largest element of an axis (or the smallest), i64; the axis is dropped.

    Of equal elements, and zeros of both signs are, it is the first. NaN is larger than all numbers,
    and smaller. It is 0 where the axis has no elements.
    """

    name = "cumulative.arg_reduce"
    KIND: ClassVar = OpKind.ARG_MAX
    OPTIONS: ClassVar = {"kind": "max", "axis": -1}
    CHOICES: ClassVar = {"kind": ("max", "min")}
    LAUNCHED: ClassVar = True

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], NUMBERS)
        axis = axis_of(cls, types[0], o["axis"])
        return [tensor([d for i, d in enumerate(dims_of(types[0])) if i != axis], i64)]


def _arg_reduce(op: ArgReduceOp, x: Array) -> Array:
    import numpy as np

    moved = np.moveaxis(x, op.option("axis"), 0)
    if not len(moved):
        return np.zeros(moved.shape[1:], np.int64)
    result = np.empty(moved.shape[1:], np.int64)
    for place in np.ndindex(*result.shape):
        column = moved[(slice(None), *place)].tolist()
        extreme = (max if op.option("kind") == "max" else min)(column)
        first_nan = next((i for i, v in enumerate(column) if v != v), None)
        result[place] = column.index(extreme) if first_nan is None else first_nan
    return result


def _sample_arg_reduce(draw: Draw) -> Case:
    x = draw.array(draw.shape(1, 2, 3))
    if draw.chance():
        x = (x % 5).astype(x.dtype) if not draw.is_float else x.round()
    if draw.is_float and draw.chance():
        for value in (float("nan"), float("inf"), -float("inf"), -0.0):
            x[draw.rng.random(x.shape) < 0.02] = value
    options: dict[str, Any] = {
        "kind": draw.choice(ArgReduceOp.CHOICES["kind"]),
        "axis": draw.between(-x.ndim, x.ndim - 1),
    }
    return Case([x], lambda w, v: w.add_all(ArgReduceOp(*v, **options)))


_ALL = (*FLOATS, *INTEGERS)
RECORDS = (
    Record(
        CumulateOp, (OpKind.CUMSUM, OpKind.CUM_PROD, OpKind.CUM_MAX), SCAN, _ALL, _cumulate,
        _sample_cumulate, kernel="rlx.lowering.cumulate",
        # Products of many factors, each rounded.
        nmse=1e-10,
    ),
    Record(
        ArgReduceOp, (OpKind.ARG_MAX, OpKind.ARG_MIN), ROWS, _ALL, _arg_reduce, _sample_arg_reduce,
        kernel="rlx.lowering.arg_reduce", nmse=0,
    ),
)  # fmt: skip

Cumulative = Dialect("cumulative", [r.op for r in RECORDS], [])
