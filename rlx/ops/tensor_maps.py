"""Operations that make each element of those at one place, with broadcasting, or of the place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, ClassVar, cast

from xdsl.dialects.builtin import f64, i1, i32, i64
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import irdl_op_definition

from rlx.contract.opkind import OpKind
from rlx.dialects import infer
from rlx.dialects.common import Dim, dims_of, element_of, tensor
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind
from rlx.dialects.named import NamedOp
from rlx.dialects.writer import Writer
from rlx.ops.record import FLOATS, INTEGERS, ROWS, Array, Case, Record
from rlx.ops.samples import DTYPES, Draw
from rlx.ops.tensor_moves import number_of

ELEMENTS: dict[str, Attribute] = {
    str(element).replace("ui", "u"): element for element in (*infer.FLOATS, *infer.INTEGERS)
}
"""What numbers can be made as, by name."""


def joint(cls: type[NamedOp], types: Sequence[Attribute]) -> tuple[Dim, ...]:
    """Return the shape that operands are broadcast to. Raises VerifyException if there is none."""
    shapes = [dims_of(t)[::-1] for t in types]
    sizes: list[Dim] = []
    for aligned in zip_longest(*shapes, fillvalue=1):
        (*longer,) = set(aligned) - {1} or {1}
        if len(longer) > 1:
            raise cls.refuse("dimensions that are equal or 1, aligned at the last", types)
        sizes.append(longer[0])
    return tuple(sizes[::-1])


def _draw_joint(draw: Draw, count: int) -> list[tuple[int, ...]]:
    """Return shapes that can be broadcast together."""
    shape = draw.shape(0, 1, 2, 3)
    shapes: list[tuple[int, ...]] = []
    for _ in range(count):
        part = tuple(d if draw.chance(0.7) else 1 for d in shape)
        shapes.append(part[draw.between(0, len(shape)) if draw.chance(0.3) else 0 :])
    return shapes


# Where


@irdl_op_definition
class WhereOp(NamedOp):
    """Elements of the second operand where the first, i1, holds, of the third elsewhere."""

    name = "tensor.where"
    KIND: ClassVar = OpKind.WHERE

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        if element_of(types[0]) != i1 or element_of(types[1]) != element_of(types[2]):
            raise cls.refuse("a condition of i1, and two operands of one element type", types)
        return [tensor(joint(cls, types), element_of(types[1]))]


def _where(op: WhereOp, condition: Array, x: Array, y: Array) -> Array:
    import numpy as np

    return np.where(condition, x, y)


def _expand_where(w: Writer, op: WhereOp) -> Sequence[SSAValue]:
    condition, x, y = (w.spread(v, dims_of(op.res[0].type)) for v in op.args)
    return [w.select(condition, x, y)]


def _sample_where(draw: Draw) -> Case:
    c, x, y = _draw_joint(draw, 3)
    arrays = [draw.array(c, element="i1"), draw.array(x), draw.array(y)]
    return Case(arrays, lambda w, v: w.add_all(WhereOp(*v)))


# Multiply and add


@irdl_op_definition
class FmaOp(NamedOp):
    """x * y + z, broadcast to one shape; the product of floats may be rounded before the sum."""

    name = "tensor.fma"
    KIND: ClassVar = OpKind.FMA

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 3)
        infer.check_element(cls.name, types[0], (*infer.FLOATS, *infer.INTEGERS))
        if any(element_of(t) != element_of(types[0]) for t in types):
            raise cls.refuse("operands of one element type", types)
        return [tensor(joint(cls, types), element_of(types[0]))]


def _fma(op: FmaOp, x: Array, y: Array, z: Array) -> Array:
    return x * y + z


def _expand_fma(w: Writer, op: FmaOp) -> Sequence[SSAValue]:
    x, y, z = (w.spread(v, dims_of(op.res[0].type)) for v in op.args)
    return [w.binary(BinaryKind.ADD, w.binary(BinaryKind.MUL, x, y), z)]


def _sample_fma(draw: Draw) -> Case:
    arrays = [draw.array(shape) for shape in _draw_joint(draw, 3)]
    return Case(arrays, lambda w, v: w.add_all(FmaOp(*v)))


# Gradients end here


@irdl_op_definition
class StopGradientOp(NamedOp):
    """Its operand, through which no gradient flows."""

    name = "tensor.stop_gradient"
    KIND: ClassVar = OpKind.STOP_GRADIENT

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        return types


def _stop_gradient(op: StopGradientOp, x: Array) -> Array:
    return x


def _expand_stop_gradient(w: Writer, op: StopGradientOp) -> Sequence[SSAValue]:
    return op.args


def _sample_stop_gradient(draw: Draw) -> Case:
    x = draw.array(draw.shape(0, 1, 2, 3))
    return Case([x], lambda w, v: w.add_all(StopGradientOp(*v)))


# One of many


@irdl_op_definition
class OneHotOp(NamedOp):
    """
    `on` at the place that each index names along a new axis of `depth` elements, `off` elsewhere.

    Indices are i32 or i64; one that is not from 0 to depth - 1 names none. The new axis is `axis`
    of the result, -1 the last; elements are of the type `to`.
    """

    name = "tensor.one_hot"
    KIND: ClassVar = OpKind.COMPARE
    OPTIONS: ClassVar = {"depth": 1, "axis": -1, "to": "f32", "on": 1.0, "off": 0.0}
    CHOICES: ClassVar = {"to": tuple(ELEMENTS)}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 1)
        infer.check_element(cls.name, types[0], (i32, i64))
        dims, axis, depth = dims_of(types[0]), o["axis"], o["depth"]
        if not -1 <= axis <= len(dims) or depth < 0:
            raise cls.refuse(f"a depth from 0 and an axis from -1, not {depth} and {axis}", types)
        axis = len(dims) if axis < 0 else axis
        return [tensor([*dims[:axis], depth, *dims[axis:]], ELEMENTS[o["to"]])]


def _one_hot(op: OneHotOp, ids: Array) -> Array:
    import numpy as np

    depth, axis, to, on, off = op.chosen.values()
    hits: Array = np.stack([ids == i for i in range(depth)], axis)
    off = max(off, 0.0) if to.startswith("u") else off
    y = np.full(hits.shape, off, np.float64 if to == "f32" else DTYPES[to])
    y[hits] = on
    return y


def _expand_one_hot(w: Writer, op: OneHotOp) -> Sequence[SSAValue]:
    (ids,) = op.args
    result, element = op.res[0].type, element_of(op.res[0].type)
    dims, old = dims_of(result), dims_of(ids.type)
    axis = len(old) if op.option("axis") < 0 else op.option("axis")
    near = w.spread(w.reshape(ids, [*old[:axis], 1, *old[axis:]]), dims)
    hit = w.compare(CompareKind.EQ, near, w.iota(axis, dims, element_of(ids.type)))
    on, off = (w.value(number_of(op.option(v), element), result) for v in ("on", "off"))
    return [w.select(hit, on, off)]


def _sample_one_hot(draw: Draw) -> Case:
    depth = draw.size(1, 64)
    shape = draw.shape(0, 1, 2)
    ids = draw.ids(shape, depth + 2, draw.element) - draw.choice((0, 1))
    options: dict[str, Any] = {"depth": depth, "axis": draw.between(-1, len(shape))}
    options |= {"to": draw.choice(tuple(ELEMENTS)), "on": float(draw.between(1, 5)), "off": -1.0}
    return Case([ids], lambda w, v: w.add_all(OneHotOp(*v, **options)))


# Complex numbers


def _halves(cls: type[NamedOp], types: Sequence[Attribute]) -> int:
    """Return n of `[..., 2n]`, n real parts and then n imaginary ones."""
    cls.expect_count(types, 1)
    infer.check_element(cls.name, types[0], infer.FLOATS)
    last = dims_of(types[0])[-1:]
    if not last or not isinstance(last[0], int) or last[0] % 2:
        raise cls.refuse("[..., 2n], n real parts and then n imaginary parts", types)
    return last[0] // 2


@irdl_op_definition
class ComplexNormSqOp(NamedOp):
    """re^2 + im^2: `[..., 2n] -> [..., n]`, of n real parts and then n imaginary parts."""

    name = "tensor.complex_norm_sq"
    KIND: ClassVar = OpKind.COMPLEX_NORM_SQ

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        n = _halves(cls, types)
        return [tensor([*dims_of(types[0])[:-1], n], element_of(types[0]))]


def _complex_norm_sq(op: ComplexNormSqOp, x: Array) -> Array:
    n = x.shape[-1] // 2
    return x[..., :n] ** 2 + x[..., n:] ** 2


def _expand_complex_norm_sq(w: Writer, op: ComplexNormSqOp) -> Sequence[SSAValue]:
    (x,) = op.args
    *lead, n = dims_of(op.res[0].type)
    square = w.reshape(w.binary(BinaryKind.MUL, x, x), [*lead, 2, n])
    return [w.reduce(ReduceKind.SUM, square, [len(lead)])]


@irdl_op_definition
class ConjugateOp(NamedOp):
    """Imaginary parts times -1: `[..., 2n]` of n real parts and then n imaginary parts."""

    name = "tensor.conjugate"
    KIND: ClassVar = OpKind.CONJUGATE

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        _halves(cls, types)
        return types


def _conjugate(op: ConjugateOp, x: Array) -> Array:
    y = x.copy()
    y[..., x.shape[-1] // 2 :] *= -1
    return y


def _expand_conjugate(w: Writer, op: ConjugateOp) -> Sequence[SSAValue]:
    (x,) = op.args
    *lead, n = dims_of(x.type)
    apart = [*lead, 2, cast(int, n) // 2]
    signs = w.spread(w.constant([1, -1], [2, 1], element_of(x.type)), apart)
    return [w.reshape(w.binary(BinaryKind.MUL, w.reshape(x, apart), signs), dims_of(x.type))]


def _sample_complex(op: type[NamedOp], draw: Draw) -> Case:
    *lead, n = draw.shape(1, 2, 3)
    x = draw.array([*lead, 2 * n])
    return Case([x], lambda w, v: w.add_all(op(*v)))


# Sequences of numbers


@irdl_op_definition
class ArangeOp(NamedOp):
    """start + i * step, i from 0 to count - 1: `[count]`, of the element type `to`."""

    name = "tensor.arange"
    KIND: ClassVar = OpKind.CONSTANT
    OPTIONS: ClassVar = {"count": 1, "start": 0.0, "step": 1.0, "to": "f32"}
    CHOICES: ClassVar = {"to": tuple(ELEMENTS)}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 0)
        whole = o["to"] in FLOATS or not (o["start"] % 1 or o["step"] % 1)
        if o["count"] < 0 or not whole:
            raise cls.refuse(f"a count from 0, and whole numbers for {o['to']}, not {o}", types)
        return [tensor([o["count"]], ELEMENTS[o["to"]])]


def _arange(op: ArangeOp) -> Array:
    import numpy as np

    count, start, step, to = op.chosen.values()
    whole = to not in FLOATS
    numbers = [start + i * step for i in range(count)]
    values = np.array([int(n) for n in numbers] if whole else numbers, np.int64 if whole else None)
    return values.astype(DTYPES[to] if whole else np.float64)


def _expand_arange(w: Writer, op: ArangeOp) -> Sequence[SSAValue]:
    count, start, step, to = op.chosen.values()
    wide = f64 if to in FLOATS else i64
    numbers = w.binary(BinaryKind.MUL, w.iota(0, [count], wide), number_of(step, wide))
    return [w.cast(w.binary(BinaryKind.ADD, numbers, number_of(start, wide)), ELEMENTS[to])]


def _sample_arange(draw: Draw) -> Case:
    whole = not draw.is_float
    start, step = draw.rng.uniform(-3, 3, 2).round(0 if whole else 9).tolist()
    options: dict[str, Any] = {
        "count": draw.size(0),
        "start": start,
        "step": step,
        "to": draw.element,
    }
    return Case([], lambda w, v: w.add_all(ArangeOp(**options)))


@irdl_op_definition
class LinspaceOp(NamedOp):
    """`[count]` numbers from start to stop, both included, equally far apart, of the type `to`."""

    name = "tensor.linspace"
    KIND: ClassVar = OpKind.CONSTANT
    OPTIONS: ClassVar = {"count": 1, "start": 0.0, "stop": 1.0, "to": "f32"}
    CHOICES: ClassVar = {"to": FLOATS}

    @classmethod
    def infer(cls, types: Sequence[Attribute], o: Mapping[str, Any]) -> Sequence[Attribute]:
        cls.expect_count(types, 0)
        if o["count"] < 0:
            raise cls.refuse(f"a count from 0, not {o['count']}", types)
        return [tensor([o["count"]], ELEMENTS[o["to"]])]


def _linspace(op: LinspaceOp) -> Array:
    import numpy as np

    count, start, stop, _ = op.chosen.values()
    return np.array([start + (stop - start) * i / max(count - 1, 1) for i in range(count)])


def _expand_linspace(w: Writer, op: LinspaceOp) -> Sequence[SSAValue]:
    count, start, stop, to = op.chosen.values()
    part = w.binary(BinaryKind.DIV, w.iota(0, [count], f64), max(count - 1, 1))
    # The ends are exact.
    first = w.binary(BinaryKind.MUL, w.binary(BinaryKind.SUB, 1, part), start)
    last = w.binary(BinaryKind.MUL, part, stop)
    return [w.cast(w.binary(BinaryKind.ADD, first, last), ELEMENTS[to])]


def _sample_linspace(draw: Draw) -> Case:
    start, stop = draw.rng.uniform(-3, 3, 2).tolist()
    options: dict[str, Any] = {
        "count": draw.size(0),
        "start": start,
        "stop": stop,
        "to": draw.element,
    }
    return Case([], lambda w, v: w.add_all(LinspaceOp(**options)))


_NUMBERS = (*FLOATS, *INTEGERS)
RECORDS = (
    Record(WhereOp, (OpKind.WHERE,), ROWS, (*_NUMBERS, "f16", "i1"), _where, _sample_where,
           _expand_where),
    Record(FmaOp, (OpKind.FMA,), ROWS, _NUMBERS, _fma, _sample_fma, _expand_fma),
    Record(StopGradientOp, (OpKind.STOP_GRADIENT,), ROWS, _NUMBERS, _stop_gradient,
           _sample_stop_gradient, _expand_stop_gradient),
    Record(OneHotOp, (OpKind.COMPARE,), ROWS, ("i32", "i64"), _one_hot, _sample_one_hot,
           _expand_one_hot),
    Record(ComplexNormSqOp, (OpKind.COMPLEX_NORM_SQ,), ROWS, FLOATS, _complex_norm_sq,
           partial(_sample_complex, ComplexNormSqOp), _expand_complex_norm_sq),
    Record(ConjugateOp, (OpKind.CONJUGATE,), ROWS, FLOATS, _conjugate,
           partial(_sample_complex, ConjugateOp), _expand_conjugate),
    Record(ArangeOp, (OpKind.CONSTANT,), ROWS, _NUMBERS, _arange, _sample_arange, _expand_arange),
    Record(LinspaceOp, (OpKind.CONSTANT,), ROWS, FLOATS, _linspace, _sample_linspace,
           _expand_linspace),
)  # fmt: skip
