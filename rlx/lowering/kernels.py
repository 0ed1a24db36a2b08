"""From a kernel's operations to the body of its function: which family, with which parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TypeAlias

from xdsl.dialects.builtin import bf16, i8
from xdsl.ir import Attribute, Operation

from rlx.contract.quant import GGML_TYPES_BY_NAME
from rlx.dialects import lir, mir
from rlx.dialects.common import Dim, DimTable, dims_of, element_of, format_of, tensor
from rlx.dialects.named import NamedOp
from rlx.errors import RlxError
from rlx.lowering.abi import AHEAD, KERNEL
from rlx.lowering.body import Body
from rlx.lowering.emitter import Function, Module
from rlx.lowering.in_turn import TURNS_BYTES
from rlx.lowering.values import Value, i64
from rlx.ops.registry import record_of

SINGLE = {
    mir.RmsNormOp,
    mir.EmbeddingOp,
    mir.RopeTableOp,
    mir.LastRowsOp,
    mir.SampleOp,
    mir.PackOp,
    mir.GatedDeltaNetOp,
}
"""The operations of language models that are kernels by themselves."""
MODEL = {*SINGLE, mir.MatmulOp, mir.AttentionOp, mir.RopeOp, mir.AppendOp}
"""The operations whose kernels `model_kernels` has."""
REDUCING = (mir.ReduceOp, mir.SoftmaxOp, mir.LayerNormOp, mir.RmsNormOp)
"""The operations of tensor programs whose rows threads may share."""


@dataclass(frozen=True)
class Scratch:
    """Bytes that a kernel's threads share during a launch; `zeroed` once, and zero after each."""

    size: int
    zeroed: bool
    dims: tuple[Dim, ...] = ()
    """There are `size` bytes for each element of a tensor of these dimensions."""

    @property
    def type(self) -> Attribute:
        return tensor([self.size, *self.dims], i8)


def _takes_turns(kernel: lir.KernelOp) -> bool:
    """Return whether a kernel has products of bf16 or of digits."""
    products = [op for op in kernel.body.block.ops if isinstance(op, mir.MatmulOp)]
    return any(
        element_of(op.input.type) == bf16
        or GGML_TYPES_BY_NAME[format_of(op.weight.type)].elements > 1
        for op in products
    )


def scratch_of(kernel: lir.KernelOp, table: DimTable) -> Scratch | None:
    """Return the scratch that a kernel's launches need at the upper bounds of dimensions."""
    for op in kernel.body.block.ops:
        if isinstance(op, mir.AttentionOp):
            from rlx.lowering.model_kernels import attention_scratch_bytes

            size = attention_scratch_bytes(op, table)
            return Scratch(size, zeroed=True) if size else None
        if isinstance(op, mir.MatmulOp):
            # Threads take parts of a product of many rows in turn, where tiles are multiplied.
            some = dims_of(op.input.type)[0] != 1 and _takes_turns(kernel)
            return Scratch(TURNS_BYTES, zeroed=True) if some else None
        if isinstance(op, mir.SampleOp):
            from rlx.lowering.model_kernels import sampling_scratch_bytes

            return Scratch(sampling_scratch_bytes(op, table), zeroed=False)
        if isinstance(op, NamedOp):
            needed = getattr(import_module(record_of(op.name).kernel), "scratch", None)
            return needed(op, table) if needed is not None else None
    ops = [op for op in kernel.body.block.ops if not isinstance(op, mir.YieldOp)]
    if not _is_tensor_program(ops) or not any(isinstance(op, REDUCING) for op in ops):
        return None
    from rlx.lowering.tensor_split import scratch_bytes

    size = scratch_bytes(ops, table)
    return Scratch(size, zeroed=True) if size else None


Ahead: TypeAlias = Callable[[Body], None]
"""Emits prefetches of the bytes that a kernel reads first, into a function of its own."""
Generator: TypeAlias = Callable[[Body], Ahead | None]
"""Emits a kernel, and returns what emits its prefetches where it has that."""


