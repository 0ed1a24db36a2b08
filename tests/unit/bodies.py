"""Kernels of MIR operations, compiled for a level and called on numpy arrays in guarded memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np
from kernels import Buffer, Fenced, Kernel
from xdsl.dialects.builtin import IntegerType, Signedness, bf16, f16, f32, f64, i1, i32, i64
from xdsl.ir import Attribute, Block, Operation, SSAValue

from rlx.dialects.common import Dim, DimDef, DimTable, dims_of, element_of, tensor
from rlx.dialects.control import YieldOp
from rlx.lowering.body import Body
from rlx.lowering.emitter import Module
from rlx.lowering.target import Target

ELEMENTS: dict[type, Attribute] = {
    np.float32: f32,
    np.float64: f64,
    np.int8: IntegerType(8),
    np.uint8: IntegerType(8, Signedness.UNSIGNED),
    np.int32: i32,
    np.int64: i64,
    np.float16: f16,
    ml_dtypes.bfloat16: bf16,
    np.bool_: i1,
}
_DTYPES = {element: dtype for dtype, element in ELEMENTS.items()}


def block_of(
    types: Sequence[Attribute],
    build: Callable[[Sequence[SSAValue]], tuple[Sequence[Operation], Sequence[SSAValue]]],
) -> Block:
    """Return a block of arguments of some types, of the operations built and what they yield."""
    block = Block(arg_types=types)
    ops, yielded = build(block.args)
    block.add_ops([*ops, YieldOp(*yielded)])
    return block


class Compiled:
    """A kernel's function made by a generator; dimensions with names are its i64 arguments."""

    def __init__(
        self, level: str, block: Block, generate: Callable[[Body], None], dims: Sequence[str] = ()
    ):
        last = block.last_op
        assert isinstance(last, YieldOp)
        self.types = [v.type for v in last.arguments]
        self.dims = list(dims)
        table = DimTable({d: DimDef(d, 0, 1 << 40) for d in dims})
        self.module = Module(Target.named(level))
        ins, outs = len(block.args), len(self.types)
        params = [("ptr", f"p{i}") for i in range(ins + outs)]
        params += [("i64", f"d{d}") for d in dims] + [("i64", "tid"), ("i64", "threads")]
        f = self.module.function("kernel", params, exported=True)
        pointers = f.params[: ins + outs]
        body = Body(
            f,
            block,
            table,
            dict(zip(block.args, pointers, strict=False)),
            pointers[ins:],
            None,
            dict(zip(dims, f.params[ins + outs :], strict=False)),
            f.params[-2],
            f.params[-1],
            [op for op in block.ops if not isinstance(op, YieldOp)],
        )
        generate(body)
        f.ret()
        self.kernel = Kernel(self.module.text, "kernel", self.module.target)

    def __call__(
        self, arrays: Sequence[np.ndarray], threads: int = 1, offset: int | None = 0, **sizes: int
    ) -> list[np.ndarray]:
        """
        Run every thread's share, one after the other; buffers start `offset` past a line.

        Where that is None there is no memory behind the inputs.
        """
        ins = [Fenced(a) if offset is None else Buffer.of(a, offset) for a in arrays]
        shapes = [[sizes.get(str(d), d) for d in dims_of(t)] for t in self.types]
        dtypes = [_DTYPES[element_of(t)] for t in self.types]
        outs = [
            Buffer(int(np.prod(shape)) * np.dtype(dtype).itemsize, offset or 0)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        for tid in range(threads):
            self.kernel(*ins, *outs, *(sizes[d] for d in self.dims), tid, threads)
        for a, before in zip(ins, arrays, strict=True):
            assert a.bytes.tobytes() == np.ascontiguousarray(before).tobytes(), "input changed"
        return [b.array(d, *s) for b, d, s in zip(outs, dtypes, shapes, strict=True)]


def typed(dtype: type, *dims: Dim) -> Attribute:
    """Return the tensor type of dimensions of numbers and names."""
    return tensor(dims, ELEMENTS[dtype])
