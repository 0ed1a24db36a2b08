"""Kernels of tensor primitives against the reference in float64, at every level there is here."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from kernels import Buffer, Kernel
from kernels import levels as all_levels
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    bf16,
    f16,
    f32,
    f64,
    i1,
    i8,
    i16,
    i32,
    i64,
)
from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.dialects import mir
from rlx.dialects.common import Dim, DimDef, DimTable, dims_of, element_of, tensor
from rlx.dialects.infer import U8, U32
from rlx.dialects.kinds import (
    INTEGER_BINARY,
    INTEGER_UNARY,
    BinaryKind,
    CompareKind,
    ReduceKind,
    UnaryKind,
)
from rlx.lowering import values
from rlx.lowering.body import Body
from rlx.lowering.emitter import Module
from rlx.lowering.target import Target
from rlx.lowering.tensor_program import emit_tensor_program, refusal
from rlx.reference.primitives import compute

DTYPES: dict[Attribute, Any] = {
    f32: np.float32, f64: np.float64, f16: np.float16, bf16: np.uint16, i1: np.uint8,
    i8: np.int8, i16: np.int16, i32: np.int32, i64: np.int64, U8: np.uint8, U32: np.uint32,
}  # fmt: skip
SIZES = (0, 1, 15, 16, 17, 31, 64, 67, 200)
ADD, SUB, MUL = BinaryKind.ADD, BinaryKind.SUB, BinaryKind.MUL
SUM, MEAN, MAX, MIN, PROD = ReduceKind

Build = Callable[..., Any]


def levels() -> list[str]:
    """Return the levels whose vectors differ."""
    return [name for name in all_levels() if name != "alderlake"]


def t(*dims: Dim, e: Attribute = f32) -> Attribute:
    return tensor(dims, e)


class Ops:
    """Operations as they are built, each checked; a call appends one and returns its result."""

    def __init__(self) -> None:
        self.all: list[Operation] = []

    def __call__(self, op: Operation) -> SSAValue:
        op.verify()
        self.all.append(op)
        return op.results[0]

    def constant(self, type_: Attribute, values: Sequence[Any]) -> SSAValue:
        data = DenseIntOrFPElementsAttr.from_list(type_, values)
        return self(mir.ConstantOp(data))

    def like(self, value: SSAValue, other: SSAValue) -> SSAValue:
        """Broadcast to the shape of another value."""
        return self(mir.BroadcastOp(value, other.type))

    def over(self, kind: ReduceKind, x: SSAValue, *axes: int) -> SSAValue:
        """Reduce, and keep the axes with one element."""
        dims = [1 if i in axes else d for i, d in enumerate(dims_of(x.type))]
        reduced = self(mir.ReduceOp(kind, x, axes))
        return self(mir.ReshapeOp(reduced, tensor(dims, element_of(x.type))))


def built(ins: Sequence[Attribute], build: Build) -> tuple[Block, list[Operation], list[SSAValue]]:
    """Return a kernel's block, its operations and what it yields."""
    block, ops = Block(arg_types=ins), Ops()
    result = build(ops, *block.args)
    yielded = list(result) if isinstance(result, (list, tuple)) else [result]
    block.add_ops([*ops.all, mir.YieldOp(*yielded)])
    return block, ops.all, yielded