def _is_tensor_program(ops: Sequence[Operation]) -> bool:
    """Return whether operations are maps, moves, reductions and norms, of any shapes."""
    kinds = {type(op) for op in ops}
    if len(ops) == 1 and kinds <= SINGLE:
        return False
    return kinds <= {*mir.PRIMITIVES, mir.RmsNormOp} and not kinds & {mir.DotOp, mir.SdpaOp}


def emit_kernel(module: Module, kernel: lir.KernelOp, table: DimTable) -> None:
    """
    Define a kernel's function: `void name(ptr ins..., ptr outs..., [ptr scratch,] i64 free
    dimensions..., i64 tid, i64 threads)`; and, where it has one, that of the same parameters that
    asks for the bytes that a thread will read first.

    Raises RlxError for a combination of operations that no kernel family covers.
    """
    block = kernel.body.block
    scratch = scratch_of(kernel, table)
    ins, outs = len(block.args), len(kernel.yielded.arguments)
    params = [("ptr", f"in{i}") for i in range(ins)] + [("ptr", f"out{i}") for i in range(outs)]
    params += [("ptr", "scratch")] if scratch else []
    params += [("i64", name) for name in table.free] + [("i64", "tid"), ("i64", "threads")]

    def body_of(name: str) -> Body:
        f = module.function(name.format(kernel.sym_name.data), params)
        named = dict(zip(table.free, f.params[len(f.params) - 2 - len(table.free) :], strict=False))
        return Body(
            f,
            block,
            table,
            dict(zip(block.args, f.params, strict=False)),
            f.params[ins : ins + outs],
            f.params[ins + outs] if scratch else None,
            _sizes(f, table, named),
            f.params[-2],
            f.params[-1],
            [op for op in block.ops if not isinstance(op, mir.YieldOp)],
        )

    body = body_of(KERNEL)
    ahead = _family(body)(body)
    body.f.ret()
    if ahead:
        body = body_of(AHEAD)
        ahead(body)
        body.f.ret()


def _sizes(f: Function, table: DimTable, free: dict[str, Value]) -> dict[str, Value]:
    """Return the size of every dimension, from those of the free ones."""
    sizes: dict[str, Value] = {}
    for d in table.dims.values():
        if d.operator:
            a, b = (sizes[o] for o in d.operands)
            sizes[d.name] = derived(f, d.operator, a, b)
        else:
            sizes[d.name] = free.get(d.name, i64(d.high))
    return sizes


def derived(f: Function, operator: str, a: Value, b: Value) -> Value:
    """Return a size that derives from two others, as `contract.derived` says."""
    match operator:
        case "+":
            return f.add(a, b)
        case "*":
            return f.mul(a, b)
        case "-":
            return f.intrinsic("smax", "i64", f.sub(a, b), i64(0))
        case "ceildiv":
            return f.udiv(f.add(a, f.sub(b, 1)), b)
        case _:
            return f.intrinsic("smin" if operator == "min" else "smax", "i64", a, b)


def _family(body: Body) -> Generator:
    """
    Return the generator of a kernel, by what its operations are.

    Families are imported when a kernel needs them: no program has all of them.
    """
    kinds = {type(op) for op in body.ops}
    if _is_tensor_program(body.ops):
        from rlx.lowering.tensor_program import emit_tensor_program

        return emit_tensor_program
    if mir.DotOp in kinds and kinds <= set(mir.PRIMITIVES):
        from rlx.lowering.dot import emit_dot

        return emit_dot
    if mir.SdpaOp in kinds and kinds <= set(mir.PRIMITIVES):
        from rlx.lowering.sdpa import emit_sdpa

        return emit_sdpa
    if kinds & MODEL:
        from rlx.lowering.model_kernels import generator

        return generator(body)
    if len(body.ops) == 1 and isinstance(body.ops[0], NamedOp):
        return import_module(record_of(body.ops[0].name).kernel).emit
    if len(body.ops) == 1 and body.ops[0].name in mir.KINDS_BY_NAME:
        from rlx.lowering.signal import generator

        return generator(body.ops[0])
    raise no_family(body)


def no_family(body: Body) -> RlxError:
    """Return the error for operations that are not one kernel."""
    names = ", ".join(op.name for op in body.ops)
    return RlxError(f"no kernel family computes {names} in one launch: fuse less, or one at a time")
