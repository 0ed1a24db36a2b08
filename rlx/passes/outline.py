"""Launches become kernels: symbols of their own, shared by all launches of one structure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Attribute, Block, Operation, OpResult, SSAValue

from rlx.dialects import lir, mir
from rlx.passes.structure import structure_of

KINDED = (mir.UnaryOp, mir.BinaryOp, mir.CompareOp, mir.ReduceOp)
"""Operations that are called by their kind."""
BY_PANELS = (mir.MatmulOp, mir.RopeOp, mir.AppendOp)
"""Operations whose kernels compute panel after panel, each from its own elements."""
KEPT_APART = (mir.LoadWeightOp, mir.LoadStateOp)
"""Operations that only name something: they are not launched."""


def state_of(value: SSAValue) -> SSAValue | None:
    """Return the state that a value is a view of (an append's result), None for other values."""
    owner = value.owner
    if isinstance(owner, mir.KernelOp) and isinstance(value, OpResult):
        return state_of(owner.yielded.arguments[value.index])
    return owner.state if isinstance(owner, mir.AppendOp) else None


@dataclass
class Launch:
    """A launch before it has buffers: a kernel's name, the values it reads and those it writes."""

    kernel: str
    op: Operation
    ins: list[SSAValue]
    outs: list[SSAValue]
    in_place: set[tuple[int, int]]
    """Pairs (in, out) where an element is read before the same element is written, nowhere else."""


@dataclass
class Kernels:
    """The kernels of a module by their structure."""

    taken: set[str] = field(default_factory=set[str])
    """Names of the module's symbols, which no kernel may have, and of the kernels."""
    ops: dict[str, lir.KernelOp] = field(default_factory=dict[str, lir.KernelOp])

    def outline(self, op: Operation) -> Launch:
        """Return a MIR operation as the launch of a kernel, which is made where it is new."""
        inner = list(op.ops) if isinstance(op, mir.KernelOp) else [op]
        yielded = list(op.yielded.arguments) if isinstance(op, mir.KernelOp) else list(op.results)
        ins, types = _arguments(op)
        kept = [i for i, v in enumerate(op.results) if state_of(v) is None]
        block = Block(arg_types=types)
        copies: dict[SSAValue, SSAValue] = {}
        for value, argument in zip(ins, block.args, strict=True):
            copies[value] = argument
        for value in mir.captures(op):
            state = state_of(value)
            if state is not None:
                rows = mir.FirstRowsOp(copies[state], value.type)
                block.add_op(rows)
                copies[value] = rows.result
        for old in inner:
            block.add_op(_clone(old, copies))
        block.add_op(mir.YieldOp(*(copies[yielded[i]] for i in kept)))
        return Launch(
            self.add(_stem(inner), block),
            op,
            ins,
            [op.results[i] for i in kept],
            in_place(block),
        )

    def named(self, name: str) -> lir.KernelOp:
        return next(k for k in self.ops.values() if k.sym_name.data == name)

    def copy(self, type_: Attribute) -> str:
        """Return the kernel that copies a tensor."""
        block = Block(arg_types=[type_])
        block.add_op(mir.YieldOp(block.args[0]))
        return self.add("copy", block)

    def add(self, stem: str, block: Block) -> str:
        """Return the name of the kernel of this structure, which is kept if it is the first."""
        kernel = lir.KernelOp(stem, block)
        key = structure_of([kernel])
        if key not in self.ops:
            numbered = (f"{stem}_{n}" if n else stem for n in count())
            name = next(name for name in numbered if name not in self.taken)
            self.taken.add(name)
            kernel.sym_name = StringAttr(name)
            self.ops[key] = kernel
        return self.ops[key].sym_name.data


def _arguments(op: Operation) -> tuple[list[SSAValue], list[Attribute]]:
    """Return the values that a launch reads; a view of a state is replaced by the state."""
    values: dict[SSAValue, None] = {}
    for value in mir.captures(op):
        state = state_of(value)
        values[value if state is None else state] = None
    return list(values), [v.type for v in values]


def _clone(op: Operation, copies: dict[SSAValue, SSAValue]) -> Operation:
    """Copy an operation without its phase and the hints that would tell equal kernels apart."""
    new = op.clone(copies)
    new.attributes.pop(mir.PHASE, None)
    for old_result, result in zip(op.results, new.results, strict=True):
        result.name_hint = None
        copies[old_result] = result
    return new


def _stem(ops: Sequence[Operation]) -> str:
    """Return a name that lists what a kernel computes: `rms_norm_matmul_rope_append`."""
    names = [op.name.removeprefix("mir.") for op in ops if not isinstance(op, KEPT_APART)]
    for i, op in enumerate(ops):
        if isinstance(op, KINDED) and len(ops) == len(names):
            names[i] = str(op.kind.data)
    return "_".join(dict.fromkeys(names)) or "copy"


def written_arguments(block: Block) -> set[int]:
    """Return the positions of the arguments that the block writes: states, counters of sampling."""
    written = {op.state for op in block.ops if isinstance(op, mir.AppendOp)}
    written |= {op.params for op in block.ops if isinstance(op, mir.SampleOp)}
    return {i for i, a in enumerate(block.args) if a in written}


def in_place(block: Block) -> set[tuple[int, int]]:
    """
    Return which results may take the bytes of which arguments.

    An argument qualifies if only maps read it, and each of them leads to the result: one that leads
    to another result may run after this one is written. Where more than maps comes after them, only
    a kernel that goes by rows and panels is known to read each element once.
    """
    last = block.last_op
    assert isinstance(last, mir.YieldOp)
    if isinstance(block.first_op, mir.NamedOp | mir.GatedDeltaNetOp):
        return _alone_in_place(block.first_op, block)
    if any(isinstance(op, mir.DotOp) for op in block.ops):
        # The sums of a product are collected where its result will be.
        return set()
    by_panels = any(isinstance(op, BY_PANELS) for op in block.ops)
    pairs: set[tuple[int, int]] = set()
    for i, argument in enumerate(block.args):
        users = {use.operation for use in argument.uses}
        if not users or not all(isinstance(u, mir.MAPS) for u in users):
            continue
        reached = [_reached_by_maps(user.results[0]) for user in users]
        if not by_panels and any(
            not isinstance(use.operation, (*mir.MAPS, mir.YieldOp))
            for values in reached
            for value in values
            for use in value.uses
        ):
            continue
        for o, value in enumerate(last.arguments):
            if value.type == argument.type and all(value in r for r in reached):
                pairs.add((i, o))
    return pairs


def _alone_in_place(op: mir.NamedOp | mir.GatedDeltaNetOp, block: Block) -> set[tuple[int, int]]:
    """Return the pairs of an operation with a kernel of its own, of operands that it has once."""
    last = block.last_op
    assert isinstance(last, mir.YieldOp)
    yielded = list(last.arguments)
    pairs: list[tuple[SSAValue, SSAValue]] = []
    if isinstance(op, mir.NamedOp):
        pairs += [(op.args[i], op.res[o]) for i, o in op.IN_PLACE if i < len(op.args)]
    elif op.state is not None:
        # A thread reads the state of its columns before all rows, and writes it after them.
        pairs.append((op.state, op.final))
    return {
        (block.args.index(read), yielded.index(written))
        for read, written in pairs
        if read.has_one_use() and written in yielded
    }


def _reached_by_maps(value: SSAValue) -> set[SSAValue]:
    """Return a value, what maps make of it, and of what they make of it."""
    reached = {value}
    work = [value]
    while work:
        for use in work.pop().uses:
            op = use.operation
            if isinstance(op, mir.MAPS) and op.results[0] not in reached:
                reached.add(op.results[0])
                work.append(op.results[0])
    return reached