class Compiled:
    """A kernel for a level; `dims` are bounds of dimensions with names."""

    def __init__(
        self,
        level: str,
        ins: Sequence[Attribute],
        build: Build,
        dims: Mapping[str, DimDef] | None = None,
    ):
        self.block, self.ops, self.yielded = built(ins, build)
        self.table = DimTable(dict(dims or {}))
        module = Module(Target.named(level))
        pointers = len(ins) + len(self.yielded)
        free = self.table.free
        params = [("ptr", f"p{i}") for i in range(pointers)]
        params += [("i64", d) for d in free] + [("i64", "tid"), ("i64", "threads")]
        f = module.function("kernel", params, exported=True)
        sizes = dict(zip(free, f.params[pointers:], strict=False))
        for d in self.table.dims.values():
            if d.operator:
                a, b = (sizes[o] for o in d.operands)
                sizes[d.name] = f.add(a, b) if d.operator == "+" else f.mul(a, b)
            else:
                sizes.setdefault(d.name, values.i64(d.high))
        outs = f.params[len(ins) : pointers]
        arguments = dict(zip(self.block.args, f.params, strict=False))
        body = Body(
            f, self.block, self.table, arguments, outs, None, sizes, f.params[-2], f.params[-1],
            self.ops,
        )  # fmt: skip
        emit_tensor_program(body)
        f.ret()
        self.kernel = Kernel(module.text, "kernel", module.target)

    def shape(self, value: SSAValue, sizes: Mapping[str, int]) -> tuple[int, ...]:
        bound = self.table.bind(sizes)
        return tuple(d if isinstance(d, int) else bound[d] for d in dims_of(value.type))

    def run(self, arrays: Sequence[np.ndarray], threads: int = 1, **sizes: int) -> list[np.ndarray]:
        """Return the results; every thread's share runs, one after the other."""
        ins = [Buffer.of(a, 4) for a in arrays]
        dtypes = [np.dtype(DTYPES[element_of(v.type)]) for v in self.yielded]
        shapes = [self.shape(v, sizes) for v in self.yielded]
        outs = [Buffer(prod(s) * d.itemsize, 4) for s, d in zip(shapes, dtypes, strict=True)]
        for tid in range(threads):
            self.kernel(*ins, *outs, *(sizes[d] for d in self.table.free), tid, threads)
        for a, before in zip(ins, arrays, strict=True):
            assert a.bytes.tobytes() == np.ascontiguousarray(before).tobytes(), "input changed"
        return [b.array(d.type, *s) for b, d, s in zip(outs, dtypes, shapes, strict=True)]

    def expected(self, arrays: Sequence[np.ndarray], **sizes: int) -> list[np.ndarray]:
        """Return the results of the reference in float64."""
        values = {
            v: numbers_of(a, element_of(v.type))
            for v, a in zip(self.block.args, arrays, strict=True)
        }
        for op in self.ops:
            shape = self.shape(op.results[0], sizes)
            args = [values[v] for v in op.operands]
            values[op.results[0]] = np.asarray(compute(op, shape, np.float64, *args))
        return [values[v] for v in self.yielded]

    @np.errstate(all="ignore")
    def check(
        self,
        arrays: Sequence[np.ndarray],
        rtol: float = 1e-5,
        atol: float = 1e-5,
        **sizes: int,
    ) -> None:
        """Assert that one thread and three give the same bits, which are those of the reference."""
        results = self.run(arrays, 1, **sizes)
        parts = self.run(arrays, 3, **sizes)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numpy's mean of nothing
            expected = self.expected(arrays, **sizes)
        for v, y, y3, wanted in zip(self.yielded, results, parts, expected, strict=True):
            assert y.tobytes() == y3.tobytes(), "the result depends on the number of threads"
            found = numbers_of(y, element_of(v.type))
            assert found.shape == wanted.shape
            if found.dtype.kind == "f":
                np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)
            else:
                np.testing.assert_array_equal(found, wanted)


def numbers_of(array: np.ndarray, element: Attribute) -> np.ndarray:
    """Return what a buffer's elements mean, floats as float64."""
    if element == bf16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if element == i1:
        assert set(np.unique(array)) <= {0, 1}
        return array != 0
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def sample(type_: Attribute, seed: int, sizes: Mapping[str, int] | None = None) -> np.ndarray:
    """Return random elements of a type."""
    rng = np.random.default_rng(seed)
    shape = [d if isinstance(d, int) else (sizes or {})[d] for d in dims_of(type_)]
    element = element_of(type_)
    if element == bf16:
        return (rng.normal(size=shape).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    if element == i1:
        return rng.integers(0, 2, shape).astype(np.uint8)
    if element in (f32, f64, f16):
        return rng.normal(size=shape).astype(DTYPES[element])
    if element in (U8, U32):
        return rng.integers(0, 1 << 40, shape).astype(DTYPES[element])
    return rng.integers(-100, 100, shape).astype(DTYPES[element])


def samples(ins: Sequence[Attribute], **sizes: int) -> list[np.ndarray]:
    return [sample(type_, i, sizes) for i, type_ in enumerate(ins)]


def softmax_columns(o: Ops, x: SSAValue) -> SSAValue:
    e = o(mir.UnaryOp(UnaryKind.EXP, o(mir.BinaryOp(SUB, x, o.like(o.over(MAX, x, 0), x)))))
    return o(mir.BinaryOp(BinaryKind.DIV, e, o.like(o.over(SUM, e, 0), x)))


def gelu_norm(o: Ops, x: SSAValue, y: SSAValue, w: SSAValue, b: SSAValue) -> SSAValue:
    """A norm whose input takes many instructions, so that its row is kept."""
    total = o(mir.BinaryOp(ADD, o(mir.UnaryOp(UnaryKind.GELU_TANH, x)), y))
    return o(mir.LayerNormOp(total, w, b, 1e-5))


def split_heads(o: Ops, x: SSAValue) -> SSAValue:
    return o(mir.TransposeOp(o(mir.ReshapeOp(x, t(6, 4, 16))), [1, 0, 2]))


def join_heads(o: Ops, x: SSAValue) -> SSAValue:
    return o(mir.ReshapeOp(o(mir.TransposeOp(x, [1, 0, 2])), t(6, 64)))


def sums(o: Ops, x: SSAValue, kinds: Sequence[ReduceKind], axes: Sequence[Sequence[int]]) -> Any:
    return [o(mir.ReduceOp(kind, x, axis)) for kind in kinds for axis in axes]


def slice_(o: Ops, x: SSAValue, starts: Sequence[int], steps: Sequence[int], *dims: int) -> Any:
    return o(mir.SliceOp(x, starts, tensor(dims, element_of(x.type)), steps))


def pad(
    o: Ops,
    x: SSAValue,
    low: Sequence[int],
    high: Sequence[int],
    between: Sequence[int] = (),
    type_: Attribute | None = None,
) -> SSAValue:
    element = element_of(x.type)
    fill = o.constant(t(e=element), [1 if element == i1 else 7])
    return o(mir.PadOp(x, fill, low, high, between, type_))


def pooled(o: Ops, x: SSAValue, kind: ReduceKind, size: int, stride: int) -> SSAValue:
    """Reduce windows of the last two axes of a padded image."""
    x = pad(o, x, [0, 1, 1], [0, 2, 0])
    across = o(mir.WindowOp(x, 2, size, stride))
    both = o(mir.WindowOp(across, 1, size, stride, 2))
    return o(mir.ReduceOp(kind, both, [2, 4]))


FLOATS = (SUM, MEAN, MAX, MIN, PROD)
INTEGERS = (SUM, MAX, MIN, PROD)
ALL_AXES = ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2])

