"""Operations that bring elements of tensors to other places: padding, slices, stacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects.builtin import i1, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Number, Writer
from rlx.ops.record import FLOATS, INTEGERS, MOVE, Array, Case, Record
from rlx.ops.samples import Draw


def number_of(value: float, element: Attribute) -> Number:
    """Return the number of an option as one of an element type, the nearest that it has."""
    if element == i1:
        return bool(value)
    limits = infer.range_of(element)
    return min(max(int(value), limits[0]), limits[1]) if limits else value


# Padding


@irdl_op_definition
class PadOp(NamedOp):
    """
    Elements before and after those of each axis: `low` and `high` of them, from 0.

    They are `value` by default; in the other modes they are the last element (`edge`), what a
    mirror on the last element (`reflect`) or behind it (`symmetric`) shows, or the elements from
    the other end (`wrap`), again and again if need be. Axes that grow are numbers, and not 0 but in
    the mode `constant`.
    """

    name = "tensor.pad"
    KIND: ClassVar = OpKind.PAD
    OPTIONS: ClassVar = {"low": (), "high": (), "mode": "constant", "value": 0.0}
    CHOICES: ClassVar = {"mode": ("constant", "edge", "reflect", "symmetric", "wrap")}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        low, high = o["low"], o["high"]
        result = infer.padded(cls.name, types[0], low, high, [0] * len(low))
        grown = zip(dims_of(types[0]), dims_of(result), strict=True)
        if o["mode"] != "constant" and any(d == 0 != new for d, new in grown):
            raise cls.refuse(f"elements that an axis can be padded with ({o['mode']})", types)
        return [result]


def _pad(op: PadOp, x: Array) -> Array:
    import numpy as np

    low, high, mode, value = op.chosen.values()
    counts = list(zip(low, high, strict=True))
    if mode == "constant":
        return np.pad(x, counts, constant_values=np.asarray(value, x.dtype))
    return np.pad(x, counts, mode) if counts else x


def _expand_pad(w: Writer, op: PadOp) -> Sequence[SSAValue]:
    (x,) = op.args
    low, high, mode, value = op.chosen.values()
    if mode == "constant":
        return [w.pad(x, low, high, number_of(value, element_of(x.type)))]
    for axis, (n, a, b) in enumerate(zip(dims_of(x.type), low, high, strict=True)):
        if (a or b) and isinstance(n, int):
            places = w.binary(BinaryKind.SUB, w.iota(0, [a + n + b], i64), a)
            x = w.gather(x, _inside(w, places, n, mode), axis)
    return [x]


def _inside(w: Writer, places: SSAValue, n: int, mode: str) -> SSAValue:
    """Return which of n elements is at places before, among and after them."""
    if mode == "edge" or n == 1:
        # A gather takes the last element for all that is beyond.
        return places
    if mode == "wrap":
        return w.binary(BinaryKind.MOD, places, n)
    period, last = (2 * n - 2, 2 * n - 2) if mode == "reflect" else (2 * n, 2 * n - 1)
    there = w.binary(BinaryKind.MOD, places, period)
    return w.binary(BinaryKind.MIN, there, w.binary(BinaryKind.SUB, last, there))


def _sample_pad(draw: Draw) -> Case:
    mode = draw.choice(PadOp.CHOICES["mode"])
    x = draw.array(draw.shape(1, 2, 3, low=0 if mode == "constant" else 1))
    low, high = (tuple(draw.choice((0, 0, 1, 2, 7)) for _ in x.shape) for _ in range(2))
    value = float(draw.between(0, 9))
    return Case([x], lambda w, v: w.add_all(PadOp(*v, low=low, high=high, mode=mode, value=value)))


# Slices


@irdl_op_definition
class SliceOp(NamedOp):
    """
    Element i of an axis is element start + i * step, i from 0 to size - 1; steps may be negative.

    There is a start, a size and a step for each of `axes`; the others, which may have names, are
    taken whole. Every element must be there.
    """

    name = "tensor.slice"
    KIND: ClassVar = OpKind.SLICE
    OPTIONS: ClassVar = {"axes": (), "starts": (), "sizes": (), "steps": ()}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        axes, dims = o["axes"], list(dims_of(types[0]))
        infer.check_axes(cls.name, types[0], axes)
        if any(len(o[name]) != len(axes) for name in ("starts", "sizes", "steps")):
            raise cls.refuse(f"a start, a size and a step for each of the axes {list(axes)}", types)
        for axis, start, size, step in _places(o):
            n, last = dims[axis], start + max(size - 1, 0) * step
            inside = isinstance(n, int) and (size == 0 or (0 <= start < n and 0 <= last < n))
            if not inside or size < 0 or step == 0:
                raise cls.refuse(
                    f"elements {start}, {start + step}, ... to {last} within axis {axis}", types
                )
            dims[axis] = size
        return [tensor(dims, element_of(types[0]))]


def _places(o: Mapping[str, Any]) -> list[tuple[int, int, int, int]]:
    """Return the axes that are sliced, each with its start, size and step."""
    return list(zip(o["axes"], o["starts"], o["sizes"], o["steps"], strict=True))


def _slice(op: SliceOp, x: Array) -> Array:
    import numpy as np

    for axis, start, size, step in _places(op.chosen):
        x = x.take(start + np.arange(size) * step, axis)
    return x


def _expand_slice(w: Writer, op: SliceOp) -> Sequence[SSAValue]:
    (x,) = op.args
    turned: list[int] = []
    for axis, start, size, step in _places(op.chosen):
        first = start + (size - 1) * step if step < 0 else start
        x = w.slice(x, axis, first if size else 0, size, abs(step))
        if step < 0 and size > 1:
            turned.append(axis)
    return [w.reverse(x, turned)]


def _sample_slice(draw: Draw) -> Case:
    shape = draw.shape(1, 2, 3)
    axes = tuple(i for i in range(len(shape)) if draw.chance(0.7))
    taken: list[tuple[int, int, int]] = []
    for axis in axes:
        step = draw.choice((1, 1, 2, 3, -1, -2))
        start = draw.between(0, shape[axis] - 1)
        room = start // -step if step < 0 else (shape[axis] - 1 - start) // step
        taken.append((start, draw.between(0 if draw.chance(0.1) else 1, room + 1), step))
    names = ("starts", "sizes", "steps")
    options: dict[str, Any] = {"axes": axes}
    options |= {name: tuple(n[i] for n in taken) for i, name in enumerate(names)}
    x = draw.array(shape)
    return Case([x], lambda w, v: w.add_all(SliceOp(*v, **options)))


# Stacks


@irdl_op_definition
class StackOp(NamedOp):
    """Tensors of one type side by side, along a new axis of the result."""

    name = "tensor.stack"
    KIND: ClassVar = OpKind.CONCAT
    OPTIONS: ClassVar = {"axis": 0}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        if not types or any(t != types[0] for t in types):
            raise cls.refuse("operands of one type", types)
        dims, axis = dims_of(types[0]), o["axis"]
        if not 0 <= axis <= len(dims):
            raise cls.refuse(f"an axis from 0 to {len(dims)}, not {axis}", types)
        return [tensor([*dims[:axis], len(types), *dims[axis:]], element_of(types[0]))]


def _stack(op: StackOp, *parts: Array) -> Array:
    import numpy as np

    return np.stack(parts, op.option("axis"))


def _expand_stack(w: Writer, op: StackOp) -> Sequence[SSAValue]:
    axis, dims = op.option("axis"), dims_of(op.args[0].type)
    one = [*dims[:axis], 1, *dims[axis:]]
    return [w.concat(axis, [w.reshape(part, one) for part in op.args])]


def _sample_stack(draw: Draw) -> Case:
    shape = draw.shape(0, 1, 2, 3)
    axis = draw.between(0, len(shape))
    arrays = [draw.array(shape) for _ in range(draw.between(1, 4))]
    return Case(arrays, lambda w, v: w.add_all(StackOp(*v, axis=axis)))


# Repetition


@irdl_op_definition
class ExpandOp(NamedOp):
    """
    Dimensions of 1 repeated, and new ones before the first, to `shape`; -1 keeps a dimension.

    Dimensions are aligned at the last.
    """

    name = "tensor.expand"
    KIND: ClassVar = OpKind.EXPAND
    OPTIONS: ClassVar = {"shape": ()}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        shape, dims = o["shape"], dims_of(types[0])
        new = len(shape) - len(dims)
        if new < 0 or min((*shape[: max(new, 0)], 0)) < 0 or min((*shape, 0)) < -1:
            raise cls.refuse(f"sizes for all dimensions, -1 for one that stays, not {shape}", types)
        wanted: list[Dim] = [*shape[:new]]
        wanted += [d if n == -1 else n for n, d in zip(shape[new:], dims, strict=True)]
        result = tensor(wanted, element_of(types[0]))
        infer.check_broadcast(cls.name, types[0], result)
        return [result]


def _expand(op: ExpandOp, x: Array) -> Array:
    import numpy as np

    shape = list(op.option("shape"))
    for i in range(x.ndim):
        if shape[i - x.ndim] == -1:
            shape[i - x.ndim] = x.shape[i]
    return np.broadcast_to(x, shape)


def _expand_expand(w: Writer, op: ExpandOp) -> Sequence[SSAValue]:
    return [w.spread(op.args[0], dims_of(op.res[0].type))]


def _sample_expand(draw: Draw) -> Case:
    shape = draw.shape(0, 1, 2, 3, 4)
    old = [d if draw.chance() else 1 for d in shape][draw.between(0, len(shape)) :]
    new = len(shape) - len(old)
    wanted = [*shape[:new]]
    for d, n in zip(old, shape[new:], strict=True):
        wanted.append(-1 if d == n and draw.chance() else n)
    x = draw.array(old)
    return Case([x], lambda w, v: w.add_all(ExpandOp(*v, shape=tuple(wanted))))


_ALL = (*FLOATS, *INTEGERS, "f16", "i1")
RECORDS = (
    Record(PadOp, (OpKind.PAD,), MOVE, _ALL, _pad, _sample_pad, _expand_pad),
    Record(SliceOp, (OpKind.SLICE,), MOVE, _ALL, _slice, _sample_slice, _expand_slice),
    Record(StackOp, (OpKind.CONCAT,), MOVE, _ALL, _stack, _sample_stack, _expand_stack),
    Record(ExpandOp, (OpKind.EXPAND,), MOVE, _ALL, _expand, _sample_expand, _expand_expand),
)
