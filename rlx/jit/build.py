"""HIR of a trace: the one file of `rlx.jit` that uses xDSL, imported when a program is compiled."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from xdsl.dialects.builtin import (
    ArrayAttr,
    DenseIntOrFPElementsAttr,
    DictionaryAttr,
    IntegerType,
    ModuleOp,
    StringAttr,
    f16,
    f32,
    f64,
    i1,
)
from xdsl.dialects.func import FuncOp, ReturnOp
from xdsl.ir import Attribute, Operation, Region, SSAValue
from xdsl.ir import Block as IrBlock
from xdsl.utils.exceptions import VerifyException

from rlx.dialects import mir
from rlx.dialects.common import ANY, DIMS, Dim, DimDef, DimTableAttr, dims_of, tensor
from rlx.dialects.control import IfOp, WhileOp, YieldOp
from rlx.dialects.infer import U8, U32
from rlx.dialects.kinds import BinaryKind, CompareKind, ReduceKind, UnaryKind
from rlx.dialects.lir import set_marks, set_precision
from rlx.errors import RlxError
from rlx.jit.trace import Block, Node, Trace, Type

ELEMENTS: dict[str, Attribute] = {
    "bool": i1,
    "float16": f16,
    "float32": f32,
    "float64": f64,
    **{f"int{n}": IntegerType(n) for n in (8, 16, 32, 64)},
    "uint8": U8,
    "uint32": U32,
}


@contextmanager
def refusals(what: str) -> Generator[None]:
    """Raise RlxError for what the IR has no place for, of something that `what` names."""
    try:
        yield
    except VerifyException as e:
        raise RlxError(f"{what}: {e}") from e


def build(trace: Trace, precision: str = "exact", marks: bool = False) -> ModuleOp:
    """Return the module of a trace, which asks for a precision, and for marks."""
    module = _Builder(trace).module()
    set_precision(module, precision)
    set_marks(module, marks)
    return module


def _dim_table(trace: Trace) -> DimTableAttr:
    """Return the dimensions that the types of a trace name; constants have names of their own."""
    entries = {f"c{d}": DimDef(f"c{d}", d, d) for d in trace.starts() if isinstance(d, int)}
    for name in trace.names():
        definition = trace.dims.definition(name)
        if definition is None:
            entries[name] = DimDef(name, 0, ANY)
            continue
        kind, *operands = definition
        for operand in operands:
            if isinstance(operand, int):
                entries[f"c{operand}"] = DimDef(f"c{operand}", operand, operand)
        a, b = (f"c{o}" if isinstance(o, int) else o for o in operands)
        entries[name] = DimDef(name, 0, 0, kind, (a, b))
    return DimTableAttr.of(entries.values())


class _Builder:
    def __init__(self, trace: Trace):
        self.trace = trace
        self.values: dict[int, SSAValue] = {}

    def type(self, type_: Type) -> Attribute:
        return tensor(type_[1], ELEMENTS[type_[0]])

    def type_of(self, value: int) -> Attribute:
        return self.type(self.trace.type_of(value))

    def module(self) -> ModuleOp:
        trace = self.trace
        inputs = trace.inputs()
        main = IrBlock(arg_types=[self.type_of(v) for v in inputs])
        self.values |= zip(inputs, main.args, strict=True)
        self.fill(main, trace.main)
        results = [self.values[v] for v in trace.main.results]
        main.add_op(ReturnOp(*results))
        function = FuncOp(
            "main",
            ([a.type for a in main.args], [r.type for r in results]),
            Region(main),
            arg_attrs=_names("x", len(inputs)),
            res_attrs=_names("y", len(results)),
        )
        table = _dim_table(trace)
        attributes: dict[str, Attribute] = {DIMS: table} if len(table.entries) else {}
        return ModuleOp([function], attributes, StringAttr(trace.name))

    def fill(self, block: IrBlock, source: Block) -> None:
        for node in source.nodes:
            op = self.operation(node)
            block.add_op(op)
            self.values |= {node.first + i: r for i, r in enumerate(op.results)}

    def region(self, source: Block) -> IrBlock:
        block = IrBlock(arg_types=[self.type_of(v) for v in source.arguments])
        self.values |= zip(source.arguments, block.args, strict=True)
        self.fill(block, source)
        block.add_op(YieldOp(*(self.values[v] for v in source.results)))
        return block

    def operation(self, node: Node) -> Operation:
        operands = [self.values[v] for v in node.operands]
        types = [self.type_of(node.first + i) for i in range(len(node.types))]
        attributes = self.trace.attributes(node)
        if node.op == "if":
            then, otherwise = map(self.region, attributes)
            return IfOp(operands[0], then, otherwise, types)
        if node.op == "while":
            return WhileOp(operands, *map(self.region, attributes))
        if node.op == "named":
            # Imported here: most functions have none, and all records would come with it.
            from rlx.ops.registry import record_of

            name, options = attributes
            return cast(Any, record_of(name).op)(*operands, types=types, **dict(options))
        return _MAKERS[node.op](types[0], attributes, operands)


def _names(prefix: str, count: int) -> ArrayAttr[DictionaryAttr]:
    return ArrayAttr(DictionaryAttr({"rlx.name": StringAttr(f"{prefix}{i}")}) for i in range(count))


def _constant(type_: Any, attributes: Any, operands: Any) -> Operation:
    element = type_.element_type
    name = next(n for n, e in ELEMENTS.items() if e == element)
    values: list[Any] = np.frombuffer(attributes[0], np.dtype(name)).tolist()
    return mir.ConstantOp(DenseIntOrFPElementsAttr.from_list(type_, values))


def _narrow(type_: Any, attributes: Any, x: SSAValue) -> Operation:
    axis, start, step = cast(tuple[int, Dim, int], attributes)
    name = start if isinstance(start, str) else f"c{start}"
    return mir.NarrowOp(x, axis, name, dims_of(cast(Attribute, type_))[int(axis)], step)


def _sdpa(
    attributes: Any, q: SSAValue, k: SSAValue, v: SSAValue, mask: SSAValue | None = None
) -> Operation:
    scale, causal = attributes
    return mir.SdpaOp(q, k, v, scale, mask, causal)


Maker = Callable[[Any, Any, list[SSAValue]], Operation]

_MAKERS: dict[str, Maker] = {
    "constant": _constant,
    "iota": lambda type_, at, _: mir.IotaOp(at[0], type_),
    "unary": lambda _, at, xs: mir.UnaryOp(UnaryKind(at[0]), xs[0]),
    "binary": lambda _, at, xs: mir.BinaryOp(BinaryKind(at[0]), xs[0], xs[1]),
    "compare": lambda _, at, xs: mir.CompareOp(CompareKind(at[0]), xs[0], xs[1]),
    "select": lambda _, at, xs: mir.SelectOp(xs[0], xs[1], xs[2]),
    "cast": lambda type_, at, xs: mir.CastOp(xs[0], type_.element_type),
    "broadcast": lambda type_, at, xs: mir.BroadcastOp(xs[0], type_),
    "reshape": lambda type_, at, xs: mir.ReshapeOp(xs[0], type_),
    "transpose": lambda _, at, xs: mir.TransposeOp(xs[0], at[0]),
    "slice": lambda type_, at, xs: mir.SliceOp(xs[0], at[0], type_, at[1]),
    "narrow": lambda type_, at, xs: _narrow(type_, at, xs[0]),
    "concat": lambda type_, at, xs: mir.ConcatOp(at[0], xs, type_),
    "gather": lambda _, at, xs: mir.GatherOp(xs[0], xs[1], at[0]),
    "reduce": lambda _, at, xs: mir.ReduceOp(ReduceKind(at[0]), xs[0], at[1]),
    "softmax": lambda _, at, xs: mir.SoftmaxOp(xs[0]),
    "layer_norm": lambda _, at, xs: mir.LayerNormOp(xs[0], xs[1], xs[2], at[0]),
    "dot": lambda _, at, xs: mir.DotOp(xs[0], xs[1]),
    "sdpa": lambda _, at, xs: _sdpa(at, *xs),
}
"""Operation of a trace -> how it is made of its result's type, attributes and operands."""