# Name -> types of the arguments, and what is computed
CASES: dict[str, tuple[list[Attribute], Build]] = {
    "rank 0": ([t(), t()], lambda o, x, y: o(mir.BinaryOp(ADD, x, y))),
    "one element": ([t(1, 1), t(1)], lambda o, x, y: o(mir.BinaryOp(ADD, x, o.like(y, x)))),
    "bias": ([t(3, 5, 40), t(40)], lambda o, x, b: o(mir.BinaryOp(MUL, x, o.like(b, x)))),
    "short rows": ([t(33, 5, 3), t(5, 1)], lambda o, x, b: o(mir.BinaryOp(MUL, x, o.like(b, x)))),
    "columns of one": ([t(37, 1), t(1, 1)], lambda o, x, b: o(mir.BinaryOp(SUB, x, o.like(b, x)))),
    "outer product": (
        [t(19, 1), t(1, 21)],
        lambda o, x, y: o(
            mir.BinaryOp(
                MUL, o(mir.BroadcastOp(x, t(19, 21))), o(mir.BroadcastOp(y, t(19, 21)))
            )
        ),
    ),
    "wide constant": (
        [t(5, 24)],
        lambda o, x: o(mir.BinaryOp(MUL, x, o.like(o.constant(t(24), range(24)), x))),
    ),
    "splat": ([t(5, 24)], lambda o, x: o(mir.BinaryOp(ADD, x, o.constant(t(5, 24), [2.5])))),
    "iota": (
        [],
        lambda o: [
            o(mir.IotaOp(a, t(30, 21, e=e))) for a, e in ((0, f32), (1, i64), (1, i8), (0, f64))
        ],
    ),
    "transpose": ([t(33, 50)], lambda o, x: o(mir.TransposeOp(x, [1, 0]))),
    "transpose 16": ([t(64, 48)], lambda o, x: o(mir.TransposeOp(x, [1, 0]))),
    "transpose 4d": ([t(3, 17, 2, 20)], lambda o, x: o(mir.TransposeOp(x, [3, 0, 2, 1]))),
    "transpose bytes": ([t(20, 40, e=i1)], lambda o, x: o(mir.TransposeOp(x, [1, 0]))),
    "transpose and add": (
        [t(40, 35), t(35, 40)],
        lambda o, x, y: o(
            mir.BinaryOp(ADD, o(mir.UnaryOp(UnaryKind.TANH, x)), o(mir.TransposeOp(y, [1, 0])))
        ),
    ),
    "heads": ([t(6, 64)], split_heads),
    "heads back": ([t(4, 6, 16)], join_heads),
    "reshape across rows": (
        [t(6, 35)],
        lambda o, x: o(mir.ReshapeOp(o(mir.TransposeOp(x, [1, 0])), t(5, 42))),
    ),
    "slice": ([t(40, 50)], lambda o, x: slice_(o, x, [3, 5], [2, 3], 10, 15)),
    "slice of a slice": (
        [t(40, 50)],
        lambda o, x: slice_(o, slice_(o, x, [3, 0], [1, 1], 30, 50), [1, 7], [4, 1], 7, 43),
    ),
    "empty slice": ([t(4, 5)], lambda o, x: slice_(o, x, [1, 0], [1, 1], 0, 5)),
    "concat rows": (
        [t(7, 20), t(3, 20), t(0, 20)],
        lambda o, x, y, z: o(mir.ConcatOp(0, [x, z, y, x], t(17, 20))),
    ),
    "concat columns": (
        [t(7, 20), t(7, 35), t(7, 0), t(7, 32)],
        lambda o, x, y, z, u: o(mir.ConcatOp(1, [x, z, y, u, x], t(7, 107))),
    ),
    "concat of reshapes": (
        [t(4, 64), t(4, 2, 32)],
        lambda o, x, y: o(
            mir.ConcatOp(1, [x, o(mir.ReshapeOp(y, t(4, 64))), x], t(4, 192))
        ),
    ),
    "many parts": (
        [t(2, 3)],
        lambda o, x: o(mir.ConcatOp(0, [x] * 200, t(400, 3))),
    ),
    "gather rows": (
        [t(7, 20), t(33, e=i32)],
        lambda o, x, i: o(mir.GatherOp(x, i, 0)),
    ),
    "gather columns": (
        [t(7, 20), t(3, 11, e=i64)],
        lambda o, x, i: o(mir.GatherOp(x, i, 1)),
    ),
    "gather one": ([t(7, 20), t(e=i64)], lambda o, x, i: o(mir.GatherOp(x, i, 0))),
    "pad": ([t(5, 40)], lambda o, x: pad(o, x, [1, 3], [2, 20])),
    "pad rows": ([t(5, 3, 40)], lambda o, x: pad(o, x, [1, 2, 0], [0, 3, 0])),
    "pad between": ([t(3, 40), t(20)], lambda o, x, y: [
        pad(o, x, [0, 2], [1, 0], [2, 1]), pad(o, y, [0], [0], [15])
    ]),
    "pad nothing": ([t(0, 3, e=i8)], lambda o, x: pad(o, x, [2, 1], [1, 0], [3, 0])),
    "pad bytes": ([t(3, 70, e=i1)], lambda o, x: pad(o, x, [0, 30], [0, 1])),
    "pad turned": (
        [t(20, 33)], lambda o, x: pad(o, o(mir.TransposeOp(x, [1, 0])), [2, 1], [0, 2])
    ),
    "turned pad": (
        [t(20, 33)], lambda o, x: o(mir.TransposeOp(pad(o, x, [2, 1], [0, 2]), [1, 0]))
    ),
    "pad of a broadcast": (
        [t(1, 20)], lambda o, x: pad(o, o(mir.BroadcastOp(x, t(6, 20))), [2, 1], [1, 0])
    ),
    "pad of a pad": (
        [t(4, 30)], lambda o, x: pad(o, pad(o, x, [1, 4], [0, 1], [1, 0]), [0, 5], [0, 3])
    ),
    "pad of a concat": (
        [t(4, 30), t(4, 5)],
        lambda o, x, y: pad(o, o(mir.ConcatOp(1, [x, y], t(4, 35))), [0, 5], [0, 3]),
    ),
    "kept rows, padded": (
        [t(3, 70)],
        lambda o, x: [
            o(mir.SoftmaxOp(x)),
            slice_(o, pad(o, o(mir.SoftmaxOp(x)), [0, 9], [0, 3]), [0, 4], [1, 1], 3, 70),
        ],
    ),
    "windows": (
        [t(4, 60)],
        lambda o, x: [
            o(mir.WindowOp(x, axis, size, stride, step))
            for axis, size, stride, step in (
                (1, 3, 1, 1), (1, 40, 2, 1), (1, 20, 3, 3), (0, 2, 1, 2), (1, 5, 5, 1), (0, 4, 1, 1)
            )
        ],
    ),
    "windows of an image": (
        [t(3, 18, 22)],
        lambda o, x: o(mir.ReshapeOp(
            o(mir.TransposeOp(
                o(mir.WindowOp(o(mir.WindowOp(x, 2, 3)), 1, 3, 2)), [0, 2, 4, 1, 3]
            )),
            t(27, 160),
        )),
    ),
    "pools": (
        [t(3, 19, 47)],
        lambda o, x: [
            pooled(o, x, kind, size, stride)
            for kind, size, stride in ((MAX, 3, 1), (SUM, 2, 2), (MEAN, 3, 3), (MIN, 5, 2))
        ],
    ),
    "reverse": (
        [t(5, 50), t(3, 40, e=i1)],
        lambda o, x, y: [
            *(o(mir.ReverseOp(x, axes)) for axes in ([0], [1], [0, 1], [])),
            o(mir.ReverseOp(slice_(o, x, [0, 1], [1, 3], 5, 16), [1])),
            o(mir.ReverseOp(y, [1])),
            o(mir.ReverseOp(pad(o, x, [0, 2], [0, 4]), [1])),
        ],
    ),
    "a gather, reversed": (
        [t(50, 3), t(40, e=i32)],
        lambda o, x, i: o(mir.ReverseOp(o(mir.GatherOp(x, i, 0)), [0])),
    ),
    "spread": (
        [t(4, 200), t(200, e=i8), t(200, e=f64)],
        lambda o, x, y, z: [
            *(slice_(o, x, [0, 1], [1, s], 4, 199 // s) for s in (2, 3, 4, 5)),
            slice_(o, y, [3], [2], 90), slice_(o, z, [0], [4], 50),
        ],
    ),
    "short rows, reduced": (
        [t(70, 3), t(2, 33, 4)], lambda o, x, y: [*sums(o, x, FLOATS, ([1],)),
        *sums(o, y, FLOATS, ([2], [0, 2], [1, 2]))],
    ),
    "reductions": ([t(5, 7, 19)], lambda o, x: sums(o, x, FLOATS, ALL_AXES)),
    "reductions of f64": ([t(3, 4, 33, e=f64)], lambda o, x: sums(o, x, FLOATS, ALL_AXES)),
    "reductions of bytes": ([t(5, 4, 70, e=i8)], lambda o, x: sums(o, x, INTEGERS, ALL_AXES)),
    "reductions of i64": ([t(5, 4, 30, e=i64)], lambda o, x: sums(o, x, INTEGERS, ALL_AXES)),
    "reductions of u8": ([t(5, 4, 70, e=U8)], lambda o, x: sums(o, x, INTEGERS, ALL_AXES)),
    "reductions of u32": ([t(5, 4, 30, e=U32)], lambda o, x: sums(o, x, INTEGERS, ALL_AXES)),
    "reductions of i1": ([t(5, 4, 30, e=i1)], lambda o, x: sums(o, x, (MAX, MIN), ALL_AXES)),
    "reduction of nothing": (
        [t(3, 0), t(4, e=f64)],
        lambda o, x, y: [*sums(o, x, FLOATS, ([1], [0])), o(mir.ReduceOp(SUM, y, []))],
    ),
    "reduction of no axes": (
        [t(7), t(3, 70)],
        lambda o, *args: [o(mir.ReduceOp(k, v, [])) for k in FLOATS for v in args],
    ),
    "long rows": (
        [t(3, 1000)], lambda o, x: [o(mir.SoftmaxOp(x)), *sums(o, x, FLOATS, ([1], [0]))]
    ),
    "softmax of columns": ([t(67, 90)], softmax_columns),
    "norm with a row kept": ([t(9, 150), t(9, 150), t(150), t(150)], gelu_norm),
    "norm of long rows": ([t(2, 9000), t(2, 9000), t(9000), t(9000)], gelu_norm),
    "norm of f64": (
        [t(4, 37, e=f64), t(37, e=f64), t(37, e=f64)],
        lambda o, x, w, b: o(mir.LayerNormOp(x, w, b, 1e-5)),
    ),
    "softmax twice": ([t(5, 33)], lambda o, x: o(mir.SoftmaxOp(o(mir.SoftmaxOp(x))))),
    "transposed softmax": (
        [t(40, 5)],
        lambda o, x: o(mir.TransposeOp(o(mir.SoftmaxOp(o(mir.TransposeOp(x, [1, 0])))), [1, 0])),
    ),
    "centred": ([t(300)], lambda o, x: o(mir.BinaryOp(SUB, x, o.like(o.over(MEAN, x, 0), x)))),
    "outputs of several shapes": (
        [t(12, 40)],
        lambda o, x: [
            o(mir.ReduceOp(SUM, x, [1])), o(mir.UnaryOp(UnaryKind.RELU, x)), o(mir.SoftmaxOp(x)),
            o(mir.ReduceOp(MAX, x, [0])), o(mir.ReduceOp(MEAN, x, [0, 1])), x,
        ],
    ),
    "select": (
        [t(30, 70), t(30, 70)],
        lambda o, x, y: o(mir.SelectOp(o(mir.CompareOp(CompareKind.LT, x, y)), x, y)),
    ),
    "masks": (
        [t(30, 7, e=i1), t(30, 7, e=i1)],
        lambda o, x, y: o(mir.UnaryOp(UnaryKind.NOT, o(mir.BinaryOp(BinaryKind.XOR, x, y)))),
    ),
    "causal mask": (
        [t(20, 20)],
        lambda o, x: o(
            mir.SelectOp(
                o(mir.CompareOp(
                    CompareKind.GE, o(mir.IotaOp(0, t(20, 20, e=i32))),
                    o(mir.IotaOp(1, t(20, 20, e=i32))),
                )),
                x,
                o.constant(t(20, 20), [-1e9]),
            )
        ),
    ),
    "integers": (
        [t(100, e=i16), t(100, e=i16)],
        lambda o, x, y: [
            o(mir.BinaryOp(k, x, y)) for k in (ADD, MUL, BinaryKind.MAX, BinaryKind.DIV)
        ],
    ),
    "bytes without a sign": (
        [t(100, e=U8), t(100, e=U8), t(100, e=U32)],
        lambda o, x, y, z: [
            *(o(mir.BinaryOp(k, x, y)) for k in INTEGER_BINARY),
            *(o(mir.UnaryOp(k, x)) for k in INTEGER_UNARY),
            *(o(mir.CompareOp(k, x, y)) for k in CompareKind),
            o(mir.BinaryOp(BinaryKind.DIV, z, o(mir.CastOp(y, U32)))),
            o(mir.ConcatOp(0, [x, o.constant(t(2, e=U8), [200, 3])], t(102, e=U8))),
            o(mir.IotaOp(0, t(300, e=U8))),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, level: str):
    ins, build = CASES[name]
    Compiled(level, ins, build).check(samples(ins))


@pytest.mark.parametrize("level", levels())
def test_sizes_of_maps_and_rows(level: str):
    for n in SIZES:
        ins = [t(5, n), t(n), t(n)]

        def build(o: Ops, x: SSAValue, w: SSAValue, b: SSAValue) -> list[SSAValue]:
            row = o(mir.BinaryOp(MUL, o(mir.UnaryOp(UnaryKind.NEG, w)), b))
            norms = [o(mir.LayerNormOp(x, w, b, 1e-5)), o(mir.SoftmaxOp(x))]
            return [row, *norms, *sums(o, x, (SUM, MAX), ([0], [1], [0, 1]))]

        Compiled(level, ins, build).check(samples(ins))


@pytest.mark.parametrize("level", levels())
def test_copies_of_every_element_type(level: str):
    ins = [t(3, n, e=e) for e in DTYPES for n in (1, 16, 21)]
    kernel = Compiled(level, ins, lambda o, *values: list(values))
    arrays = samples(ins)
    for y, x in zip(kernel.run(arrays, 2), arrays, strict=True):
        assert y.tobytes() == x.tobytes()


@pytest.mark.parametrize("level", levels())
def test_casts(level: str):
    ins = [t(50, e=e) for e in (f16, bf16, f32, i8, i1, U8, U32)]
    targets = (f16, bf16, f32, f64, i8, i32, i64, U8, U32, i1)

    def build(o: Ops, *values: SSAValue) -> list[SSAValue]:
        return [o(mir.CastOp(v, e)) for v in values for e in targets if e != element_of(v.type)]

    Compiled(level, ins, build).check(samples(ins), rtol=2**-8)


@pytest.mark.parametrize("bound", [300, 1 << 40])
@pytest.mark.parametrize("level", levels())
def test_dimensions_with_names(level: str, bound: int):
    dims = [
        DimDef("s", 0, bound),
        DimDef("columns", 24, 24),
        DimDef("twice", 0, 0, "+", ("s", "s")),
        DimDef("flat", 0, 0, "*", ("s", "columns")),
        DimDef("three", 3, 3),
        DimDef("more", 0, 0, "+", ("s", "three")),
    ]
    ins = [t("s", 24), t(24)]

    def build(o: Ops, x: SSAValue, w: SSAValue) -> list[SSAValue]:
        turned = o(mir.TransposeOp(x, [1, 0]))
        return [
            o(mir.SoftmaxOp(x)),
            turned,
            o(mir.TransposeOp(o(mir.SoftmaxOp(turned)), [1, 0])),
            *sums(o, x, (SUM, MAX), ([0], [1], [0, 1])),
            o(mir.BinaryOp(ADD, x, o.like(w, x))),
            o(mir.ReshapeOp(x, t(1, "s", 4, 6))),
            o(mir.ReshapeOp(o(mir.UnaryOp(UnaryKind.NEG, x)), t("flat"))),
            o(mir.ConcatOp(0, [x, x], t("twice", 24))),
            pad(o, x, [2, 1], [1, 0], (), t("more", 25)),
            pad(o, turned, [0, 3], [0, 0], (), t(24, "more")),
            o(mir.ReverseOp(turned, [0, 1])),
            o(mir.WindowOp(x, 1, 3, 2)),
        ]

    kernel = Compiled(level, ins, build, {d.name: d for d in dims})
    for s in (*SIZES, 257):
        kernel.check(samples(ins, s=s), s=s)


@pytest.mark.parametrize("level", levels())
def test_gather_clamps_and_reads_nothing_of_an_empty_axis(level: str):
    ins = [t("s", 5), t(4, e=i32)]
    kernel = Compiled(
        level, ins, lambda o, x, i: o(mir.GatherOp(x, i, 0)), {"s": DimDef("s", 0, 9)}
    )
    ids = np.array([-7, 0, 2, 2**31 - 1], np.int32)
    x = sample(t(3, 5), 1)
    (y,) = kernel.run([x, ids], s=3)
    np.testing.assert_array_equal(y, x[[0, 0, 2, 2]])
    (y,) = kernel.run([x[:0], ids], s=0)
    np.testing.assert_array_equal(y, np.zeros((4, 5), np.float32))
    never = Compiled(level, [t(0, 5), t(4, e=i32)], lambda o, x, i: o(mir.GatherOp(x, i, 0)))
    (y,) = never.run([x[:0], ids])
    np.testing.assert_array_equal(y, np.zeros((4, 5), np.float32))


@pytest.mark.parametrize("level", levels())
def test_reductions_keep_nan_and_say_what_nothing_is(level: str):
    x = sample(t(6, 40), 2)
    x[1, 0], x[2, 17], x[3, 39], x[4, 3] = np.nan, np.nan, np.nan, -np.inf
    ins: list[Attribute] = [t(6, 40), t("n", e=i8), t("n"), t("n", e=i1)]
    kernel = Compiled(
        level,
        ins,
        lambda o, x, i, f, b: [
            *sums(o, x, (MAX, MIN), ([0], [1])),
            *sums(o, i, (SUM, MAX, MIN, PROD), ([0],)),
            *sums(o, f, FLOATS, ([0],)),
            *sums(o, b, (MAX, MIN), ([0],)),
        ],
        {"n": DimDef("n", 0, 9)},
    )
    for n in (0, 5):
        kernel.check([x, *samples(ins[1:], n=n)], n=n)


@pytest.mark.parametrize("level", levels())
def test_maps_may_write_to_what_they_read(level: str):
    def build(o: Ops, x: SSAValue, y: SSAValue) -> list[SSAValue]:
        total = o(mir.BinaryOp(ADD, x, o(mir.TransposeOp(y, [1, 0]))))
        return [total, o(mir.BinaryOp(MUL, x, total))]

    kernel = Compiled(level, [t(37, 21), t(21, 37)], build)
    x, y = samples([t(37, 21), t(21, 37)])
    expected = kernel.run([x, y])
    shared, other = Buffer.of(x), Buffer(x.nbytes)
    for tid in range(2):
        kernel.kernel(shared, Buffer.of(y), shared, other, tid, 2)
    assert shared.bytes.tobytes() == expected[0].tobytes()
    assert other.bytes.tobytes() == expected[1].tobytes()


# Programs at random


class Random:
    """A program of maps, moves and reductions that a seed chooses."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        rng = self.rng
        dims: list[Dim] = [
            rng.choice([1, 2, 3, 5, 16, 17, 33, 48, 70]) for _ in range(rng.randint(1, 3))
        ]
        self.dims: dict[str, DimDef] = {}
        self.sizes: dict[str, int] = {}
        if rng.random() < 0.4:
            dims[rng.randrange(len(dims))] = "s"
            self.dims["s"] = DimDef("s", 0, 100)
            self.sizes["s"] = rng.choice([0, 1, 2, 15, 16, 17, 40, 70])
        element = rng.choice([f32, f32, f64])
        self.ins = [tensor(dims, element) for _ in range(rng.randint(1, 2))]

    def build(self, o: Ops, *args: SSAValue) -> list[SSAValue]:
        rng = self.rng
        values = list(args)
        for _ in range(rng.randint(2, 8)):
            x = rng.choice(values[-4:])
            step = rng.choice([self._map, self._map, self._reduce, self._move, self._move])
            y = step(o, x, values)
            if prod(d if isinstance(d, int) else 20 for d in dims_of(y.type)) < 40_000:
                values.append(y)
        made = values[len(args) :] or [o(mir.UnaryOp(UnaryKind.NEG, args[0]))]
        return [made[-1], *rng.sample(made, min(len(made), rng.randint(0, 1)))]

    def _map(self, o: Ops, x: SSAValue, values: list[SSAValue]) -> SSAValue:
        rng = self.rng
        y = rng.choice([v for v in values if v.type == x.type])
        match rng.randrange(3):
            case 0:
                kinds = (UnaryKind.NEG, UnaryKind.TANH, UnaryKind.ABS)
                return o(mir.UnaryOp(rng.choice(kinds), x))
            case 1:
                kinds = (ADD, SUB, MUL, BinaryKind.MAX, BinaryKind.MIN)
                return o(mir.BinaryOp(rng.choice(kinds), x, y))
            case _:
                return o(mir.SelectOp(o(mir.CompareOp(CompareKind.LT, x, y)), y, x))

    def _reduce(self, o: Ops, x: SSAValue, values: list[SSAValue]) -> SSAValue:
        rng, rank = self.rng, len(dims_of(x.type))
        if not rank:
            return x
        if rng.random() < 0.3:
            return o(mir.SoftmaxOp(x))
        axes = sorted(rng.sample(range(rank), rng.randint(1, rank)))
        kind = rng.choice([SUM, MAX, MIN, MEAN])
        if rng.random() < 0.5:
            return o(mir.ReduceOp(kind, x, axes))
        return o(mir.BinaryOp(SUB, x, o.like(o.over(kind, x, *axes), x)))

    def _move(self, o: Ops, x: SSAValue, values: list[SSAValue]) -> SSAValue:
        moves = (
            self._transpose, self._reshape, self._broadcast, self._slice, self._concat,
            self._gather, self._pad, self._window, self._reverse,
        )  # fmt: skip
        return self.rng.choice(moves)(o, x, list(dims_of(x.type)))

    def _transpose(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        order = list(range(len(dims)))
        self.rng.shuffle(order)
        return o(mir.TransposeOp(x, order))

    def _reshape(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        numbers = [d for d in dims if isinstance(d, int)]
        if len(numbers) < len(dims) or not prod(numbers):
            dims.insert(self.rng.randint(0, len(dims)), 1)
        else:
            left, new = prod(numbers), list[Dim]()
            while len(new) < 3:
                size = self.rng.choice([n for n in range(1, left + 1) if left % n == 0])
                new.append(size)
                left //= size
            dims = [*new, left]
        return o(mir.ReshapeOp(x, tensor(dims, element_of(x.type))))

    def _broadcast(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        wider = [self.rng.randint(1, 5) if d == 1 else d for d in dims]
        if len(dims) < 3:
            wider.insert(0, self.rng.randint(1, 4))
        return o(mir.BroadcastOp(x, tensor(wider, element_of(x.type))))

    def _slice(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        starts, steps = [0] * len(dims), [1] * len(dims)
        for i, d in enumerate(dims):
            if isinstance(d, int) and d and self.rng.random() < 0.6:
                starts[i], steps[i] = self.rng.randint(0, d - 1), self.rng.randint(1, 3)
                dims[i] = self.rng.randint(0 if d > 40 else 1, (d - 1 - starts[i]) // steps[i] + 1)
        return o(mir.SliceOp(x, starts, tensor(dims, element_of(x.type)), steps))

    def _concat(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        numbers = [i for i, d in enumerate(dims) if isinstance(d, int)]
        if not numbers:
            return x
        axis, count = self.rng.choice(numbers), self.rng.randint(1, 3)
        size = dims[axis]
        assert isinstance(size, int)
        dims[axis] = size * count
        parts = [x if i % 2 else o(mir.UnaryOp(UnaryKind.NEG, x)) for i in range(count)]
        return o(mir.ConcatOp(axis, parts, tensor(dims, element_of(x.type))))

    def _pad(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        def counts(most: int) -> list[int]:
            return [self.rng.choice([0, 0, 1, most]) if isinstance(d, int) else 0 for d in dims]

        return pad(o, x, counts(20), counts(3), counts(2))

    def _window(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        rng = self.rng
        numbers = [(i, d) for i, d in enumerate(dims) if isinstance(d, int) and d]
        if not numbers or len(dims) > 3:
            return x
        axis, n = rng.choice(numbers)
        size = rng.randint(1, min(n, 8))
        step = rng.randint(1, (n - 1) // (size - 1)) if size > 1 else 1
        return o(mir.WindowOp(x, axis, size, rng.randint(1, 3), step))

    def _reverse(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        axes = [i for i in range(len(dims)) if self.rng.random() < 0.6]
        return o(mir.ReverseOp(x, axes))

    def _gather(self, o: Ops, x: SSAValue, dims: list[Dim]) -> SSAValue:
        numbers = [i for i, d in enumerate(dims) if isinstance(d, int) and d]
        if not numbers:
            return x
        axis = self.rng.choice(numbers)
        shape = self.rng.choice([(), (3,), (20,), (2, 3)])
        size = dims[axis]
        assert isinstance(size, int)
        ids = [self.rng.randint(-2, size + 1) for _ in range(prod(shape))]
        type_ = tensor(shape, self.rng.choice([i32, i64]))
        return o(mir.GatherOp(x, o.constant(type_, ids), axis))


@pytest.mark.parametrize("level", levels())
@pytest.mark.parametrize("seed", range(40))
def test_programs_at_random(seed: int, level: str):
    seed += 0 if level == "host" else 1000
    program = Random(seed)
    if refused(program.ins, program.build):
        return
    program = Random(seed)
    kernel = Compiled(level, program.ins, program.build, program.dims)
    arrays = samples(program.ins, **program.sizes)
    kernel.check(arrays, rtol=1e-3, atol=2e-4, **program.sizes)


# What can't be one kernel


def refused(ins: Sequence[Attribute], build: Build) -> str | None:
    _, ops, yielded = built(ins, build)
    return refusal(ops, yielded)


@pytest.mark.parametrize("name", ["heads", "bias", "norm with a row kept", "softmax of columns"])
def test_accepts_what_is_computed_once(name: str):
    assert refused(*CASES[name]) is None


def test_refuses_other_operations():
    dot = refused([t(4, 4)], lambda o, x: o(mir.UnaryOp(UnaryKind.NEG, o(mir.DotOp(x, x)))))
    assert dot == "mir.dot is not an operation of a tensor kernel"


def test_refuses_what_would_be_reduced_again_and_again():
    def columns_of_rows(o: Ops, x: SSAValue) -> SSAValue:
        return o(mir.ReduceOp(SUM, o(mir.SoftmaxOp(x)), [0]))

    def rows_of_sums(o: Ops, x: SSAValue) -> SSAValue:
        total = o(mir.ReduceOp(SUM, x, [0]))
        return o(mir.ReduceOp(MAX, o(mir.BroadcastOp(total, t(64, 40))), [1]))

    for build in (columns_of_rows, rows_of_sums):
        reason = refused([t(64, 40)], build)
        assert reason is not None
        assert "computed again" in reason


def test_refuses_a_costly_map_that_is_broadcast():
    def build(o: Ops, x: SSAValue, y: SSAValue) -> SSAValue:
        return o(mir.BinaryOp(MUL, x, o.like(o(mir.UnaryOp(UnaryKind.EXP, y)), x)))

    assert refused([t(300, 64), t(300, 1)], build) is None
    assert refused([t(300, 64), t(64)], build) == (
        "unary exp would be computed again for each of the elements that use it"
    )


def test_refuses_what_is_too_large():
    def chain(n: int, step: Callable[[Ops, SSAValue], SSAValue]) -> Build:
        def build(o: Ops, x: SSAValue) -> SSAValue:
            for _ in range(n):
                x = step(o, x)
            return x

        return build

    def negated(o: Ops, x: SSAValue) -> SSAValue:
        return o(mir.UnaryOp(UnaryKind.NEG, x))

    def doubled(o: Ops, x: SSAValue) -> SSAValue:
        both = o(mir.ConcatOp(0, [negated(o, x), x], t(8, 20)))
        return o(mir.SliceOp(both, [2, 0], t(4, 20), [1, 1]))

    def centred(o: Ops, x: SSAValue) -> SSAValue:
        return o(mir.BinaryOp(SUB, o.like(o.over(SUM, x, 1), x), x))

    for step, most in ((negated, 170), (doubled, 4), (centred, 17)):
        assert refused([t(4, 20)], chain(most, step)) is None
        Compiled("host", [t(4, 20)], chain(most, step))
        reason = refused([t(4, 20)], chain(4 * most, step))
        assert reason is not None
        assert reason.startswith("too many operations")


def test_a_single_operation_is_never_refused():
    ins = [t(3)] * 300
    assert refused(ins, lambda o, *parts: o(mir.ConcatOp(0, parts, t(900)))) is None
